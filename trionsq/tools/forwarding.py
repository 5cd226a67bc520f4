"""From consumers to somewhere else, until a signal: what nsq_to_http and nsq_to_nsq share.

What is slow to be answered is touched, so that nsqd does not deliver it again meanwhile; the
original's tools don't. A signal ends the taking; what is under way is waited for, for a while; what
then has no answer goes back to nsqd.
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

__all__ = ["RequestLog", "RequestTimes", "Take", "UnderWay", "forward"]

log = logging.getLogger("trionsq.tools")

# With the end of the consumers it stays below the 30 s after which a service manager kills.
_DRAIN_S: Final = 20.0
# So often within nsqd's --msg-timeout what has no answer is touched.
_TOUCHES: Final = 3
# An nsqd with a shorter one may be found at any time: the next touch is thought over so often.
_LOOK_S: Final = 1.0
# Batches that are remembered though they may be answered, besides as many as are not.
_SPARE_MAX: Final = 64
# Percentiles of the last so many, however rarely they are shown.
_SAMPLES_MAX: Final = 10_000

Take: TypeAlias = Callable[[Consumer, Batch], Awaitable[None]]
"""Begins with a batch, and need not answer for all of it before it returns."""


class UnderWay:
    """How much was begun and not ended."""

    def __init__(self) -> None:
        self._count = 0
        self._ended = trio.Event()

    def __repr__(self) -> str:
        return f"<UnderWay {self._count}>"

    def begin(self) -> None:
        """One more."""
        self._count += 1

    def end(self) -> None:
        """One less."""
        self._count -= 1
        if not self._count:
            self._ended.set()
            self._ended = trio.Event()

    async def wait_for_none(self) -> None:
        """Wait until all have ended."""
        while self._count:
            await self._ended.wait()


class _Unanswered:
    """The batches of which something has no answer, and a few others."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._count_max = _SPARE_MAX

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> None:
        """One more, which has no answer yet."""
        self._batches.append(batch)
        if len(self._batches) > self._count_max:
            self._drop()

    async def touch(self) -> None:
        """Start the time-outs of their messages anew. A turn for each batch."""
        self._drop()
        for batch in list(self._batches):
            batch.touch()
            await trio.lowlevel.checkpoint()

    def _drop(self) -> None:
        self._batches = [b for b in self._batches if b.open_count and b.is_answerable]
        self._count_max = 2 * len(self._batches) + _SPARE_MAX


class _Intake:
    """One consumer, from its connections to its end."""

    def __init__(self, consumer: Consumer, take: Take, under_way: UnderWay) -> None:
        self._consumer = consumer
        self._take = take
        self._under_way = under_way
        self._entering = trio.CancelScope()
        self._taking = trio.CancelScope()
        self._is_connected = False
        self._unanswered = _Unanswered()

    def stop(self) -> None:
        """Take no more."""
        scope = self._taking if self._is_connected else self._entering
        scope.cancel()

    async def run(self) -> None:
        """Take until `stop`, wait, give back. Raises ClientError, ProtocolError."""
        with self._entering:
            async with self._consumer as consumer, trio.open_nursery() as nursery:
                self._is_connected = True
                nursery.start_soon(self._touch)
                with self._taking:
                    async for batch in consumer.batches():
                        # That of a broken connection comes again.
                        if batch.is_answerable:
                            self._unanswered.add(batch)
                            await self._take(consumer, batch)
                consumer.max_in_flight = 0
                with trio.move_on_after(_DRAIN_S):
                    await self._under_way.wait_for_none()
                nursery.cancel_scope.cancel()

    async def _touch(self) -> None:
        touched_s = trio.current_time()
        while True:
            due_s = touched_s + self._consumer.msg_timeout_s / _TOUCHES
            await trio.sleep_until(min(due_s, trio.current_time() + _LOOK_S))
            if trio.current_time() >= due_s:
                touched_s = trio.current_time()
                await self._unanswered.touch()


async def forward(consumers: Sequence[Consumer], take: Take, under_way: UnderWay) -> None:
    """Hand the batches of all consumers to *take* until SIGINT or SIGTERM.

    Then wait up to 20 s for what is *under_way*, and give back to nsqd what has no answer. A
    second signal ends the process at once.

    Raises:
        ClientError, ProtocolError: the first connections of a consumer could not be made.
    """
    intakes = [_Intake(consumer, take, under_way) for consumer in consumers]

    def stop(_signum: int) -> None:
        for intake in intakes:
            intake.stop()

    async with trio.open_nursery() as signals:
        await signals.start(on_signal, stop)
        async with trio.open_nursery() as nursery:
            for intake in intakes:
                nursery.start_soon(intake.run)
        signals.cancel_scope.cancel()


# Logging of response times


class RequestTimes:
    """The times of one kind of requests."""

    def __init__(self, name: str, every: int) -> None:
        """A line about *name* after each *every* requests; 0: none."""
        self._name = name
        self._every = every
        self._count = 0
        self._times_s: deque[float] = deque(maxlen=max(1, min(every, _SAMPLES_MAX)))

    def add(self, response_s: float, count: int = 1) -> None:
        """Take note of *count* requests that took so long. No more than one line, however many."""
        if self._every <= 0:
            return
        self._times_s.extend(itertools.repeat(response_s, min(count, _SAMPLES_MAX)))
        lines = self._count // self._every
        self._count += count
        if self._count // self._every > lines:
            log.info("%s", self.line())

    def line(self) -> str:
        """``[name]: finished 250 - 99th: 2.00ms - 95th: 1.00ms - avg: 0.50ms``."""
        ordered = sorted(self._times_s)
        figures = (_percentile(ordered, 0.99), _percentile(ordered, 0.95), _average(ordered))
        high, upper, average = (f"{figure_s * 1000:.2f}ms" for figure_s in figures)
        return (
            f"[{self._name}]: finished {self._count}"
            f" - 99th: {high} - 95th: {upper} - avg: {average}"
        )


class RequestLog:
    """The times of all requests, and if there are several addresses of each of them."""

    def __init__(self, addresses: Iterable[str], every: int) -> None:
        """A line after each *every* requests; 0: none."""
        names = list(dict.fromkeys(addresses))
        self._all = RequestTimes("aggregate", every)
        self._each = {name: RequestTimes(name, every if len(names) > 1 else 0) for name in names}

    def add(self, address: str, response_s: float, count: int = 1) -> None:
        """Take note of *count* requests to one of the addresses."""
        self._each[address].add(response_s, count)
        self._all.add(response_s, count)


def _percentile(ordered: list[float], share: float) -> float:
    """The value that so many of them do not exceed; 0 of none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def _average(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
