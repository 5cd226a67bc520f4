"""What nsq_to_http and nsq_to_nsq share: consuming until a signal, and a log of response times.

Messages that wait long for their answer are touched, so that nsqd does not redeliver them; the
original's tools do not. A signal ends the receiving. Messages in progress then get a limited time;
those without an answer after that are returned to nsqd.

Spec: tools, nsq_to_http (status-every); tools, nsq_to_nsq (status-every).
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

import trio

from trionsq.client import Batch, Consumer
from trionsq.tools.common import on_signal

__all__ = ["InProgress", "OnBatch", "RequestLog", "RequestTimes", "forward"]

log = logging.getLogger("trionsq.tools")

# Together with the end of the consumers (5 s) below 30 s, after which service managers kill.
_DRAIN_S: Final = 20.0
# Unanswered messages are touched this many times within nsqd's --msg-timeout.
_TOUCHES: Final = 3
# An nsqd with a shorter timeout may be found at any time: look at the timeout this often.
_TIMEOUT_CHECK_S: Final = 1.0
# Answered batches that may be kept besides the unanswered ones before the list is cleaned.
_MAX_SPARE: Final = 64
# Percentiles are of the last requests, at most this many.
_MAX_SAMPLES: Final = 10_000

OnBatch: TypeAlias = Callable[[Consumer, Batch], Awaitable[None]]
"""Called with each batch. It may return before all messages of the batch are answered."""


class InProgress:
    """Counts pieces of work that were begun and have not ended."""

    def __init__(self) -> None:
        self._count = 0
        self._emptied = trio.Event()

    def __repr__(self) -> str:
        return f"<InProgress {self._count}>"

    def add_one(self) -> None:
        """A piece of work begins."""
        self._count += 1

    def remove_one(self) -> None:
        """A piece of work has ended."""
        self._count -= 1
        if not self._count:
            self._emptied.set()
            self._emptied = trio.Event()

    async def wait_until_none(self) -> None:
        """Wait until all work has ended."""
        while self._count:
            await self._emptied.wait()


class _UnansweredBatches:
    """The batches with unanswered messages, and a bounded number of answered ones."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._max_batches = _MAX_SPARE

    def __len__(self) -> int:
        return len(self._batches)

    def add_batch(self, batch: Batch) -> None:
        """Keep a batch; now and then drop those that have been answered."""
        self._batches.append(batch)
        if len(self._batches) > self._max_batches:
            self._drop_answered()

    async def touch_all(self) -> None:
        """Restart the timeouts of the messages, one batch in each turn of the event loop."""
        self._drop_answered()
        for batch in list(self._batches):
            batch.touch()
            await trio.lowlevel.checkpoint()

    def _drop_answered(self) -> None:
        self._batches = [b for b in self._batches if b.open_count and b.is_answerable]
        self._max_batches = 2 * len(self._batches) + _MAX_SPARE


class _Intake:
    """One consumer, from its connections to its end."""

    def __init__(self, consumer: Consumer, on_batch: OnBatch, in_progress: InProgress) -> None:
        self._consumer = consumer
        self._on_batch = on_batch
        self._in_progress = in_progress
        self._connecting = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._is_connected = False
        self._unanswered = _UnansweredBatches()

    def stop(self) -> None:
        """Receive no more batches."""
        scope = self._receiving if self._is_connected else self._connecting
        scope.cancel()

    async def run(self) -> None:
        """Receive until `stop`, then wait for the work in progress. Leaving the consumer returns
        unanswered messages to nsqd.

        Raises:
            ClientError, ProtocolError: the first connections could not be made.
        """
        with self._connecting:
            async with self._consumer as consumer, trio.open_nursery() as nursery:
                self._is_connected = True
                nursery.start_soon(self._touch_regularly)
                with self._receiving:
                    async for batch in consumer.batches():
                        # nsqd redelivers the messages of a broken connection.
                        if batch.is_answerable:
                            self._unanswered.add_batch(batch)
                            await self._on_batch(consumer, batch)
                consumer.max_in_flight = 0
                with trio.move_on_after(_DRAIN_S):
                    await self._in_progress.wait_until_none()
                nursery.cancel_scope.cancel()

    async def _touch_regularly(self) -> None:
        touched_s = trio.current_time()
        while True:
            due_s = touched_s + self._consumer.msg_timeout_s / _TOUCHES
            await trio.sleep_until(min(due_s, trio.current_time() + _TIMEOUT_CHECK_S))
            if trio.current_time() >= due_s:
                touched_s = trio.current_time()
                await self._unanswered.touch_all()


async def forward(
    consumers: Sequence[Consumer], on_batch: OnBatch, in_progress: InProgress
) -> None:
    """Call *on_batch* with the batches of all consumers until SIGINT or SIGTERM.

    Then wait up to 20 s for the work *in_progress*, and return unanswered messages to nsqd. A
    second signal ends the process at once.

    Raises:
        ClientError, ProtocolError: the first connections of a consumer could not be made.
    """
    intakes = [_Intake(consumer, on_batch, in_progress) for consumer in consumers]

    def stop(_signum: int) -> None:
        for intake in intakes:
            intake.stop()

    async with trio.open_nursery() as signals:
        await signals.start(on_signal, stop)
        async with trio.open_nursery() as nursery:
            for intake in intakes:
                nursery.start_soon(intake.run)
        signals.cancel_scope.cancel()


class RequestTimes:
    """Response times of one kind of requests, as a log line after every so many of them."""

    def __init__(self, name: str, every: int) -> None:
        """Log a line about *name* after each *every* requests; 0: never."""
        self._name = name
        self._every = every
        self._count = 0
        self._times_s: deque[float] = deque(maxlen=max(1, min(every, _MAX_SAMPLES)))

    def add_requests(self, response_s: float, count: int = 1) -> None:
        """Add *count* requests with this response time. Logs at most one line."""
        if self._every <= 0:
            return
        self._times_s.extend(itertools.repeat(response_s, min(count, _MAX_SAMPLES)))
        lines = self._count // self._every
        self._count += count
        if self._count // self._every > lines:
            log.info("%s", self.line())

    def line(self) -> str:
        """``[name]: finished 250 - 99th: 2.00ms - 95th: 1.00ms - avg: 0.50ms``."""
        ordered = sorted(self._times_s)
        times_s = (_percentile(ordered, 0.99), _percentile(ordered, 0.95), _average(ordered))
        high, upper, average = (f"{time_s * 1000:.2f}ms" for time_s in times_s)
        return (
            f"[{self._name}]: finished {self._count}"
            f" - 99th: {high} - 95th: {upper} - avg: {average}"
        )


class RequestLog:
    """Response times of all requests and, with several addresses, of each address."""

    def __init__(self, addresses: Iterable[str], every: int) -> None:
        """Log a line after each *every* requests; 0: never."""
        names = list(dict.fromkeys(addresses))
        self._all = RequestTimes("aggregate", every)
        self._each = {name: RequestTimes(name, every if len(names) > 1 else 0) for name in names}

    def add_requests(self, address: str, response_s: float, count: int = 1) -> None:
        """Add *count* requests to one of the addresses."""
        self._each[address].add_requests(response_s, count)
        self._all.add_requests(response_s, count)


def _percentile(ordered: list[float], share: float) -> float:
    """The value that this share of the ordered values does not exceed; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def _average(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
