"""A client connection: a nursery with two sibling tasks, the ioloop and the message pump.

The ioloop reads, acts on commands and writes their answers; the message pump writes messages.
When either ends, for whatever reason, the other is cancelled, and the connection with it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from trionsq.broker.heartbeats import Finding, Heartbeats
from trionsq.broker.inbox import Inbox
from trionsq.broker.output import Output
from trionsq.core.subscription import Delivery, Subscription
from trionsq.transports.layered import BrokenStreamError
from trionsq.transports.tls import TlsInfo
from trionsq.transports.transport import Transport
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError
from trionsq.wire.identify import Negotiated
from trionsq.wire.lines import LineTooLong
from trionsq.wire.server import ServerParser
from trionsq.wire.states import ConnectionState

if TYPE_CHECKING:
    from trionsq.broker.auth import ClientAuth
    from trionsq.broker.broker import Broker
    from trionsq.broker.channel import Channel

__all__ = ["Client"]

log = logging.getLogger("trionsq")

# 64 KiB to 1 MiB measured equal; smaller reads cost publishers a quarter of their rate.
_READ_NBYTES_MAX: Final = 128 * 1024
# Full reads in a row before other tasks get their turn.
_READS_MAX: Final = 4
# A read that does not fill the buffer took all there was. To wait for more costs two system calls;
# to give other tasks a turn and then ask again costs one, if the peer is quick or the broker busy.
# Whether that is so is tried after this many reads.
_READS_BEFORE_ASKING: Final = 16
# Commands acted on before other tasks get their turn; a run of PUBs or FINs is one. What a read
# brings may be 32,000 NOPs, and compressed that is next to nothing for who sends it.
_COMMANDS_MAX: Final = 128
# Deliveries on their way to the pump; they hold no frames yet.
_INBOX_DELIVERIES_MAX: Final = 64
# Their bodies may be there for this client only, read from disk. At least one delivery may wait.
_INBOX_NBYTES_MAX: Final = 4 * 1024 * 1024
# Those of smaller batches are not counted: their number is bound enough, and counting costs.
_LIGHT_NBYTES_MAX: Final = 64 * 1024
# Frames that the pump joins for one write, and writes before other tasks get their turn.
_WRITE_NBYTES_MAX: Final = 256 * 1024
_WRITES_MAX: Final = 8
# Deliveries that go out with the answers to the commands which brought the credit.
_OWN_TURN_MAX: Final = 4
# Each of them has at most so many bytes in bodies.
_OWN_TURN_NBYTES_MAX: Final = 256 * 1024
# A fatal error's frame gets this long to reach a client that still sends.
_LAST_WORDS_S: Final = 1.0
# Characters of a client's mistake that the log shows.
_SHOWN_MAX: Final = 200


def _shown(error: ProtocolError) -> str:
    """Its text may be what the client sent, of any length, and meant to look like other lines."""
    text = str(error)
    if len(text) > _SHOWN_MAX:
        text = f"{text[:_SHOWN_MAX]}..."
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _refuse(delivery: Delivery) -> bool:
    """What takes the deliveries of a client that has gone."""
    return False


class _Wake:
    """Makes the message pump drain the output, without a message."""


_WAKE: Final = _Wake()


class Client:
    """One connection.

    Attributes:
        broker: it is connected to.
        peer, host: the remote address and its host part.
        parser: the commands, and the protocol state.
        output: what the client is sent.
        identity: what IDENTIFY settled.
        consumer: the subscription's state, also before SUB.
        channel: subscribed to, None before SUB.
        auth: what AUTH has brought, None before.
        transport: the connection, with what was laid over it.
        tls: what was agreed on, None without TLS.
        snappy, deflate: whether the connection is compressed so.
        pub_counts: messages published, by topic.
        connected_s: time of the connection, in whole seconds since the epoch.
        heartbeats: when heartbeats go out, and when the client has been silent for too long.
    """

    # Thousands of idle connections are usual, so each does without a __dict__.
    __slots__ = (
        "__weakref__",
        "_bottom",
        "_cancel_scope",
        "_inbox",
        "_inbox_nbytes",
        "_owes_answers",
        "_own_turn",
        "auth",
        "broker",
        "channel",
        "connected_s",
        "consumer",
        "deflate",
        "heartbeats",
        "host",
        "identity",
        "output",
        "parser",
        "peer",
        "pub_counts",
        "snappy",
        "tls",
        "transport",
    )

    def __init__(self, broker: Broker, transport: Transport) -> None:
        self.broker = broker
        self.peer = transport.peer
        self.host = transport.host
        self.parser = ServerParser(broker.limits, broker.tls_required)
        self.output = Output(transport)
        self.identity = Negotiated.default(broker.features, transport.host)
        self._inbox = Inbox[Delivery | _Wake](_INBOX_DELIVERIES_MAX)
        self._inbox_nbytes = 0
        # Deliveries to this client while its own commands are acted on; None in other turns.
        self._own_turn: list[Delivery] | None = None
        self.consumer = Subscription(self._offer, self.identity.msg_timeout_ms / 1e3)
        self.channel: Channel | None = None
        self.auth: ClientAuth | None = None
        self.pub_counts: Counter[str] = Counter()
        self.connected_s = broker.clock.now_ns() // 10**9
        self.transport = self._bottom = transport
        self.tls: TlsInfo | None = None
        self.snappy = self.deflate = False
        self._cancel_scope = trio.CancelScope()
        self._owes_answers = False
        self.heartbeats = Heartbeats(broker.clock.now_s())
        self.restart_heartbeats()

    def __repr__(self) -> str:
        return f"<Client {self.peer} {self.parser.state.name} {self.consumer!r} {self.output!r}>"

    async def serve(self) -> None:
        """The connection's life. Errors end it, never the broker."""
        log.info("TCP: new client(%s)", self.peer)
        try:
            closed_before = self._cancel_scope.cancel_called
            async with trio.open_nursery() as nursery:
                self._cancel_scope = nursery.cancel_scope
                nursery.start_soon(self._sibling, self._ioloop)
                nursery.start_soon(self._sibling, self._message_pump)
                if closed_before:
                    self.close()
        except* Exception as errors:
            # It costs this client and no other.
            self.broker.defects.note("client", f"client({self.peer})", errors)
        finally:
            with self.broker.defects.fence("client", f"client({self.peer})"):
                self._leave()
            self.transport.close()
            # The one cycle of references: without it client and buffers go with the last of them.
            self.consumer.offer = _refuse
            self.broker.admission.connections -= 1
            log.info("client(%s) - closed", self.peer)

    async def _sibling(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except BrokenStreamError as error:
            log.error("client(%s) - %s", self.peer, error)
        except OSError as error:
            log.debug("client(%s) - connection lost: %s", self.peer, error)
        finally:
            self._cancel_scope.cancel()

    def use(self, transport: Transport) -> None:
        """Go on with ``transport``, which lies over the one of now. Nothing is pending."""
        self.output.use(transport)
        self.transport = transport

    def close(self) -> None:
        """End the connection without a frame."""
        self._cancel_scope.cancel()

    def _leave(self) -> None:
        self.broker.clients.pop(self, None)
        self.broker.looks.remove(self)
        if self.channel is not None:
            self.channel.remove_client(self, self.broker.requeue_on_disconnect)
            self.channel = None

    # Reading

    async def _ioloop(self) -> None:
        transport, parser, output = self.transport, self.parser, self.output
        reads = 0
        ask_again = False
        await transport.wait_readable()
        while True:
            data = transport.receive_nowait(_READ_NBYTES_MAX)
            if data is None:
                ask_again = False
                await transport.wait_readable()
                continue
            if not data:
                await self._end_of_input()
                return
            nbytes = len(data)
            parser.receive(data)
            data = None  # an idle connection holds nothing
            while True:
                parser.pause_after(_COMMANDS_MAX)
                if not await self._act():
                    return
                if self._owes_answers:
                    # Not for messages: whoever takes those slowly must still be heard.
                    if output.pending:
                        await output.drain()
                    self._owes_answers = False
                    transport = self.transport  # IDENTIFY may have laid something over it
                if not parser.paused:
                    break
                await trio.lowlevel.checkpoint()
            reads += 1
            if nbytes == _READ_NBYTES_MAX:
                # What is upgraded may have cost its sender a thousandth.
                if reads % _READS_MAX == 0 or transport is not self._bottom or parser.is_walking:
                    await trio.lowlevel.checkpoint()
            elif ask_again or reads % _READS_BEFORE_ASKING == 0:
                ask_again = True
                await trio.lowlevel.checkpoint()
            else:
                await transport.wait_readable()

    async def _act(self) -> bool:
        """Act on what was read, to the parser's pause; False if that ends the connection."""
        replies: list[bytes] = []
        next_event = self.parser.next_event
        handlers = self.broker.handlers
        self._own_turn = []
        try:
            while (event := next_event()) is not None:
                reply = handlers[type(event)](self, event)
                if reply is None:
                    continue
                if not isinstance(reply, bytes):
                    # A command that must wait: what was read after it waits in the parser.
                    self._end_turn(replies)
                    self._owes_answers = True
                    reply = await reply
                    self._own_turn = []
                replies.append(reply)
        except ProtocolError as error:
            replies.append(frames.error(error))
            self.output.write(b"".join(replies))
            await self._last_words(error)
            return False
        except LineTooLong:
            log.error("client(%s) - command line too long", self.peer)
            self._end_turn(replies)
            return False
        self._end_turn(replies)
        return True

    def _end_turn(self, replies: list[bytes]) -> None:
        """Write the answers, and the messages that the commands gave credit for."""
        deliveries, self._own_turn = self._own_turn, None
        if replies:
            self._owes_answers = True
        if deliveries:
            replies.extend(map(self._frames, deliveries))
        if replies and not self.output.write(b"".join(replies)) and not self._owes_answers:
            self._inbox.offer(_WAKE)  # the pump drains it
        replies.clear()

    async def close_at_end_of_input(self) -> None:
        """While a command waits: close when the peer has, unless it sends something more."""
        while not self.parser.buffered:
            await self.transport.wait_readable()
            try:
                data = self.transport.receive_nowait(_READ_NBYTES_MAX)
            except OSError:
                data = b""
            if data == b"":
                self.close()
                return
            if data is not None:
                self.parser.receive(data)

    async def _end_of_input(self) -> None:
        error = self.parser.end_of_input()
        if error is not None:
            self.output.write(frames.error(error))
            await self._last_words(error)

    async def _last_words(self, error: ProtocolError) -> None:
        """See to it that an error frame arrives.

        Closing a socket that has unread input resets the connection and may take the frame with
        it, so the input is read and thrown away for a moment, until the peer closes. It is not
        even inflated.
        """
        log.error("client(%s) - %s", self.peer, _shown(error))
        self._leave()
        transport = self._bottom
        with trio.move_on_after(_LAST_WORDS_S):
            await self.output.drain()
            self.output.end()
            while transport.receive_nowait(_READ_NBYTES_MAX) != b"":
                await transport.wait_readable()

    # Writing messages

    def _offer(self, delivery: Delivery) -> bool:
        own_turn = self._own_turn
        if (
            own_turn is None
            or len(own_turn) == _OWN_TURN_MAX
            or self._inbox
            or self.output.pending
            or (
                delivery.batch.bodies.nbytes > _LIGHT_NBYTES_MAX
                and delivery.nbytes > _OWN_TURN_NBYTES_MAX
            )
        ):
            return self._hand_over(delivery)
        own_turn.append(delivery)
        return True

    def _hand_over(self, delivery: Delivery) -> bool:
        if delivery.batch.bodies.nbytes <= _LIGHT_NBYTES_MAX:
            return self._inbox.offer(delivery)
        waiting = self._inbox_nbytes
        nbytes = delivery.nbytes
        if waiting and waiting + nbytes > _INBOX_NBYTES_MAX:
            return False
        if not self._inbox.offer(delivery):
            return False
        self._inbox_nbytes = waiting + nbytes
        return True

    async def _message_pump(self) -> None:
        output, consumer = self.output, self.consumer
        while True:
            item: Delivery | _Wake | None = await self._inbox.receive()
            for _ in range(_WRITES_MAX):
                self._write_messages(item)
                item = None
                if output.pending or not self._inbox:
                    break
            if output.pending:
                await output.drain()
            if consumer.blocked and self.channel is not None:
                self.channel.core.unblock(consumer, self.broker.clock.now_s())

    def _write_messages(self, item: Delivery | _Wake | None) -> None:
        """Write a delivery and what has come after it, up to a limit."""
        take = self._inbox.pop_item
        if item is None:
            item = take()
        parts: list[bytes] = []
        nbytes = 0
        while item is not None:
            if isinstance(item, Delivery):
                if item.batch.bodies.nbytes > _LIGHT_NBYTES_MAX:
                    self._inbox_nbytes -= item.nbytes
                frame = self._frames(item)
                parts.append(frame)
                nbytes += len(frame)
            if nbytes >= _WRITE_NBYTES_MAX:
                break
            item = take()
        if parts:
            self.output.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def _frames(self, delivery: Delivery) -> bytes:
        delivery.written = True
        if delivery.some_gone:
            present = self.consumer.present_ids(delivery)
            if not present:
                return b""
            segment = delivery.extract(present)
            segment.attempts -= 1
            return Delivery(segment, 0.0, 0.0).frames()
        return delivery.frames()

    def unwritten(self) -> list[Delivery]:
        """Take the deliveries that have not been written."""
        deliveries, self._own_turn = self._own_turn or [], None
        while (item := self._inbox.pop_item()) is not None:
            if isinstance(item, Delivery):
                deliveries.append(item)
        return deliveries

    # By time

    def restart_heartbeats(self) -> None:
        """Count the heartbeat interval from now on."""
        interval_ms = self.identity.heartbeat_interval_ms
        if interval_ms is not None:
            self.heartbeats.restart(interval_ms / 1e3, self.broker.clock.now_s())
            self._schedule_look(interval_ms / 1e3)

    def _schedule_look(self, interval_s: float) -> None:
        self.broker.looks.schedule(self, self.heartbeats.next_look_s, interval_s)

    def look_after(self, now_s: float) -> None:
        """Send a heartbeat that is due; close a connection that is silent, or takes nothing.

        It is called when the connection comes out of the broker's `looks`.
        """
        interval_ms = self.identity.heartbeat_interval_ms
        if interval_ms is None or self.heartbeats.is_stopped:
            return
        finding = self.heartbeats.look(
            interval_ms / 1e3,
            now_s,
            commands=self.parser.commands,
            is_read=not self._owes_answers,
            blocked_since_s=self.output.blocked_since_s,
        )
        self._schedule_look(interval_ms / 1e3)
        if not self.consumer.in_flight:
            self.consumer.in_flight.clear()  # lets go of what a dictionary keeps for its return
        if finding is Finding.DUE:
            self._heartbeat()
        elif finding is not Finding.FINE:
            log.info("client(%s) - %s", self.peer, finding.value)
            self.close()

    def _heartbeat(self) -> None:
        output = self.output
        if output.pending:
            return  # more would only queue behind what is stuck
        try:
            if not output.write(frames.HEARTBEAT):
                self._inbox.offer(_WAKE)  # if that is full, the pump has reason to drain anyway
        except OSError as error:
            log.debug("client(%s) - connection lost: %s", self.peer, error)
            self.close()

    @property
    def state(self) -> ConnectionState:
        return self.parser.state
