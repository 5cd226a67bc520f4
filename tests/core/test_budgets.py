"""Work of single calls, counted: the same with ten and with ten thousand of what may grow."""

from __future__ import annotations

from random import Random

import pytest

from tests.core.helpers import MemoryBackend, batch, message_ids, run_out, segment, wall_ns
from trionsq.core.batch import Segment
from trionsq.core.channel import MAX_SCAN, ChannelState
from trionsq.core.containers import TimerQueue, free
from trionsq.core.deferred import Deferred
from trionsq.core.in_flight import MAX_DIRECT_LOOKUPS, MAX_LOOKUPS
from trionsq.core.queue import MessageQueue
from trionsq.core.subscription import Delivery, Subscription

FEW, MANY = 10, 10_000
numbers = pytest.mark.parametrize("count", [FEW, MANY])


class Counted(Subscription):
    """A consumer that notes when its table of messages in flight is looked at."""

    __slots__ = ("_table",)
    seen: set[Subscription] = set()  # noqa: RUF012  # for all of them

    @property
    def in_flight(self) -> dict[bytes, Delivery]:
        self.seen.add(self)
        return self._table

    @in_flight.setter
    def in_flight(self, table: dict[bytes, Delivery]) -> None:
        self._table = table


def crowd(count: int, each: int = 1) -> tuple[ChannelState, list[Counted]]:
    """A channel with consumers that have some messages in flight."""
    channel = ChannelState("c", 10**6, MemoryBackend(), Random(1))
    consumers = []
    for number in range(count):
        consumer = Counted(lambda delivery: True, msg_timeout_s=10.0)
        consumers.append(consumer)
        channel.add_subscription(consumer)
        channel.set_ready(consumer, each, 0.0)
        channel.put(segment(number * each, each), 0.0, wall_ns(0.0))
        channel.dispatch(0.0)
    assert channel.in_flight_count == count * each
    Counted.seen.clear()
    return channel, consumers


@numbers
def test_a_missed_fin_looks_at_few_consumers_at_once(count: int) -> None:
    """And then at a bounded number in each turn, until it knows."""
    channel, consumers = crowd(count)
    last = message_ids(count - 1, 1)
    missed = channel.finish(consumers[0], [b"?" * 16, *last], 1.0)
    assert missed is not None
    assert len(Counted.seen) <= MAX_DIRECT_LOOKUPS + 1
    while not missed.is_known:
        Counted.seen.clear()
        assert missed.search(100) == missed.is_known
        assert len(Counted.seen) <= 100
    assert missed.reasons() == [
        (b"?" * 16, "ID not in flight"),
        (last[0], "client does not own message"),
    ]


def test_a_missed_fin_of_the_only_one_with_messages_looks_at_nobody() -> None:
    """Whatever the number of consumers, if they have nothing in flight."""
    channel, consumers = crowd(1)
    for _ in range(MANY):
        channel.add_subscription(Counted(lambda delivery: True))
    missed = channel.finish(consumers[0], [b"?" * 16], 1.0)
    assert missed is not None
    assert missed.is_known
    assert Counted.seen == {consumers[0]}


def test_many_ids_and_many_messages_in_flight_end_a_turn_early() -> None:
    """A look-up is counted for each, not for each consumer."""
    channel, consumers = crowd(100, each=500)
    ids = [b"?%015d" % number for number in range(1000)]
    missed = channel.missed_ids(consumers[0], ids)
    Counted.seen.clear()
    assert not missed.search(MAX_LOOKUPS)
    assert len(Counted.seen) <= MAX_LOOKUPS // 500


def test_consumers_may_come_and_go_while_a_missed_fin_looks() -> None:
    """Who has left is not looked at, unless it still has the message in flight."""
    channel, consumers = crowd(100)
    (held,) = message_ids(90, 1)
    missed = channel.missed_ids(consumers[0], [held])
    for consumer in consumers[20:]:
        channel.remove_subscription(consumer, [], consumer is not consumers[90], 1.0)
    channel.add_subscription(Counted(lambda delivery: True))
    while not missed.is_known:
        missed.search(5)
    assert missed.reasons() == [(held, "client does not own message")]


@numbers
def test_a_scan_takes_back_a_bounded_number(count: int) -> None:
    """Of all that time out at the same moment; each scan asks for the next one at once."""
    channel, consumers = crowd(count)
    for consumer in consumers:
        consumer.rdy = 0
    scans = 0
    while channel.timeout_count < count:
        before = channel.timeout_count
        assert channel.scan(10.0, wall_ns(10.0)) <= MAX_SCAN + 1
        assert 0 < channel.timeout_count - before <= MAX_SCAN
        assert (channel.wake_at_s <= 10.0) == (channel.timeout_count < count)
        scans += 1
    assert scans <= 1 + 2 * count // MAX_SCAN
    assert (channel.in_flight_count, channel.depth) == (0, count)


@pytest.mark.parametrize(("size", "at_once"), [(16, MAX_SCAN), (64 * 1024, MAX_SCAN // 16)])
def test_a_scan_queues_a_bounded_number_and_size(size: int, at_once: int) -> None:
    """Of all deferred messages that are due at the same moment; the next scan goes on at once."""
    channel, _ = crowd(1)
    count = 3 * at_once
    for number in range(count):
        one = Segment(batch(10**6 + number, 1, (size,), defer_ms=500), 0, 1)
        channel.put(one, 0.0, wall_ns(0.0))
    while channel.deferred_count:
        before = channel.deferred_count
        channel.scan(0.5, wall_ns(0.5))
        assert 0 < before - channel.deferred_count <= at_once
        assert (channel.wake_at_s <= 0.5) == (channel.deferred_count > 0)
    assert channel.depth == count


@numbers
def test_a_scan_looks_at_nobody_for_whom_nothing_is_due(count: int) -> None:
    """One deferred message comes due beside any number of messages in flight."""
    channel, _ = crowd(count)
    channel.put(Segment(batch(10**6, 1, defer_ms=500), 0, 1), 0.0, wall_ns(0.0))
    Counted.seen.clear()
    channel.scan(0.5, wall_ns(0.5))
    assert (channel.deferred_count, channel.depth) == (0, 1)
    assert len(Counted.seen) == 0


def test_messages_that_stay_in_flight_are_looked_at_once() -> None:
    """Again only when something has left, for then their batch may be worth copying."""
    channel, (consumer,) = crowd(1, each=500)
    for delivery in set(consumer.in_flight.values()):
        delivery.written = True
    assert consumer.compact(1.0) == 500
    assert consumer.compact(2.0) == 0
    channel.finish(consumer, message_ids(0, 1), 3.0)
    assert consumer.compact(4.0) == 499
    assert consumer.compact(6.0) == 0


def test_a_look_that_ends_within_a_delivery_loses_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more messages in flight than one look takes, all come back when they time out."""
    for looks_max in range(1, 25):
        monkeypatch.setattr("trionsq.core.subscription._MAX_COMPACT_LOOKS", looks_max)
        channel, (consumer,) = crowd(1, each=20)
        for delivery in set(consumer.in_flight.values()):
            delivery.written = True
        channel.finish(consumer, message_ids(0, 17), 0.0)
        assert consumer.compact(5.0) == min(3, looks_max)
        consumer.rdy = 0
        channel.scan(10.0, wall_ns(10.0))
        assert (channel.timeout_count, channel.depth, channel.check()) == (3, 3, None)


@numbers
def test_a_disconnect_costs_the_same_in_any_crowd(count: int) -> None:
    """Of clients that wait for messages; what it costs to forget them is spread over all."""
    looks = 0

    class Waiting(Subscription):
        __slots__ = ("_gone",)

        @property
        def gone(self) -> bool:
            nonlocal looks
            looks += 1
            return self._gone

        @gone.setter
        def gone(self, gone: bool) -> None:
            self._gone = gone

    channel = ChannelState("c", 10, MemoryBackend(), Random(1))
    consumers = [Waiting(lambda delivery: True) for _ in range(count)]
    for consumer in consumers:
        channel.add_subscription(consumer)
        channel.set_ready(consumer, 1, 0.0)
    looks = 0
    for consumer in consumers:
        channel.remove_subscription(consumer, [], False, 0.0)
    assert not channel.waiting
    assert looks <= 3 * count


@numbers
def test_memory_is_freed_in_turns(count: int) -> None:
    """A queue, and messages that were deferred."""
    queue, deferred = MessageQueue(), Deferred()
    for number in range(count):
        queue.append(segment(number, 1))
        deferred.add_segment(segment(number, 1), number)
    assert run_out(free(queue)) == run_out(free(deferred)) == 1 + (count - 1) // 2000
    assert (len(queue), len(deferred)) == (0, 0)


def test_large_messages_are_freed_few_at_a_time() -> None:
    """The kernel takes its time, too."""
    queue = MessageQueue()
    for number in range(100):
        queue.append(segment(number, 1, (1024 * 1024,)))
    assert 6 <= run_out(free(queue)) <= 7


@numbers
def test_consumers_with_nothing_in_flight_end_a_turn_too(count: int) -> None:
    """An `empty` looks at each of them, at 2,000 in a turn."""
    channel, _ = crowd(1)
    for _ in range(count - 1):
        channel.add_subscription(Subscription(lambda delivery: True))
    turns = run_out(channel.empty())
    assert count // 2000 <= turns <= count // 2000 + 3


@numbers
def test_a_timer_costs_few_comparisons(count: int) -> None:
    """However many others there are; and each item is there once."""
    comparisons = 0

    class Time(float):
        def __lt__(self, other: float) -> bool:
            nonlocal comparisons
            comparisons += 1
            return float(self) < float(other)

        def __neg__(self) -> Time:
            return Time(-float(self))

    timers: TimerQueue[int] = TimerQueue()
    for number in range(count):
        timers.set(number, Time(number))
    comparisons = 0
    for number in range(100):
        timers.set(5, Time(number))
    assert len(timers) == count
    assert comparisons <= 100 * 3 * 15
