"""End-to-end latency: from a message's timestamp to its FIN, as quantiles over a sliding window.

FINs come in runs, and messages of one batch share a timestamp. So a record is a latency and the
number of messages that had it. While there are few records, quantiles are exact. More records are
counted in buckets whose width grows with the value, and the counts of any number of channels can be
added without a further error.

Spec: nsqd-internals, section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import ceil
from typing import Final

from trionsq.core.batch import Column
from trionsq.core.subscription import Delivery

__all__ = ["MAX_ERROR", "MAX_EXACT", "Latencies", "MergedLatencies", "quantiles"]

# Records kept exactly, in each half of the window.
MAX_EXACT: Final = 512
# Different latencies of several channels together that are kept exactly.
_MAX_MERGED_EXACT: Final = 8 * MAX_EXACT
# A bucket keeps the 7 highest bits of a value, so its width is at most 1/64 of the value.
_BITS: Final = 7
MAX_ERROR: Final = 1 / 128
"""The largest error of a value from a bucket, relative to the value."""


class _Half:
    """The latencies of one half of the window, with the number of messages for each."""

    __slots__ = ("buckets", "count", "exact", "longest_ns")

    def __init__(self) -> None:
        self.count = 0
        self.longest_ns = 0
        self.exact: list[tuple[int, int]] = []
        self.buckets: dict[int, int] = {}

    def record(self, latency_ns: int, count: int) -> None:
        self.count += count
        if latency_ns > self.longest_ns:
            self.longest_ns = latency_ns
        self.exact.append((latency_ns, count))
        if len(self.exact) > MAX_EXACT:
            self._to_buckets()

    def merge_into(self, merged: Counter[int]) -> None:
        """Add the number of messages of each latency."""
        if self.buckets:
            # The result is inexact anyway, and buckets merge faster.
            self._to_buckets()
            merged.update(self.buckets)
        else:
            for latency_ns, count in self.exact:
                merged[latency_ns] += count

    def _to_buckets(self) -> None:
        """Move the exact records to their buckets."""
        buckets = self.buckets
        get = buckets.get
        for latency_ns, count in self.exact:
            middle_ns = _middle_of_bucket(latency_ns)
            buckets[middle_ns] = get(middle_ns, 0) + count
        self.exact.clear()


def _middle_of_bucket(latency_ns: int) -> int:
    """Return the middle of the bucket of a latency; small latencies are their own bucket."""
    shift = latency_ns.bit_length() - _BITS
    return (latency_ns >> shift << shift) + (1 << shift >> 1) if shift > 0 else latency_ns


class Latencies:
    """The latencies of one channel."""

    __slots__ = ("_half_s", "_halves", "_now_ns", "_turn_s")

    def __init__(self, window_s: float, now_ns: Callable[[], int], now_s: float) -> None:
        """``window_s`` is above 0; ``now_ns`` is the wall clock, ``now_s`` monotonic."""
        self._half_s = window_s / 2
        self._now_ns = now_ns
        self._halves = [_Half(), _Half()]  # the older one first
        self._turn_s = now_s + self._half_s

    def __repr__(self) -> str:
        return f"<Latencies {' + '.join(str(half.count) for half in self._halves)}>"

    def _turn(self, now_s: float) -> None:
        """Drop records that are older than the window."""
        halves = int((now_s - self._turn_s) / self._half_s) + 1
        for _ in range(min(halves, 2)):
            self._halves = [self._halves[1], _Half()]
        self._turn_s += halves * self._half_s

    def record_finished(
        self, ids: Sequence[bytes], deliveries: Sequence[Delivery | None], now_s: float
    ) -> None:
        """Record a run of FINs: the ids, and the in-flight entry of each, None if it had none."""
        if now_s >= self._turn_s:
            self._turn(now_s)
        now_ns = self._now_ns()
        record = self._halves[1].record
        first = 0
        for delivery, run in groupby(deliveries):
            last = first + len(list(run))
            if delivery is not None:
                stamps = delivery.batch.stamps
                if stamps is None:
                    # No negative latencies after the clock was set back.
                    record(max(0, now_ns - delivery.batch.timestamp_ns), last - first)
                else:
                    # Neighbours were often published together.
                    for stamp, same in groupby(_stamps(stamps, delivery, ids[first:last])):
                        stamp_ns = int.from_bytes(stamp, signed=True)
                        record(max(0, now_ns - stamp_ns), len(list(same)))
            first = last

    def halves(self, now_s: float) -> list[_Half]:
        """Return both halves of the window."""
        if now_s >= self._turn_s:
            self._turn(now_s)
        return self._halves


def _stamps(stamps: Column, delivery: Delivery, ids: Sequence[bytes]) -> list[bytes]:
    """Return the timestamps of these messages, from a batch in which they differ."""
    place = delivery.ids.index(ids[0])
    if delivery.ids[place : place + len(ids)] == ids:  # the usual order of FINs
        first = delivery.first + place
        return stamps.slice(first, first + len(ids))
    of_id = dict(zip(delivery.ids, stamps.slice(delivery.first, delivery.last), strict=True))
    return [of_id[id_] for id_ in ids]


class MergedLatencies:
    """The latencies of several channels together. Channels are added one by one.

    The memory is bounded for any number of channels.

    Attributes:
        count: messages finished in the window.
    """

    __slots__ = ("_longest_ns", "_merged", "count")

    def __init__(self) -> None:
        self.count = 0
        self._longest_ns = 0
        # Messages by their latency.
        self._merged: Counter[int] = Counter()

    def add_channel(self, channel: Latencies, now_s: float) -> None:
        """Add the latencies of one channel."""
        for half in channel.halves(now_s):
            self.count += half.count
            self._longest_ns = max(self._longest_ns, half.longest_ns)
            half.merge_into(self._merged)
        if len(self._merged) > _MAX_MERGED_EXACT:
            buckets: Counter[int] = Counter()
            for latency_ns, count in self._merged.items():
                buckets[_middle_of_bucket(latency_ns)] += count
            self._merged = buckets

    def quantiles_ns(self, levels: Sequence[float]) -> list[int]:
        """Return the latencies in nanoseconds at the given quantiles, in their order.

        The quantile q of n latencies is the one at place ceil(q * n), in order of size; 0 if there
        are no latencies.
        """
        return _values(self._merged, self.count, self._longest_ns, levels)


def quantiles(
    channels: Iterable[Latencies], levels: Sequence[float], now_s: float
) -> tuple[int, list[int]]:
    """Return the messages finished in the window, and the quantiles of their latencies in ns."""
    merged = MergedLatencies()
    for channel in channels:
        merged.add_channel(channel, now_s)
    return merged.count, merged.quantiles_ns(levels)


def _values(
    merged: Counter[int], count: int, longest_ns: int, levels: Sequence[float]
) -> list[int]:
    result_ns = dict.fromkeys(levels, 0)
    ordered = iter(sorted(merged.items()))
    seen = value_ns = 0
    for quantile in sorted(result_ns):
        place = min(count, max(1, ceil(quantile * count)))
        if place == count:
            # The longest latency is known exactly, whatever its bucket.
            result_ns[quantile] = longest_ns
            continue
        while seen < place:
            value_ns, messages = next(ordered)
            seen += messages
        result_ns[quantile] = min(value_ns, longest_ns)
    return [result_ns[quantile] for quantile in levels]
