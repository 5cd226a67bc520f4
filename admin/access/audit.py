"""Who did what: the last thousand in memory, and all of it in --audit-file.

A request to change something is here once it was let through, whatever became of it, and so is a
sign-in. Refusals are kept apart, so that somebody who is refused often can't push out what was
done.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import request
from quart_trio import QuartTrio

__all__ = [
    "KEPT_MAX",
    "REFUSALS_MAX",
    "TEXT_MAX",
    "Audit",
    "Entry",
    "request_entries",
    "set_entries_status",
]

log = logging.getLogger("trionsq")

KEPT_MAX: Final = 1000
REFUSALS_MAX: Final = 200
# Longer texts are cut, in characters; a topic's and a channel's name have 64.
TEXT_MAX: Final = 200
# Of refusals no more are written to the file in a minute.
_REFUSALS_A_MINUTE: Final = 600
_SCOPE_KEY: Final = "nsqadmin.audit"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that a user did, or tried to.

    Attributes:
        time_s: seconds since 1970.
        user, role, how: who, see `roles.User`.
        address: where the request came from: an address, "" for a unix socket.
        user_agent, method, path: of the request.
        status: of the answer; None: the client had gone before there was one.
        action: such as ``pause_channel``, ``sign_in``; "" if the path says it all.
        topic, channel, node: to what; "" where there is none.
        note: what went wrong; "" if nothing did.
        refused: they were not let through.
    """

    time_s: float
    user: str
    role: str
    how: str
    address: str
    user_agent: str
    method: str
    path: str
    status: int | None
    action: str = ""
    topic: str = ""
    channel: str = ""
    node: str = ""
    note: str = ""
    refused: bool = False


class Audit:
    """Keeps entries, and appends them to a file.

    Attributes:
        lost: entries that could not be written to the file.
    """

    def __init__(self, path: str = "") -> None:
        """``path`` is the file, "": none. Raises OSError: it can't be written to."""
        self._path = path
        self._done: deque[Entry] = deque(maxlen=KEPT_MAX)
        self._refused: deque[Entry] = deque(maxlen=REFUSALS_MAX)
        self._minute, self._in_this_minute = 0, 0
        self._torn = False
        self.lost = 0
        if path:
            self._append(b"")

    def add(self, entry: Entry) -> None:
        """Keep an entry; that the file can't be written to is logged, and the next one tries."""
        entry = _cut(entry)
        (self._refused if entry.refused else self._done).append(entry)
        if not self._path or (entry.refused and self._too_many(entry.time_s)):
            return
        try:
            self._append(_line(entry))
        except OSError as error:
            self.lost += 1
            log.error("AUDIT: %s - %s (%d entries lost)", self._path, error.strerror, self.lost)

    def install(self, app: QuartTrio) -> None:
        """Add the entries of each request of ``app`` when the request has ended."""
        asgi_app = app.asgi_app

        async def recorded(
            scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
        ) -> None:
            try:
                await asgi_app(scope, receive, send)
            finally:
                # Also if the client disconnected before the answer.
                for entry in scope.get(_SCOPE_KEY, ()):  # type: ignore[attr-defined]
                    self.add(entry)

        app.asgi_app = recorded  # type: ignore[method-assign]

    def entries(self) -> Sequence[Entry]:
        """All that is kept, the newest first."""
        return sorted([*self._done, *self._refused], key=lambda entry: -entry.time_s)

    def _too_many(self, time_s: float) -> bool:
        minute = int(time_s // 60)
        if minute != self._minute:
            self._minute, self._in_this_minute = minute, 0
        self._in_this_minute += 1
        return self._in_this_minute > _REFUSALS_A_MINUTE

    def _append(self, line: bytes) -> None:
        # Opened each time: whoever rotates the file need not tell.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            # What was cut off ends here, or it would spoil the line after it.
            line = b"\n" + line if self._torn else line
            written = os.write(descriptor, line)
            self._torn = written < len(line) if written else self._torn
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def request_entries() -> list[Entry]:
    """The entries of the request that is being answered; they are kept when it has ended."""
    entries: list[Entry] = request.scope.setdefault(_SCOPE_KEY, [])  # type: ignore[typeddict-item]
    return entries


def set_entries_status(status: int) -> None:
    """Enter the status of the answer into all entries of the request."""
    entries = request_entries()
    entries[:] = [dataclasses.replace(entry, status=status) for entry in entries]


def _cut(entry: Entry) -> Entry:
    long: dict[str, Any] = {
        name: value[:TEXT_MAX]
        for name, value in _fields(entry).items()
        if isinstance(value, str) and len(value) > TEXT_MAX
    }
    return dataclasses.replace(entry, **long) if long else entry


def _fields(entry: Entry) -> dict[str, Any]:
    return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}


def _line(entry: Entry) -> bytes:
    said = {name: value for name, value in _fields(entry).items() if value not in ("", False)}
    # ASCII: no name can begin a line of its own or make the file unreadable.
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"
