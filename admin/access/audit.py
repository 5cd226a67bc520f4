"""Who did what: the last thousand entries in memory, all entries in --audit-file.

Every request to change something that was let through has an entry, whatever its result, and so
has every sign-in. Refusals are kept apart, so that many of them can't push out the other entries.
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
    "MAX_ENTRIES",
    "MAX_REFUSALS",
    "MAX_TEXT",
    "Audit",
    "Entry",
    "request_entries",
    "set_entries_status",
]

log = logging.getLogger("trionsq")

MAX_ENTRIES: Final = 1000
MAX_REFUSALS: Final = 200
# In characters; longer texts are truncated. Names of topics and channels have at most 64.
MAX_TEXT: Final = 200
# Written to the file; further refusals of that minute are kept in memory only.
_MAX_REFUSALS_PER_MINUTE: Final = 600
_SCOPE_KEY: Final = "nsqadmin.audit"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that a user did, or tried to.

    Attributes:
        time_s: seconds since 1970.
        user, role, how: the user, see `roles.User`.
        address: of the sender; "" for a unix socket.
        user_agent, method, path: of the request.
        status: of the response; None: the client disconnected before it.
        action: such as ``pause_channel``, ``sign_in``; "" if the path is clear enough.
        topic, channel, node: that the action was applied to; "" where there is none.
        note: the errors; "" if there were none.
        refused: whether the request was refused.
        failed: whether it was let through and nothing was done; ``note`` says why.
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
    failed: bool = False


class Audit:
    """Keeps entries, and appends them to a file.

    Attributes:
        lost: entries that could not be written to the file.
    """

    def __init__(self, path: str = "") -> None:
        """``path`` is the file, "": none. Raises OSError: it can't be written to."""
        self._path = path
        self._done: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._refused: deque[Entry] = deque(maxlen=MAX_REFUSALS)
        self._minute, self._in_this_minute = 0, 0
        self._torn = False
        self.lost = 0
        if path:
            self._append(b"")

    def add_entry(self, entry: Entry) -> None:
        """Keep an entry. An error of the file is logged; the next entry tries again."""
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
                    self.add_entry(entry)

        app.asgi_app = recorded  # type: ignore[method-assign]

    def entries(self) -> Sequence[Entry]:
        """All entries in memory, the newest first."""
        return sorted([*self._done, *self._refused], key=lambda entry: -entry.time_s)

    def find_last(self, action: str, topic: str, channel: str = "") -> Entry | None:
        """The newest entry of that action, if it was done; None if none is in memory."""
        for entry in reversed(self._done):
            if entry.failed or entry.action != action:
                continue
            if (entry.topic, entry.channel) == (topic, channel):
                return entry
        return None

    def _too_many(self, time_s: float) -> bool:
        minute = int(time_s // 60)
        if minute != self._minute:
            self._minute, self._in_this_minute = minute, 0
        self._in_this_minute += 1
        return self._in_this_minute > _MAX_REFUSALS_PER_MINUTE

    def _append(self, line: bytes) -> None:
        # Opened each time, so that the file may be rotated.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            # Ends an incomplete line, which would spoil this one.
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
        name: value[:MAX_TEXT]
        for name, value in _fields(entry).items()
        if isinstance(value, str) and len(value) > MAX_TEXT
    }
    return dataclasses.replace(entry, **long) if long else entry


def _fields(entry: Entry) -> dict[str, Any]:
    return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}


def _line(entry: Entry) -> bytes:
    fields = {name: value for name, value in _fields(entry).items() if value not in ("", False)}
    # ASCII: no name can start a line of its own or make the file unreadable.
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
