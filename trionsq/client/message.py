"""Messages and batches: what a program receives, iterates over and answers.

Answers (`finish`, `requeue`, `touch`) are not awaited: they are put into the connection's next
write, which happens as soon as the program awaits anything. So finishing a message costs no task
switch, a cancellation cannot interrupt it, and all answers to a batch leave in one system call.

Spec: client, sections 1 (message) and 5 (responses).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias

from trionsq.client.backoff import Outcome
from trionsq.client.codecs import Codec, T
from trionsq.client.errors import StoppedError
from trionsq.transports.runtime import checkpoint
from trionsq.wire.client import Columns
from trionsq.wire.commands import give_up

__all__ = ["Batch", "BatchIterator", "BatchOrigin", "BatchSource", "ConsumerStats"]
__all__ += ["Message", "MessageIterator"]

# A loop over messages that awaits nothing lets other tasks run at least this often.
_MAX_TURN_S: Final = 0.01


class BatchOrigin(Protocol):
    """The connection that a batch came from, and to which its answers go."""

    @property
    def address(self) -> str: ...
    @property
    def is_open(self) -> bool:
        """Whether answers can still reach nsqd."""

    def send_answers(
        self, batch: Batch, commands: bytes, count: int, outcome: Outcome | None
    ) -> bool:
        """Send commands that answer ``count`` messages; False if they cannot reach nsqd.

        ``outcome`` None: backoff ignores these answers.
        """

    def send_touch(self, batch: Batch, commands: bytes) -> bool:
        """Send TOUCH commands; False if they cannot reach nsqd."""

    def requeue_delay_s(self, attempts: int) -> float:
        """The delay of a message that is requeued without one."""


class Batch:
    """Messages that arrived together from one nsqd.

    Iterating gives `Message` objects; the lists are for work on many messages at once. The answers
    (`finish`, `requeue`, `touch`) are for the messages that have no answer yet.

    Attributes:
        ids: 16 hex digits each, unique for one nsqd and topic.
        bodies: what was published.
        timestamps_ns: time of publishing, in nanoseconds since the epoch.
        attempts: how often each was delivered, including this time.
        nsqd_address: ``host:port`` of the nsqd.
    """

    __slots__ = ("_open", "_origin", "attempts", "bodies", "ids", "open_count", "timestamps_ns")

    def __init__(self, origin: BatchOrigin, columns: Columns) -> None:
        self.timestamps_ns, self.attempts, self.ids, self.bodies = columns
        self.open_count = len(self.ids)
        self._origin = origin
        # 1 for each message without an answer; made when some have one and others have not.
        self._open: bytearray | None = None

    def __repr__(self) -> str:
        return f"<Batch {len(self)} from {self.nsqd_address}, {self.open_count} unanswered>"

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Message:
        return Message(self, range(len(self.ids))[index])

    def __iter__(self) -> Iterator[Message]:
        for index in range(len(self.ids)):
            yield Message(self, index)

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd that sent the messages."""
        return self._origin.address

    @property
    def is_answerable(self) -> bool:
        """Whether answers can still reach nsqd; if not, it will deliver the messages again."""
        return self._origin.is_open

    def is_open(self, index: int) -> bool:
        """Whether the message has no answer yet."""
        return bool(self.open_count) and (self._open is None or bool(self._open[index]))

    def open_ids(self) -> list[bytes]:
        """Ids of the messages without an answer."""
        if not self.open_count:
            return []
        if self._open is None:
            return self.ids
        return [id_ for id_, is_open in zip(self.ids, self._open, strict=True) if is_open]

    def finish(self) -> bool:
        """FIN: nsqd forgets the messages. False: the connection is gone, nsqd will redeliver."""
        ids = self.open_ids()
        if not ids:
            return True
        self.open_count = 0
        commands = b"FIN " + b"\nFIN ".join(ids) + b"\n"
        return self._origin.send_answers(self, commands, len(ids), Outcome.SUCCESS)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """REQ: nsqd delivers the messages again. False: the connection is gone; nsqd will do so
        after its message timeout.

        Args:
            delay_s: in seconds; None: default_requeue_delay x attempts (of the first).
            backoff: whether the consumer should slow down.
        """
        if delay_s is None:
            delay_s = self._origin.requeue_delay_s(self.attempts[0])
        ids = self.open_ids()
        if not ids:
            return True
        commands = b"".join([_requeue_command(id_, delay_s) for id_ in ids])
        self.open_count = 0
        outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
        return self._origin.send_answers(self, commands, len(ids), outcome)

    def touch(self) -> bool:
        """TOUCH: restart the timeouts of the open messages. False: the connection is gone."""
        ids = self.open_ids()
        return not ids or self._origin.send_touch(self, b"TOUCH " + b"\nTOUCH ".join(ids) + b"\n")

    def _close(self, index: int) -> bool:
        """Mark a message as answered; False if it was already."""
        if not self.is_open(index):
            return False
        if self._open is None:
            self._open = bytearray(b"\x01") * len(self.ids)
        self._open[index] = 0
        self.open_count -= 1
        return True


class Message(Generic[T]):
    """One message. The first `finish` or `requeue` counts, later ones do nothing.

    Attributes:
        id: 16 hex digits.
        body: what was published; of a consumer with a codec, what it made of that.
        timestamp_ns: time of publishing, in nanoseconds since the epoch.
        attempts: how often it was delivered, including this time.
        auto_response: whether `Consumer.run` answers for the handler. Set it to False to answer
            later, from anywhere.
    """

    __slots__ = (
        *("_batch", "_index", "_outcome"),
        *("attempts", "auto_response", "body", "id", "timestamp_ns"),
    )

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index
        self.id = batch.ids[index]
        self.body: T = batch.bodies[index]  # type: ignore[assignment]
        self.timestamp_ns = batch.timestamps_ns[index]
        self.attempts = batch.attempts[index]
        self.auto_response = True

    def __repr__(self) -> str:
        state = "" if self.is_open else ", answered"
        address = self.nsqd_address
        return f"<Message {self.id.decode()} from {address}, attempt {self.attempts}{state}>"

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd that sent it."""
        return self._batch.nsqd_address

    @property
    def is_open(self) -> bool:
        """Whether it has no answer yet."""
        return self._batch.is_open(self._index)

    @property
    def was_finished(self) -> bool:
        """Whether it has an answer, and that was its own `finish`, not the batch's."""
        return getattr(self, "_outcome", None) is Outcome.SUCCESS

    @property
    def is_answerable(self) -> bool:
        """Whether an answer can still reach nsqd; if not, nsqd delivers the message again."""
        return self._batch.is_answerable

    def finish(self) -> bool:
        """FIN: the message is done, nsqd forgets it.

        False: it was answered before, or the connection is gone and nsqd will redeliver it.
        """
        return self._answer(b"FIN %b\n" % self.id, Outcome.SUCCESS)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """REQ: nsqd delivers it again. False as for `finish`.

        Args:
            delay_s: in seconds; nsqd caps it at its --max-req-timeout. None:
                default_requeue_delay x attempts, at most max_requeue_delay.
            backoff: whether the consumer should slow down.
        """
        if delay_s is None:
            delay_s = self._batch._origin.requeue_delay_s(self.attempts)
        outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
        return self._answer(_requeue_command(self.id, delay_s), outcome)

    def dead_letter(self, reason: str, delay_s: float | None = None) -> bool:
        """REQ with a reason, of 1 to 200 printable characters: nsqd makes it a dead letter.

        An nsqd that keeps none requeues it with the delay, as of `requeue`. False as for `finish`.
        """
        delay_s = self._batch._origin.requeue_delay_s(self.attempts) if delay_s is None else delay_s
        return self._answer(give_up(self.id, round(delay_s * 1000), reason), Outcome.NEUTRAL)

    def touch(self) -> bool:
        """TOUCH: restart its timeout. False as for `finish`."""
        batch = self._batch
        return self.is_open and batch._origin.send_touch(batch, b"TOUCH %b\n" % self.id)

    def _answer(self, command: bytes, outcome: Outcome) -> bool:
        batch = self._batch
        if not batch._close(self._index):
            return False
        self._outcome = outcome
        return batch._origin.send_answers(batch, command, 1, outcome)


def _requeue_command(message_id: bytes, delay_s: float) -> bytes:
    if not 0 <= delay_s < 1e9:
        raise ValueError(f"a delay of {delay_s} s")
    return b"REQ %b %d\n" % (message_id, round(delay_s * 1000))


# Counting


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counts since the start; ``in_flight`` and ``connections`` are present values.

    Attributes:
        received: messages, counted again at each delivery.
        finished, requeued: answers.
        given_up: those of the finished that were delivered more than max_attempts times.
        refused: answers that nsqd refused, most often because they were late.
        in_flight: messages received and not answered.
        connections: subscribed connections.
    """

    received: int
    finished: int
    requeued: int
    given_up: int
    refused: int
    in_flight: int
    connections: int


# Iterating


class BatchSource(Protocol):
    """Where iterators get batches from: the consumer."""

    async def next_batch(self) -> Batch:
        """The next one; raises StoppedError after the last."""


class BatchIterator:
    """See `trionsq.client.Consumer.batches`."""

    def __init__(self, source: BatchSource, *, finish: bool) -> None:
        self._source = source
        self._finish = finish
        self._last: Batch | None = None

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> Batch:
        """The next batch. Always a checkpoint."""
        if self._finish and self._last is not None:
            self._last.finish()
        self._last = None
        try:
            self._last = batch = await self._source.next_batch()
        except StoppedError:
            raise StopAsyncIteration from None
        return batch


GiveUpUndecodable: TypeAlias = Callable[["Message", Exception], Awaitable[None]]


class MessageIterator(Generic[T]):
    """The messages of all batches. Several tasks may iterate at once.

    A checkpoint for each batch, and whenever there was none for 10 ms.
    """

    def __init__(
        self,
        source: BatchSource,
        codec: Codec[T] | None = None,
        give_up: GiveUpUndecodable | None = None,
    ) -> None:
        self._source = source
        self._decode = codec.decode if codec is not None else None
        self._give_up = give_up
        self._undecodable: deque[tuple[Message, Exception]] = deque()
        self._pending: deque[tuple[Batch, Iterator[Message]]] = deque()
        self._turn_ends_s = 0.0

    def __aiter__(self) -> MessageIterator[T]:
        return self

    async def __anext__(self) -> Message[T]:
        message = self.next_message_nowait()
        while message is None:
            if self._undecodable:
                await checkpoint()  # give_up need not be one
            if self._undecodable and self._give_up is not None:
                await self._give_up(*self._undecodable.popleft())
            elif self._pending:
                await checkpoint()
            else:
                try:
                    batch = await self._source.next_batch()
                except StoppedError:
                    raise StopAsyncIteration from None
                self._pending.append((batch, iter(batch)))
            self._turn_ends_s = time.perf_counter() + _MAX_TURN_S
            message = self.next_message_nowait()
        return message

    def next_message_nowait(self) -> Message[T] | None:
        """The next message, if there is one, it can be decoded, and no checkpoint is due."""
        if time.perf_counter() > self._turn_ends_s:
            return None
        while self._pending:
            batch, messages = self._pending[0]
            # After its connection has broken, nsqd redelivers the rest of a batch anyway.
            if batch.is_answerable:
                for message in messages:
                    if message.is_open:
                        if self._decode is None:
                            return message  # type: ignore[return-value]
                        return self._decoded(message)
            self._pending.popleft()
        return None

    def _decoded(self, message: Message) -> Message[T] | None:
        try:
            if self._decode is not None:
                message.body = self._decode(message.body)  # type: ignore[assignment]
        except Exception as error:
            self._undecodable.append((message, error))
            return None
        return message  # type: ignore[return-value]
