"""The connection of nsqd to one nsqlookupd, and what nsqd has registered on it.

Pending announcements are a set, not a queue: the topics and channels that the nsqlookupd may not
know the truth about. After a new connection that is all of them. So the set is never larger than
the number of topics and channels, however many come and go while an nsqlookupd is slow or away.

Spec: nsqd-internals, section 9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple, Protocol

import trio

from trionsq.broker.defects import Defects
from trionsq.hostport import parse_address
from trionsq.logtext import printable
from trionsq.wire import lookup
from trionsq.wire.lookup import LookupAnswerError, LookupdInfo

__all__ = ["LookupPeer", "Registration"]

log = logging.getLogger("trionsq")

# A connect, a write or a read may take this long. Both values are those of the original, which has
# no options for them either.
_STEP_S: Final = 1.0
_PING_S: Final = 15.0
# Time between attempts to connect, however often there is something to announce.
_RECONNECT_S: Final = 1.0
# Commands sent before their answers are read, so that a thousand topics take few round trips.
_MAX_COMMANDS: Final = 64
# An answer to IDENTIFY has about 200 bytes, the others are OK or one line.
_MAX_ANSWER_BYTES: Final = 64 * 1024
_RECEIVE_BYTES: Final = 4096


class Registration(NamedTuple):
    """A topic, or one of its channels, that nsqd registers at an nsqlookupd."""

    topic: str
    channel: str = ""


class RegistrationSource(Protocol):
    """What this nsqd registers at an nsqlookupd, and how it connects."""

    def dial(self, host: str, port: int, /) -> Awaitable[trio.abc.Stream]: ...

    def identity(self) -> dict[str, str | int]:
        """The fields of IDENTIFY."""

    def registrations(self) -> Iterator[Registration]:
        """Yield each channel, and each topic without channels, of the current topics."""

    def has(self, registration: Registration) -> bool:
        """Whether that topic or channel exists now."""


class LookupPeerError(Exception):
    """The connection can't be used any more; ``str()`` says why."""


class LookupPeer:
    """A connection to one nsqlookupd, which reconnects when there is something to send.

    Attributes:
        address: ``host:port`` of the option.
        label: the address, safe for log lines and pages.
        info: where the nsqlookupd takes HTTP requests; None before its first answer to IDENTIFY.
    """

    def __init__(
        self, address: str, source: RegistrationSource, defects: Defects, max_body_bytes: int
    ) -> None:
        self.address = address
        self.info: LookupdInfo | None = None
        self._source = source
        self._defects = defects
        self._max_answer_bytes = min(max_body_bytes, _MAX_ANSWER_BYTES)
        self.label = printable(address)
        self._stream: trio.abc.Stream | None = None
        self._is_identified = False
        self._received = bytearray()
        # On this connection: what was registered; and what may have to be sent, in order, with
        # whether it was deleted after it had been registered.
        self._registered: set[Registration] = set()
        self._pending: dict[Registration, bool] = {}
        # What existed at the connect; it is sent first, and read while it is sent.
        self._backlog: Iterator[Registration] = iter(())
        # The command that made it connect; it is sent last, although the rest contains it.
        self._reason = b""
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._connect_s = self._ping_s = 0.0

    def __repr__(self) -> str:
        state = "connected" if self._is_identified else "not connected"
        counts = f"registered={len(self._registered)} pending={len(self._pending)}"
        return f"<LookupPeer {self.label} {state} {counts}>"

    @property
    def is_connected(self) -> bool:
        """Whether the nsqlookupd has answered IDENTIFY on the current connection."""
        return self._is_identified

    def close(self) -> None:
        """End `run`, and the connection."""
        self._scope.cancel()

    def announce(self, registration: Registration, gone: bool) -> None:
        """Send soon that a topic or channel was created, or is ``gone``."""
        if not self._is_identified:
            self._reason = (lookup.unregister if gone else lookup.register)(*registration)
        elif gone and registration not in self._registered:
            self._pending.pop(registration, None)
            return
        else:
            # At the end, so that a topic comes before the channels it has now.
            was_gone = self._pending.pop(registration, False)
            self._pending[registration] = gone or was_gone
        self._wake.set()

    async def run(self) -> None:
        """Keep the nsqlookupd informed until `close`. Its failures affect this task only."""
        log.info("LOOKUPD(%s): added", self.label)
        self._ping_s = trio.current_time() + _PING_S
        with self._scope:
            while True:
                try:
                    await self._stay_registered()
                except Exception as error:
                    self._defects.note("lookup", f"LOOKUPD({self.label})", error)
                finally:
                    await self._disconnect()
                await trio.sleep(_PING_S)
        log.info("LOOKUPD(%s): removed", self.label)

    async def _stay_registered(self) -> None:
        while True:
            try:
                await self._send_pending()
            except (LookupPeerError, LookupAnswerError, trio.BrokenResourceError) as error:
                log.error(
                    "LOOKUPD(%s): %s",
                    self.label,
                    printable(str(error.__cause__ or error)),
                )
                await self._disconnect()
                await trio.sleep_until(self._connect_s + _RECONNECT_S)
            with trio.move_on_at(self._ping_s):
                await self._wake.wait()

    async def _send_pending(self) -> None:
        """Connect if necessary, and send what is pending."""
        self._wake = trio.Event()
        ping = self._ping_if_due()
        if not self._is_identified:
            await self._connect()
        while True:
            is_last, commands = self._next_commands()
            commands += ping
            ping = []
            if commands:
                await self._send_commands(commands)
                ping = self._ping_if_due()
            elif is_last:
                return
            else:
                # All of these were deleted before they were sent.
                await trio.lowlevel.checkpoint()

    def _ping_if_due(self) -> list[bytes]:
        """Return a PING if one is due. If it fails, the next one is due an interval later."""
        now_s = trio.current_time()
        if now_s < self._ping_s:
            return []
        self._ping_s = now_s + _PING_S
        return [lookup.PING]

    def _next_commands(self) -> tuple[bool, list[bytes]]:
        """Return whether these are the last pending commands, and the commands."""
        backlog = list(islice(self._backlog, _MAX_COMMANDS))
        commands = [
            self._register(registration)
            for registration in backlog
            if registration not in self._registered and self._source.has(registration)
        ]
        for registration in list(islice(self._pending, _MAX_COMMANDS - len(backlog))):
            if self._pending.pop(registration) and registration in self._registered:
                self._registered.remove(registration)
                commands.append(lookup.unregister(*registration))
            if self._source.has(registration):
                commands.append(self._register(registration))
        is_last = len(backlog) < _MAX_COMMANDS and not self._pending
        if self._reason and is_last:
            commands.append(self._reason)
            self._reason = b""
        return is_last, commands

    def _register(self, registration: Registration) -> bytes:
        # A channel registers its topic as well.
        self._registered |= {registration, Registration(registration.topic)}
        return lookup.register(*registration)

    # The connection

    async def _connect(self) -> None:
        self._connect_s = trio.current_time()
        host, port = _target(self.address)
        with _in_time("connecting"):
            try:
                self._stream = await self._source.dial(host, port)
            except (OSError, ValueError) as error:  # ValueError: a name that can't be looked up
                raise LookupPeerError(str(error)) from None
        await self._send(lookup.MAGIC_V1 + lookup.identify(self._source.identity()))
        answer = await self._answer()
        self.info = lookup.parse_identify_answer(answer)
        if self.info is None:
            log.warning("LOOKUPD(%s): gives no HTTP address to ask for channels", self.label)
        log.info("LOOKUPD(%s): connected", self.label)
        self._is_identified = True
        self._backlog = self._source.registrations()

    async def _disconnect(self) -> None:
        """Close the connection, and forget what was registered and pending on it."""
        stream, self._stream = self._stream, None
        self._is_identified = False
        self._reason = b""
        self._backlog = iter(())
        for held in (self._registered, self._pending, self._received):
            held.clear()
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def _send_commands(self, commands: list[bytes]) -> None:
        await self._send(b"".join(commands))
        answers = [await self._answer() for _ in commands]
        for answer in answers:
            if answer != lookup.OK:
                log.warning(
                    "LOOKUPD(%s): answered %s",
                    self.label,
                    printable(answer.decode(errors="replace")),
                )
                return

    async def _send(self, data: bytes) -> None:
        assert self._stream is not None
        with _in_time("sending"):
            await self._stream.send_all(data)

    async def _answer(self) -> bytes:
        with _in_time("an answer's size"):
            head = await self._receive(lookup.SIZE_BYTES)
        size = lookup.answer_size(head, self._max_answer_bytes)
        if size <= len(self._received):
            return self._pop_received(size)
        with _in_time("an answer"):
            return await self._receive(size)

    async def _receive(self, nbytes: int) -> bytes:
        assert self._stream is not None
        while len(self._received) < nbytes:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
            if not data:
                raise LookupPeerError("the connection was closed")
            self._received += data
        return self._pop_received(nbytes)

    def _pop_received(self, nbytes: int) -> bytes:
        data = bytes(self._received[:nbytes])
        del self._received[:nbytes]
        return data


def _target(address: str) -> tuple[str, int]:
    try:
        return parse_address(f"localhost{address}" if address.startswith(":") else address)
    except ValueError:
        raise LookupPeerError("the address is not <host>:<port>") from None


@contextmanager
def _in_time(what: str) -> Iterator[None]:
    with trio.move_on_after(_STEP_S) as scope:
        yield
    if scope.cancelled_caught:
        raise LookupPeerError(f"{what} took more than {_STEP_S:g} s")
