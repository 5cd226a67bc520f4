"""One nsqlookupd, as nsqd sees it: a connection, and what was announced on it.

What is to be said is a state, not a queue: the topics and channels in which the nsqlookupd's view
may differ from ours. A new connection makes that all of them. So what is held is bounded by what
there is, however much is created and deleted while an nsqlookupd is slow or away.

Spec: nsqd-internals, section 9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from trionsq.hostport import split_address
from trionsq.wire import lookup
from trionsq.wire.lookup import LookupAnswerError, LookupdInfo

if TYPE_CHECKING:
    from trionsq.broker.broker import Broker
    from trionsq.broker.lookup import Lookups

__all__ = ["LookupPeer", "Registration"]

log = logging.getLogger("trionsq")

# Both are the original's, there not options either.
_STEP_S: Final = 1.0
_PING_S: Final = 15.0
# Attempts to connect are that far apart, however often there is something to announce.
_RECONNECT_S: Final = 1.0
# Commands that are sent before their answers are read: a thousand topics are told in a moment.
_COMMANDS_MAX: Final = 64
# Of one answer: IDENTIFY's has some 200 bytes, the others are OK or a line.
_ANSWER_NBYTES_MAX: Final = 64 * 1024
_RECEIVE_NBYTES: Final = 4096
_SHOWN_MAX: Final = 200


class Registration(NamedTuple):
    """What an nsqlookupd is told of: a topic, or one of its channels."""

    topic: str
    channel: str = ""


class LookupPeerError(Exception):
    """The connection is of no more use; the text says why."""


class LookupPeer:
    """A connection to one nsqlookupd, made anew when it is needed.

    Attributes:
        address: ``host:port`` as given.
        shown: the same, as log lines and pages may have it.
        info: where it is to be asked by HTTP; None before its first answer to IDENTIFY.
    """

    def __init__(self, address: str, broker: Broker, lookups: Lookups) -> None:
        self.address = address
        self.info: LookupdInfo | None = None
        self._broker = broker
        self._lookups = lookups
        self.shown = _tame(address)
        self._stream: trio.abc.Stream | None = None
        self._is_identified = False
        self._received = bytearray()
        # On this connection: what was registered; what may have to be said, in order, and
        # whether it was deleted since it was registered.
        self._told: set[Registration] = set()
        self._unsaid: dict[Registration, bool] = {}
        # What there was when it connected comes first; read on as it is said.
        self._backlog: Iterator[Registration] = iter(())
        # What made it connect is said after the rest, though that contains it.
        self._reason = b""
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._connect_s = self._ping_s = 0.0

    def __repr__(self) -> str:
        state = "connected" if self._is_identified else "not connected"
        return f"<LookupPeer {self.shown} {state} told={len(self._told)} +{len(self._unsaid)}>"

    @property
    def is_connected(self) -> bool:
        """Whether it has answered to IDENTIFY on the connection of now."""
        return self._is_identified

    def close(self) -> None:
        """End `run`, and the connection."""
        self._scope.cancel()

    def changed(self, what: Registration, gone: bool) -> None:
        """A topic or channel was created, or is ``gone``."""
        if not self._is_identified:
            self._reason = (lookup.unregister if gone else lookup.register)(*what)
        elif gone and what not in self._told:
            self._unsaid.pop(what, None)
            return
        else:
            # To the end: a topic comes before the channels that it has now.
            was_gone = self._unsaid.pop(what, False)
            self._unsaid[what] = gone or was_gone
        self._wake.set()

    async def run(self) -> None:
        """Keep the nsqlookupd informed, until `close`. Whatever it does, only this task suffers."""
        log.info("LOOKUPD(%s): added", self.shown)
        self._ping_s = trio.current_time() + _PING_S
        with self._scope:
            while True:
                try:
                    await self._keep_up()
                except Exception as error:
                    self._broker.defects.note("lookup", f"LOOKUPD({self.shown})", error)
                finally:
                    await self._hang_up()
                await trio.sleep(_PING_S)
        log.info("LOOKUPD(%s): removed", self.shown)

    async def _keep_up(self) -> None:
        while True:
            try:
                await self._catch_up()
            except (LookupPeerError, LookupAnswerError, trio.BrokenResourceError) as error:
                log.error("LOOKUPD(%s): %s", self.shown, _tame(str(error.__cause__ or error)))
                await self._hang_up()
                await trio.sleep_until(self._connect_s + _RECONNECT_S)
            with trio.move_on_at(self._ping_s):
                await self._wake.wait()

    async def _catch_up(self) -> None:
        """Connect if need be, and say what there is to say."""
        self._wake = trio.Event()
        ping = self._take_ping()
        if not self._is_identified:
            await self._connect()
        while True:
            is_last, commands = self._next_commands()
            commands += ping
            ping = []
            if commands:
                await self._say(commands)
                ping = self._take_ping()
            elif is_last:
                return
            else:
                # All of these were deleted before they were said.
                await trio.lowlevel.checkpoint()

    def _take_ping(self) -> list[bytes]:
        """PING if it is time for it. If that fails, the next one is due an interval later."""
        now_s = trio.current_time()
        if now_s < self._ping_s:
            return []
        self._ping_s = now_s + _PING_S
        return [lookup.PING]

    def _next_commands(self) -> tuple[bool, list[bytes]]:
        """Whether this is the last of what is to be said, and some of it."""
        backlog = list(islice(self._backlog, _COMMANDS_MAX))
        commands = [
            self._register(what)
            for what in backlog
            if what not in self._told and self._lookups.has(what)
        ]
        for what in list(islice(self._unsaid, _COMMANDS_MAX - len(backlog))):
            if self._unsaid.pop(what) and what in self._told:
                self._told.remove(what)
                commands.append(lookup.unregister(*what))
            if self._lookups.has(what):
                commands.append(self._register(what))
        is_last = len(backlog) < _COMMANDS_MAX and not self._unsaid
        if self._reason and is_last:
            commands.append(self._reason)
            self._reason = b""
        return is_last, commands

    def _register(self, what: Registration) -> bytes:
        # A channel registers its topic as well.
        self._told |= {what, Registration(what.topic)}
        return lookup.register(*what)

    # The connection

    async def _connect(self) -> None:
        self._connect_s = trio.current_time()
        host, port = _target(self.address)
        with _in_time("connecting"):
            try:
                self._stream = await self._lookups.dial(host, port)
            except (OSError, ValueError) as error:  # ValueError: a name that can't be looked up
                raise LookupPeerError(str(error)) from None
        await self._send(lookup.MAGIC_V1 + lookup.identify(self._lookups.identity()))
        answer = await self._answer()
        self.info = lookup.parse_identify_answer(answer)
        if self.info is None:
            log.warning("LOOKUPD(%s): does not say where to ask it for channels", self.shown)
        log.info("LOOKUPD(%s): connected", self.shown)
        self._is_identified = True
        self._backlog = self._lookups.registrations()

    async def _hang_up(self) -> None:
        """Close the connection; what was to be said on it is void."""
        stream, self._stream = self._stream, None
        self._is_identified = False
        self._reason = b""
        self._backlog = iter(())
        for held in (self._told, self._unsaid, self._received):
            held.clear()
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def _say(self, commands: list[bytes]) -> None:
        await self._send(b"".join(commands))
        answers = [await self._answer() for _ in commands]
        for answer in answers:
            if answer != lookup.OK:
                log.warning("LOOKUPD(%s): answered %r", self.shown, answer[:_SHOWN_MAX])
                return

    async def _send(self, data: bytes) -> None:
        assert self._stream is not None
        with _in_time("sending"):
            await self._stream.send_all(data)

    async def _answer(self) -> bytes:
        with _in_time("an answer's size"):
            head = await self._receive(lookup.SIZE_BYTES)
        nbytes_max = min(self._broker.options.max_body_size, _ANSWER_NBYTES_MAX)
        size = lookup.answer_size(head, nbytes_max)
        if size <= len(self._received):
            return self._take_received(size)
        with _in_time("an answer"):
            return await self._receive(size)

    async def _receive(self, nbytes: int) -> bytes:
        assert self._stream is not None
        while len(self._received) < nbytes:
            data = await self._stream.receive_some(_RECEIVE_NBYTES)
            if not data:
                raise LookupPeerError("the connection was closed")
            self._received += data
        return self._take_received(nbytes)

    def _take_received(self, nbytes: int) -> bytes:
        data = bytes(self._received[:nbytes])
        del self._received[:nbytes]
        return data


def _tame(text: str) -> str:
    """For the log: it may be of any length, and meant to look like other lines."""
    text = text[:_SHOWN_MAX]
    return text if text.isprintable() else ascii(text)


def _target(address: str) -> tuple[str, int]:
    target = split_address(address)
    if target is None or not 0 < target[1] < 65536:
        raise LookupPeerError("the address is not <host>:<port>")
    return target[0] or "localhost", target[1]


@contextmanager
def _in_time(what: str) -> Iterator[None]:
    with trio.move_on_after(_STEP_S) as scope:
        yield
    if scope.cancelled_caught:
        raise LookupPeerError(f"{what} took more than {_STEP_S:g} s")
