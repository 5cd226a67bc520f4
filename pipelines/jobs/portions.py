"""Sorted pieces cut into portions that are published, and confirmed, as one; at a rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pipelines.jobs.pace import Pace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Portions"]


class Portions:
    """Cuts; the caller publishes.

    Attributes:
        given: messages handed out so far.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        pace: Pace,
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*batches*: to be handed out in this order. *stopping*, once set, ends a portion early."""
        self.given = 0
        self._batches = batches
        self._pace = pace
        self._stopping = stopping
        self._clock = clock
        self._rest: pa.RecordBatch | None = None

    def has_more(self) -> bool:
        """Whether there is anything left to hand out; fetches it."""
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._batches, None)
            if self._rest is None:
                return False
        return True

    def next(
        self, messages: int, limit_s: float, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """A portion: about so many messages, or what may go within a time."""
        begun_s, left = self._clock(), messages
        while left > 0 and self._clock() - begun_s < limit_s and self.has_more():
            assert self._rest is not None
            count = min(left, self._pace.slice_max or left, self._rest.num_rows)
            if self._stopping.wait(self._pace.wait_s(count, self._clock())):
                return
            part, self._rest = self._rest.slice(0, count), self._rest.slice(count)
            yield part.select(columns)
            self.given += count
            left -= count
