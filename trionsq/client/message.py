"""Messages, one by one and in batches, and what may be answered to nsqd.

Answers are not awaited: they are put into the connection's next write, which happens as soon as
the program awaits anything. So finishing a message costs no task switch, cancellation can't fall
into it, and the answers to a batch leave in one system call.

Spec: client, sections 1 (message) and 5 (responses).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from trionsq.client.backoff import Outcome
from trionsq.wire.client import Columns

__all__ = ["Batch", "Message", "Source"]


class Source(Protocol):
    """Where a batch came from, and where its answers go."""

    @property
    def address(self) -> str: ...
    @property
    def is_open(self) -> bool:
        """Whether nsqd can still be told."""

    def answer(self, batch: Batch, commands: bytes, count: int, outcome: Outcome | None) -> bool:
        """Send commands that answer ``count`` messages; whether nsqd can still be told.

        ``outcome`` None: there is nothing to learn from it for backoff.
        """

    def touch(self, commands: bytes) -> bool:
        """Send TOUCH commands; whether nsqd can still be told."""

    def requeue_delay_s(self, attempts: int) -> float:
        """The delay when none is given."""


class Batch:
    """Messages that came together from one nsqd.

    Iterating gives `Message` objects; the lists serve those who work on many at once. The answers
    (`finish`, `requeue`, `touch`) are for the messages that have none yet.

    Attributes:
        ids: 16 hex digits each, unique for one nsqd and topic.
        bodies: what was published.
        timestamps_ns: when, in nanoseconds since the epoch.
        attempts: how often it was delivered, this time included.
        nsqd_address: ``host:port`` of the nsqd.
    """

    __slots__ = ("_open", "_source", "attempts", "bodies", "ids", "open_count", "timestamps_ns")

    def __init__(self, source: Source, columns: Columns) -> None:
        self.timestamps_ns, self.attempts, self.ids, self.bodies = columns
        self.open_count = len(self.ids)
        self._source = source
        # A 1 for each message without an answer; made when they differ.
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
        """``host:port`` of the nsqd that they came from."""
        return self._source.address

    @property
    def is_answerable(self) -> bool:
        """Whether nsqd can still be told; else it will deliver them again."""
        return self._source.is_open

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
        """Finish them: nsqd forgets them. False: it can't be told, and will deliver them again."""
        ids = self.open_ids()
        if not ids:
            return True
        self.open_count = 0
        commands = b"FIN " + b"\nFIN ".join(ids) + b"\n"
        return self._source.answer(self, commands, len(ids), Outcome.SUCCESS)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """Have them delivered again. False: nsqd can't be told, and does so in its own time.

        Args:
            delay_s: in seconds; None: default_requeue_delay x attempts (of the first).
            backoff: whether the consumer is to slow down.
        """
        if delay_s is None:
            delay_s = self._source.requeue_delay_s(self.attempts[0])
        ids = self.open_ids()
        if not ids:
            return True
        commands = b"".join([_requeue(id_, delay_s) for id_ in ids])
        self.open_count = 0
        outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
        return self._source.answer(self, commands, len(ids), outcome)

    def touch(self) -> bool:
        """Start the time-outs of those without an answer anew. False: nsqd can't be told."""
        ids = self.open_ids()
        return not ids or self._source.touch(b"TOUCH " + b"\nTOUCH ".join(ids) + b"\n")

    def _close(self, index: int) -> bool:
        """Mark one as answered; whether it was not yet."""
        if not self.is_open(index):
            return False
        if self._open is None:
            self._open = bytearray(b"\x01") * len(self.ids)
        self._open[index] = 0
        self.open_count -= 1
        return True


class Message:
    """One message. The first of `finish` and `requeue` counts, later ones do nothing.

    Attributes:
        id: 16 hex digits.
        body: what was published.
        timestamp_ns: when, in nanoseconds since the epoch.
        attempts: how often it was delivered, this time included.
        auto_response: whether `Consumer.run` answers for the handler. Set it to False to answer
            later, from anywhere.
    """

    __slots__ = ("_batch", "_index", "attempts", "auto_response", "body", "id", "timestamp_ns")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index
        self.id = batch.ids[index]
        self.body = batch.bodies[index]
        self.timestamp_ns = batch.timestamps_ns[index]
        self.attempts = batch.attempts[index]
        self.auto_response = True

    def __repr__(self) -> str:
        state = "" if self.is_open else ", answered"
        where = self.nsqd_address
        return f"<Message {self.id.decode()} from {where}, attempt {self.attempts}{state}>"

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd that it came from."""
        return self._batch.nsqd_address

    @property
    def is_open(self) -> bool:
        """Whether it has no answer yet."""
        return self._batch.is_open(self._index)

    def finish(self) -> bool:
        """FIN: it is done, nsqd forgets it.

        False: it had an answer, or the connection is gone and nsqd will deliver it again.
        """
        return self._answer(b"FIN %b\n" % self.id, Outcome.SUCCESS)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """REQ: have it delivered again. False as for `finish`.

        Args:
            delay_s: in seconds; nsqd caps it at its --max-req-timeout. None:
                default_requeue_delay x attempts, at most max_requeue_delay.
            backoff: whether the consumer is to slow down.
        """
        if delay_s is None:
            delay_s = self._batch._source.requeue_delay_s(self.attempts)
        outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
        return self._answer(_requeue(self.id, delay_s), outcome)

    def touch(self) -> bool:
        """TOUCH: start its time-out anew. False as for `finish`."""
        return self.is_open and self._batch._source.touch(b"TOUCH %b\n" % self.id)

    def _answer(self, command: bytes, outcome: Outcome) -> bool:
        batch = self._batch
        return batch._close(self._index) and batch._source.answer(batch, command, 1, outcome)


def _requeue(message_id: bytes, delay_s: float) -> bytes:
    if not 0 <= delay_s < 1e9:
        raise ValueError(f"a delay of {delay_s} s")
    return b"REQ %b %d\n" % (message_id, round(delay_s * 1000))
