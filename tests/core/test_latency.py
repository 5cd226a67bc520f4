"""End-to-end latencies against exact quantiles. Spec: nsqd-internals, section 4."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.helpers import WALL_NS, MemoryBackend, batch, message_ids
from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.channel import ChannelState
from trionsq.core.latency import MAX_ERROR, MAX_EXACT, Latencies, MergedLatencies, quantiles
from trionsq.core.subscription import Delivery, Subscription

WINDOW_S = 10.0
QUANTILES = [1.0, 0.99, 0.5, 0.001]

runs = st.lists(st.tuples(st.integers(0, 10**13), st.integers(1, 600)), max_size=40)


def one_in_flight(latency_ns: int, count: int = 1) -> Delivery:
    """A delivery whose messages have this latency at the time ``WALL_NS``."""
    segment = Segment(batch(0, count), 0, count)
    segment.batch.timestamp_ns = WALL_NS - latency_ns
    return Delivery(segment, 0.0, 60.0)


def record(channel: Latencies, latency_ns: int, count: int, now_s: float = 0.0) -> None:
    delivery = one_in_flight(latency_ns, count)
    channel.record_finished(delivery.ids, [delivery] * count, now_s)


def recorder(now_ns: int = WALL_NS) -> Latencies:
    return Latencies(WINDOW_S, lambda: now_ns, 0.0)


def exact(latencies: list[int], wanted: list[float]) -> list[int]:
    """The reference: the values at their places in the order of all."""
    ordered = sorted(latencies)
    if not ordered:
        return [0] * len(wanted)
    return [ordered[max(1, ceil(quantile * len(ordered))) - 1] for quantile in wanted]


@given(runs)
def test_few_latencies_give_exact_quantiles(recorded: list[tuple[int, int]]) -> None:
    """The sample at the place ceil(q * n); a run of messages is so many samples."""
    channel = recorder()
    for latency_ns, count in recorded:
        record(channel, latency_ns, count)
    every = [latency_ns for latency_ns, count in recorded for _ in range(count)]
    assert quantiles([channel], QUANTILES, 0.0) == (len(every), exact(every, QUANTILES))


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.floats(0.1, 25), st.integers(1, 3))
def test_many_latencies_give_quantiles_of_bounded_error(
    seed: int, spread: float, channels: int
) -> None:
    """Whatever their distribution, of one channel or of several; the longest is exact."""
    random = Random(seed)
    recorders = [recorder() for _ in range(channels)]
    every = []
    for _ in range(3 * MAX_EXACT * channels):
        latency_ns = int(random.lognormvariate(10, spread / 5))
        record(random.choice(recorders), latency_ns, 1, random.choice([0.0, WINDOW_S / 2]))
        every.append(latency_ns)
    count, values = quantiles(recorders, QUANTILES, WINDOW_S / 2)
    assert count == len(every)
    assert values[0] == max(every)
    for value, right in zip(values, exact(every, QUANTILES), strict=True):
        assert abs(value - right) <= right * MAX_ERROR


def test_no_number_of_latencies_grows_it_without_bound() -> None:
    """What is kept is bounded by the buckets there are, not by the messages."""
    channel, random = recorder(), Random(1)
    for _ in range(20_000):
        record(channel, int(10 ** random.uniform(3, 6)), 1)
    [_, half] = channel.halves(0.0)
    octaves = 11  # in a factor of 1000, those cut at the ends included
    assert len(half.buckets) <= octaves * 64
    assert len(half.exact) <= MAX_EXACT


def test_no_number_of_channels_grows_a_merge_without_bound() -> None:
    """What is kept of all is bounded; the quantiles have the error of the buckets."""
    merged, random = MergedLatencies(), Random(1)
    latencies: list[int] = []
    for _ in range(3 * 8):
        channel = recorder()
        for _ in range(MAX_EXACT):
            latencies.append(int(10 ** random.uniform(3, 9)))
            record(channel, latencies[-1], 1)
        merged.add_channel(channel, 0.0)
        assert len(merged._merged) <= 8 * MAX_EXACT
    [right] = exact(latencies, [0.5])
    [value] = merged.quantiles_ns([0.5])
    assert abs(value - right) <= right * MAX_ERROR


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_the_window_is_two_halves_of_which_the_older_is_dropped(steps: list[int]) -> None:
    """So a message counts for at least half of the window, and at most the whole."""
    channel = recorder()
    times: list[int] = []
    now_s = 0
    for number, step in enumerate(steps):
        now_s += step
        record(channel, number, 1, now_s)
        times.append(now_s)
        half_s = int(WINDOW_S / 2)
        counted = [
            number for number, at_s in enumerate(times) if now_s // half_s - at_s // half_s <= 1
        ]
        assert quantiles([channel], [1.0, 0.5], now_s) == (
            len(counted),
            exact(counted, [1.0, 0.5]),
        )


def test_a_quiet_channel_forgets_too() -> None:
    """Looking at it is enough, no message need come."""
    channel = recorder()
    record(channel, 5, 3)
    assert quantiles([channel], [0.5], WINDOW_S - 0.1) == (3, [5])
    assert quantiles([channel], [0.5], WINDOW_S) == (0, [0])


@given(runs, runs)
def test_a_topic_is_the_merge_of_its_channels(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """As if all messages had been finished in one channel."""
    apart, together = [recorder(), recorder()], recorder()
    for channel, recorded in zip(apart, (first, second), strict=True):
        for latency_ns, count in recorded:
            record(channel, latency_ns, count)
            record(together, latency_ns, count)
    assert quantiles(apart, QUANTILES, 0.0) == quantiles([together], QUANTILES, 0.0)


def test_nothing_finished_is_nought() -> None:
    """Also of no channel at all."""
    assert quantiles([], QUANTILES, 0.0) == (0, [0, 0, 0, 0])
    assert quantiles([recorder()], [0.5], 0.0) == (0, [0])


def test_a_clock_set_back_gives_no_negative_latency() -> None:
    """The message was finished before it was published: at once."""
    channel = recorder(WALL_NS - 10)
    record(channel, 5, 1)
    assert quantiles([channel], [1.0], 0.0) == (1, [0])


@pytest.mark.parametrize(
    "finished",
    [[0, 1, 2, 3, 4], [1, 2], [4], [4, 3, 2, 1, 0], [0, 2, 4]],
    ids=["all", "some", "one", "backward", "with-gaps"],
)
def test_each_message_counts_with_its_own_time(finished: list[int]) -> None:
    """Also in a batch from disk, whose messages differ in it, whichever are finished."""
    ids = message_ids(0, 7)
    stamps = [(WALL_NS - 10 ** (place // 2)).to_bytes(8, signed=True) for place in range(7)]
    bodies = batch(0, 7).bodies
    mixed = MessageBatch(bodies, ListColumn(ids), WALL_NS - 1, stamps=ListColumn(stamps))
    delivery = Delivery(Segment(mixed, 1, 6), 0.0, 60.0)
    channel = recorder()
    other = one_in_flight(3, 2)
    found = [None, *[delivery] * len(finished), other, other, None]
    named = [b"x" * 16, *[delivery.ids[place] for place in finished], *other.ids, b"y" * 16]
    channel.record_finished(named, found, 0.0)
    latencies = [3, 3, *[10 ** ((place + 1) // 2) for place in finished]]
    wanted = [place / len(latencies) for place in range(1, len(latencies) + 1)]
    assert quantiles([channel], wanted, 0.0) == (len(latencies), exact(latencies, wanted))


def test_a_channel_records_what_is_finished() -> None:
    """Each message once, from its publishing on however often it was requeued; nothing else."""
    now_ns = WALL_NS + 1000
    channel = ChannelState("c", 100, MemoryBackend(), Random(1))
    channel.latencies = Latencies(WINDOW_S, lambda: now_ns, 0.0)
    channel.note_finished = channel.latencies.record_finished
    consumer = Subscription(lambda delivery: True)
    channel.add_subscription(consumer)
    channel.set_ready(consumer, 10, 0.0)
    one = batch(0, 3)
    channel.put(Segment(one, 0, 3), 0.0, WALL_NS)
    ids = message_ids(0, 3)
    channel.requeue(consumer, ids[0], 0, 0.0, WALL_NS)
    channel.touch(consumer, ids[1], 0.0, 900.0)
    assert quantiles([channel.latencies], [1.0], 0.0) == (0, [0])
    channel.finish(consumer, [*ids, ids[0], b"x" * 16], 0.0)
    assert channel.finish_count == 3
    assert quantiles([channel.latencies], [1.0, 0.1], 0.0) == (3, [1000, 1000])
