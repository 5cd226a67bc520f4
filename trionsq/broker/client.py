"""A client: what its connection knows, and the way of its commands from a read to the replies.

The tasks of the connection are in `trionsq.broker.connection`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import trio

from trionsq.broker.admission import Admission
from trionsq.broker.answers import Answer, OwedAnswer, OwedAnswers, Reply
from trionsq.broker.auth import ClientAuth
from trionsq.broker.defects import Defects
from trionsq.broker.drain import Drain
from trionsq.broker.heartbeats import Finding, Heartbeats, TimingWheel
from trionsq.broker.output import MessagePump, Output
from trionsq.broker.runtime import Clock
from trionsq.core.channel import ChannelState
from trionsq.core.given_up import GivenUp
from trionsq.logtext import printable
from trionsq.transports.polled import HANDLED, NOTHING, Step, last_turn, next_turn
from trionsq.transports.poller import Poller
from trionsq.transports.tls import TlsInfo
from trionsq.transports.transport import MAX_FULL_READS, Transport
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError
from trionsq.wire.identify import Negotiated, ServerFeatures
from trionsq.wire.lines import CommandLimits, LineTooLong
from trionsq.wire.server import ServerParser
from trionsq.wire.states import ConnectionState

__all__ = ["Client", "ClientContext", "Handler"]

log = logging.getLogger("trionsq")

# 64 KiB to 1 MiB measured equal; smaller reads cost publishers a quarter of their rate.
_READ_BYTES: Final = 128 * 1024
# Commands in a turn; a run of PUBs or FINs is one. One read may bring 32,000 NOPs, and more packed.
_MAX_COMMANDS: Final = 128

Handler: TypeAlias = "Callable[[Client, Any], Reply]"
"""Runs a command; a ProtocolError ends the connection. (Each takes an event of its own.)"""


class SubscribedChannel(Protocol):
    """The channel of a client, as its connection uses it."""

    core: ChannelState
    given_up: GivenUp | None

    def remove_client(self, client: Client, requeue_now: bool) -> None: ...
    def retire_client(self, client: Client) -> None: ...


@dataclass(slots=True, eq=False)
class ClientContext:
    """What the connections of a broker use of it.

    Attributes:
        features, limits: what the protocol needs of the options.
        tls_required: clients must begin with TLS.
        requeue_on_disconnect: messages in flight are requeued when their client disconnects.
        clock, defects, admission, drain, clients: of the broker.
        heartbeat_checks: when each connection is checked for heartbeats and stalls.
        handlers: run the commands, by the class of their event.
        poller: waits for the input of their sockets.
    """

    features: ServerFeatures
    limits: CommandLimits
    tls_required: bool
    requeue_on_disconnect: bool
    clock: Clock
    defects: Defects
    admission: Admission
    drain: Drain
    clients: dict[Client, None]
    heartbeat_checks: TimingWheel[Client]
    handlers: Mapping[type, Handler]
    poller: Poller = field(default_factory=Poller)


class Client:
    """One connection.

    Attributes:
        peer, host: the remote address, and its host alone.
        parser: parses the commands, and has the protocol state.
        output: what the client is sent.
        pump: writes the messages.
        identity: the result of IDENTIFY.
        consumer: the state of its subscription, also before SUB.
        context: what it uses of its broker.
        channel: the channel it is subscribed to, None before SUB.
        auth: the result of AUTH, None before.
        owed: the answers that wait until messages are safe, None if there are none.
        transport: the connection with its layers.
        tls: the result of the TLS handshake, None without TLS.
        snappy, deflate: whether the connection has that layer.
        pub_counts: messages published, by topic.
        connected_s: time of the connection, in whole seconds since the epoch.
        heartbeats: the times of its heartbeats, and of its last command.
    """

    # Slots save memory: an nsqd may have thousands of idle connections.
    __slots__ = ("__weakref__", "_bottom", "_cancel_scope", "_has_unrun_commands", "_owes_replies",
                 "auth", "channel", "connected_s", "consumer", "context", "deflate", "heartbeats",
                 "host", "identity", "output", "owed", "parser", "peer", "pub_counts", "pump",
                 "snappy", "tls", "transport")  # fmt: skip

    def __init__(self, context: ClientContext, transport: Transport) -> None:
        self.context = context
        self.peer = transport.peer
        self.host = transport.host
        self.parser = ServerParser(context.limits, context.tls_required)
        self.output = Output(transport)
        self.identity = Negotiated.default(context.features, transport.host)
        turn, timeout_s = context.poller.turn, self.identity.msg_timeout_ms / 1e3
        self.pump = MessagePump(self.output, timeout_s, turn, self._note_lost)
        self.consumer = self.pump.subscription
        self.channel: SubscribedChannel | None = None
        self.auth: ClientAuth | None = None
        self.owed: OwedAnswers | None = None
        self.pub_counts: Counter[str] = Counter()
        self.connected_s = context.clock.now_ns() // 10**9
        self.transport = self._bottom = transport
        self.tls: TlsInfo | None = None
        self.snappy = self.deflate = False
        self._cancel_scope = trio.CancelScope()
        self._owes_replies = self._has_unrun_commands = False
        self.heartbeats = Heartbeats(context.clock.now_s())
        self.restart_heartbeats()

    def __repr__(self) -> str:
        return f"<Client {self.peer} {self.parser.state.name} {self.consumer!r} {self.output!r}>"

    def attach(self, scope: trio.CancelScope) -> None:
        """Have `close` cancel this scope from now on; at once if it was called before."""
        closed_before = self._cancel_scope.cancel_called
        self._cancel_scope = scope
        if closed_before:
            self.close()

    def switch_transport(self, transport: Transport) -> None:
        """Switch to ``transport``, which wraps the current one. No output may be pending."""
        self.output.switch_transport(transport)
        self.transport = transport

    def close(self) -> None:
        """End the connection without a frame."""
        self._cancel_scope.cancel()

    def unblock(self) -> None:
        """Have the channel deliver again, after the pump refused a delivery."""
        if self.channel is not None:
            self.channel.core.unblock(self.consumer, self.context.clock.now_s())

    def leave(self) -> None:
        """Leave the channel and the broker: nothing more is delivered."""
        self.context.clients.pop(self, None)
        self.context.heartbeat_checks.remove(self)
        if self.channel is not None:
            self.channel.remove_client(self, self.context.requeue_on_disconnect)
            self.channel = None

    # Reading

    def advance(self) -> Step:
        """Read and run commands until that has to wait; see `trionsq.transports.polled`."""
        parser = self.parser
        for _ in range(MAX_FULL_READS):
            may_have_more = True
            if not self._has_unrun_commands:
                data = self.transport.receive_nowait(_READ_BYTES)
                if data is None:
                    return NOTHING
                if not data:
                    return self._end_of_input()
                may_have_more = len(data) == _READ_BYTES
                parser.receive(data, _MAX_COMMANDS)
                self._has_unrun_commands = True
            if (waiting := self._run_commands()) is not None:
                return waiting
            if self._owes_replies:
                # Not for messages: a client that reads them slowly is still listened to.
                if self.output.pending or (self.owed is not None and self.owed.is_full):
                    return self._wait_until_read()
                self._owes_replies = False
            if not parser.is_used_up and parser.paused:
                parser.pause_after(_MAX_COMMANDS)
                break
            self._has_unrun_commands = False
            if not may_have_more:
                return HANDLED
            # What is upgraded may have cost its sender a thousandth.
            if self.transport is not self._bottom or parser.is_walking:
                break
        return next_turn()

    def _run_commands(self) -> Awaitable[bool] | None:
        """Run the commands that were read, up to the parser's pause or one that has to wait."""
        replies: list[bytes] = []
        parser = self.parser
        handlers = self.context.handlers
        try:
            while not parser.is_used_up and (event := parser.next_event()) is not None:
                reply = handlers[type(event)](self, event)
                if reply is None:
                    continue
                if not isinstance(reply, bytes):
                    # Messages don't wait for these answers.
                    if replies:
                        self._write_replies(replies)
                    self._owes_replies = True
                    if not isinstance(reply, OwedAnswer):
                        # The commands after it wait in the parser.
                        return self._complete(reply)
                    self._owe(reply)
                    continue
                replies.append(reply)
        except ProtocolError as error:
            self.leave()  # at the end of the turn it would get messages
            return self._end_with(error, replies)
        except LineTooLong:
            log.error("client(%s) - command line too long", self.peer)
            if replies:
                self._write_replies(replies)
            return last_turn()
        if replies:
            self._write_replies(replies)
        return None

    async def _complete(self, reply: Awaitable[Answer]) -> bool:
        """Wait for the answer to a command."""
        try:
            answer = await reply
        except ProtocolError as error:
            return await self._end_with(error, [])
        if isinstance(answer, OwedAnswer):
            self._owe(answer)
        elif answer:
            self._write_replies([answer])
        return True

    async def _wait_until_read(self) -> bool:
        """Wait until the client has read its replies, and is not owed too much."""
        if self.output.pending:
            await self.output.drain()
        if self.owed is not None:
            await self.owed.wait_for_room()
        self._owes_replies = False
        return True

    async def _end_of_input(self) -> bool:
        error = self.parser.end_of_input()
        return error is not None and await self._end_with(error, [])

    def _write_replies(self, replies: list[bytes]) -> None:
        """Write the replies, behind the answers that are owed."""
        self._owes_replies = True
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        if self.owed is not None:
            self.owed.add_replies(data)
        else:
            self.pump.write_soon(data)

    async def _end_with(self, error: ProtocolError, replies: list[bytes]) -> bool:
        """Send the last replies and a fatal error, after what is owed, and end the stream."""
        self.leave()
        data = b"".join([*replies, frames.error(error)])
        if self.owed is None or error is self.owed.error:
            self.output.write(data)
        else:
            self.owed.add_replies(data)
            await self.owed.wait_released()
        log.error("client(%s) - %s", self.peer, printable(str(error)))
        await self.output.end(self._bottom)
        return False

    def _owe(self, answer: OwedAnswer) -> None:
        """Answer a publish when it is safe."""
        if self.owed is None:
            self.owed = OwedAnswers(self._write_owed, self.close)
        self.owed.add(answer)

    def _write_owed(self, data: bytes, are_last: bool) -> None:
        if are_last:
            self.owed = None
        self.pump.write_soon(data)

    def _note_lost(self, error: OSError) -> None:
        """End the connection, which broke in a task that is not its own."""
        log.debug("client(%s) - connection lost: %s", self.peer, error)
        self.close()

    async def settle(self) -> None:
        """Wait until nothing is owed, and the client has taken it."""
        if self.owed is not None:
            await self.owed.wait_released()
            await self.output.drain()

    async def end_owed(self) -> None:
        """Send the error of a publish that failed after the connection had read on."""
        if self.owed is not None and self.owed.error is not None:
            await self._end_with(self.owed.error, [])

    def release(self) -> None:
        """Leave, and release everything: the tasks have ended."""
        with self.context.defects.fence("client", f"client({self.peer})"):
            self.leave()
        if self.owed is not None:
            self.owed.drop()
        self.transport.close()
        self.pump.close()
        self.context.admission.connections -= 1

    # Heartbeats

    def restart_heartbeats(self) -> None:
        """Start a heartbeat interval now."""
        interval_ms = self.identity.heartbeat_interval_ms
        if interval_ms is not None:
            self.heartbeats.restart(interval_ms / 1e3, self.context.clock.now_s())
            self._schedule_check(interval_ms / 1e3)

    def _schedule_check(self, interval_s: float) -> None:
        self.context.heartbeat_checks.schedule(self, self.heartbeats.next_check_s, interval_s)

    def check_heartbeat(self, now_s: float) -> None:
        """Send a heartbeat if one is due; close a connection that is silent or reads nothing."""
        interval_ms = self.identity.heartbeat_interval_ms
        if interval_ms is None or self.heartbeats.is_stopped:
            return
        finding = self.heartbeats.check(
            interval_ms / 1e3,
            now_s,
            commands=self.parser.commands,
            is_read=not self._owes_replies and self.owed is None,
            blocked_since_s=self.output.blocked_since_s,
        )
        self._schedule_check(interval_ms / 1e3)
        if not self.consumer.in_flight:
            self.consumer.in_flight.clear()  # an empty dict keeps the memory of its entries
        if finding is Finding.DUE:
            if not self.output.pending:  # a heartbeat would only queue behind that
                self.pump.write_now(frames.HEARTBEAT)
        elif finding is not Finding.FINE:
            log.info("client(%s) - %s", self.peer, finding.value)
            self.close()

    @property
    def state(self) -> ConnectionState:
        return self.parser.state
