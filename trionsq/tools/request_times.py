"""How long requests take, as a log line every so many of them.

Spec: tools, nsq_to_http (status-every); tools, nsq_to_nsq (status-every).
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

__all__ = ["RequestTimes", "Status"]

log = logging.getLogger("trionsq.tools")

# Percentiles of the last so many, however rarely they are shown.
_SAMPLES_MAX: Final = 10_000


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


class Status:
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
