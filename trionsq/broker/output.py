"""What a client is sent: replies and messages in one order of bytes.

`Output` writes at once as far as the socket takes the bytes. `MessagePump` turns deliveries into
frames: at the end of a turn, or for the task of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from trionsq.broker.inbox import Inbox
from trionsq.core.subscription import Delivery, Subscription
from trionsq.transports.transport import Transport
from trionsq.transports.turn import Turn

__all__ = ["MessagePump", "Output"]

# Deliveries on their way to the pump; they hold no frames yet.
_MAX_DELIVERIES: Final = 64
# Bodies of these deliveries: they may have been read from disk for this client alone. One delivery
# may wait whatever its size.
_MAX_DELIVERY_BYTES: Final = 4 * 1024 * 1024
# The bodies of smaller batches are not counted: their number is bound enough, and counting costs.
_UNCOUNTED_BYTES: Final = 64 * 1024
# Frames that the pump joins for one write, and writes before other tasks get their turn.
_WRITE_BYTES: Final = 256 * 1024
_MAX_WRITES: Final = 8
# The last frame gets this long to reach a client that still sends.
_END_S: Final = 1.0
_READ_BYTES: Final = 128 * 1024
# Deliveries written at the end of a turn, and the bodies of each.
_MAX_TURN_DELIVERIES: Final = 4
_MAX_TURN_DELIVERY_BYTES: Final = 256 * 1024
# Of more bytes the system call is not what costs: they are not kept until the turn ends.
_MAX_LATE_BYTES: Final = 16 * 1024


class Output:
    """The writing half of a connection.

    `write` never waits. Each writer checks `pending` afterwards, and waits in `drain` before it
    produces more. So the pending bytes are bounded by what each writer produces at once.

    Attributes:
        pending: bytes that the socket has not accepted yet.
        blocked_since_s: monotonic time of the last progress, None if nothing is pending.
    """

    __slots__ = ("_chunks", "_lock", "_send", "_transport", "blocked_since_s", "pending")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._send: Callable[[bytes | memoryview], int] = transport.send_nowait
        # A list, and a lock only when it is needed: few of thousands of connections ever wait.
        self._chunks: list[memoryview] = []
        self._lock: trio.Lock | None = None
        self.pending = 0
        self.blocked_since_s: float | None = None

    def switch_transport(self, transport: Transport) -> None:
        """Write to ``transport`` from now on. Nothing may be pending."""
        assert not self.pending
        self._transport = transport
        self._send = transport.send_nowait

    def end_stream(self) -> None:
        """End the stream. Nothing may be pending; whatever is written later is discarded."""
        assert not self.pending
        self._send = len
        self._transport.end_sending()

    async def end(self, bottom: Transport) -> None:
        """End the stream so that what is pending arrives, before the connection is closed.

        Closing a socket that has unread input resets the connection, and the reset may overtake
        the last frame. So for a moment the input is read and discarded, until the peer closes; it
        is not even decompressed: ``bottom`` is the transport below all layers.
        """
        with trio.move_on_after(_END_S):
            await self.drain()
            self.end_stream()
            while bottom.receive_nowait(_READ_BYTES) != b"":
                await bottom.wait_readable()

    def __repr__(self) -> str:
        return f"<Output pending={self.pending}>"

    def check(self) -> str | None:
        """Check the account of the pending bytes: a text about the fault, or None. Cheap."""
        has_chunks, is_blocked = bool(self._chunks), self.blocked_since_s is not None
        if self.pending < 0 or has_chunks != (self.pending > 0) or has_chunks != is_blocked:
            return (
                f"{self.pending} bytes are pending in {len(self._chunks)} chunks, "
                f"blocked since {self.blocked_since_s}"
            )
        return None

    def write(self, data: bytes) -> bool:
        """Write ``data`` after all earlier data, and return whether the socket has accepted it.

        Raises:
            OSError: the connection broke.
        """
        if not data:
            return not self.pending  # an empty chunk would look like a blocked socket
        if self.pending:
            self._chunks.append(memoryview(data))
            self.pending += len(data)
            return False
        sent = self._send(data)
        if sent == len(data):
            return True
        self._chunks.append(memoryview(data)[sent:])
        self.pending = len(data) - sent
        self.blocked_since_s = trio.current_time()
        return False

    async def drain(self) -> None:
        """Wait until nothing is pending. On cancellation the rest stays pending.

        Raises:
            OSError: the connection broke.
        """
        if self._lock is None:
            self._lock = trio.Lock()
        async with self._lock:
            while self._chunks:
                await self._transport.wait_writable()
                self._flush()

    def _flush(self) -> None:
        chunks = self._chunks
        done = 0
        for chunk in chunks:
            sent = self._send(chunk)
            if sent:
                self.pending -= sent
                self.blocked_since_s = trio.current_time()
            if sent < len(chunk):
                chunks[done] = chunk[sent:]
                break
            done += 1
        del chunks[:done]
        if not chunks:
            self.blocked_since_s = None


class _Wake:
    """Makes the message pump drain the output, without a message."""


_WAKE: Final = _Wake()


def _refuse_delivery(delivery: Delivery) -> bool:
    """Takes no deliveries: the client has gone."""
    return False


def _ignore(error: OSError) -> None:
    """Does nothing: the client has gone."""


class MessagePump:
    """The messages of one connection, from the channel's deliveries to frames.

    Attributes:
        inbox: deliveries that wait for the task, and wake-ups after which it drains the output.
        subscription: the connection's state as a consumer, also before SUB.
        turn_deliveries: deliveries that will be written at the end of the turn.
    """

    __slots__ = ("_inbox_bytes", "_is_in_turn", "_late", "_lost", "_output", "_turn", "inbox",
                 "subscription", "turn_deliveries")  # fmt: skip

    def __init__(
        self, output: Output, msg_timeout_s: float, turn: Turn, lost: Callable[[OSError], None]
    ) -> None:
        """``lost`` is called when the connection breaks in a turn, not in the task; see `close`."""
        self._output = output
        self._turn = turn
        self._lost = lost
        self.inbox = Inbox[Delivery | _Wake](_MAX_DELIVERIES)
        self._inbox_bytes = 0
        # Whether something is written when the turn ends, and the replies.
        self._is_in_turn = False
        self._late: list[bytes] = []
        self.turn_deliveries: list[Delivery] = []
        self.subscription = Subscription(self.offer_delivery, msg_timeout_s)

    def __repr__(self) -> str:
        return f"<MessagePump waiting={self.inbox.count}>"

    def offer_delivery(self, delivery: Delivery) -> bool:
        """Accept a delivery for writing; False if too much waits to be written."""
        deliveries = self.turn_deliveries
        if (
            not self._turn.is_open
            or len(deliveries) == _MAX_TURN_DELIVERIES
            or self.inbox.count
            or self._output.pending
            or (
                delivery.batch.bodies.nbytes > _UNCOUNTED_BYTES
                and delivery.nbytes > _MAX_TURN_DELIVERY_BYTES
            )
        ):
            return self._send_to_pump(delivery)
        deliveries.append(delivery)
        if not self._is_in_turn:
            self._is_in_turn = True
            self._turn.write_later(self._end_turn)
        return True

    def write_now(self, data: bytes) -> None:
        """Write, not in a task of the connection."""
        try:
            if not self._output.write(data):
                self.wake()  # it drains the output
        except OSError as error:
            self._lost(error)

    def write_soon(self, data: bytes) -> None:
        """Write in a turn at its end, else at once.

        A system call often wakes the process of the client, but not if that is still busy with the
        one before: so it costs less behind another.
        """
        if not self._turn.is_open or len(data) > _MAX_LATE_BYTES or self._output.pending:
            if self._late:
                data = b"".join([*self._late, data])
                self._late.clear()
            self.write_now(data)
            return
        self._late.append(data)
        if not self._is_in_turn:
            self._is_in_turn = True
            self._turn.write_later(self._end_turn)

    def _end_turn(self) -> None:
        """Write what came in the turn."""
        self._is_in_turn = False
        deliveries, late = self.turn_deliveries, self._late
        if not deliveries:
            if late:  # else another write took it along
                data = late[0] if len(late) == 1 else b"".join(late)
                late.clear()
                self.write_now(data)
            return
        if len(deliveries) == 1 and not late:
            self.write_now(self.frames(deliveries.pop()))
            return
        data = b"".join([*late, *map(self.frames, deliveries)])
        late.clear()
        deliveries.clear()
        if data:
            self.write_now(data)

    def _send_to_pump(self, delivery: Delivery) -> bool:
        if delivery.batch.bodies.nbytes <= _UNCOUNTED_BYTES:
            return self.inbox.offer(delivery)
        waiting = self._inbox_bytes
        nbytes = delivery.nbytes
        if waiting and waiting + nbytes > _MAX_DELIVERY_BYTES:
            return False
        if not self.inbox.offer(delivery):
            return False
        self._inbox_bytes = waiting + nbytes
        return True

    def wake(self) -> None:
        """Have the task drain the output. If its queue is full, it will do so anyway."""
        self.inbox.offer(_WAKE)

    def write_deliveries(self, item: Delivery | _Wake | None) -> None:
        """Write what was received from the `inbox`, and what waits there, up to a limit.

        Raises:
            OSError: the connection broke.
        """
        for _ in range(_MAX_WRITES):
            self._write_messages(item)
            item = None
            if self._output.pending or not self.inbox.count:
                break

    def _write_messages(self, item: Delivery | _Wake | None) -> None:
        """Write a delivery and what has come after it, up to a limit."""
        take = self.inbox.pop_item
        if item is None:
            item = take()
        parts: list[bytes] = []
        nbytes = 0
        while item is not None:
            if isinstance(item, Delivery):
                if item.batch.bodies.nbytes > _UNCOUNTED_BYTES:
                    self._inbox_bytes -= item.nbytes
                frame = self.frames(item)
                parts.append(frame)
                nbytes += len(frame)
            if nbytes >= _WRITE_BYTES:
                break
            item = take()
        if parts:
            self._output.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def frames(self, delivery: Delivery) -> bytes:
        """The frames of a delivery, without the messages that have left it since."""
        delivery.written = True
        if delivery.some_gone:
            present = self.subscription.present_ids(delivery)
            if not present:
                return b""
            segment = delivery.extract(present)
            segment.attempts -= 1
            return Delivery(segment, 0.0, 0.0).frames()
        return delivery.frames()

    def pop_unwritten(self) -> list[Delivery]:
        """Remove the deliveries that have not been written, the earliest first.

        One that the task was just handed is not among them: it will be written.
        """
        deliveries, self.turn_deliveries = self.turn_deliveries, []
        is_woken = False
        while (item := self.inbox.pop_item()) is not None:
            if isinstance(item, Delivery):
                if item.batch.bodies.nbytes > _UNCOUNTED_BYTES:
                    self._inbox_bytes -= item.nbytes
                deliveries.append(item)
            else:
                is_woken = True
        if is_woken:
            self.wake()
        return deliveries

    def close(self) -> None:
        """Take no more deliveries.

        This ends a cycle of references, so the pump and its buffers go with the connection.
        """
        self.subscription.offer = _refuse_delivery
        self._lost = _ignore
