"""A channel's decisions, one by one (trionsq.core.channel)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from tests.core.helpers import (
    MemoryBackend,
    batch,
    contents,
    message_ids,
    reasons,
    run_out,
    segment,
    wall_ns,
)
from trionsq.core.batch import Segment
from trionsq.core.channel import (
    MAX_DIRECT_MESSAGES,
    PUT_BUSY,
    PUT_QUEUED,
    PUT_STORED,
    ChannelState,
)
from trionsq.core.containers import NEVER
from trionsq.core.deferred import Deferred
from trionsq.core.dispatch import MAX_DELIVERY_MESSAGES
from trionsq.core.in_flight import COMPACT_AFTER_S
from trionsq.core.queue import BackendError
from trionsq.core.recovered import MAX_DELIVERY_BYTES
from trionsq.core.subscription import Delivery, Subscription


class Client:
    """A consumer whose deliveries are kept, and which can be full."""

    def __init__(
        self, channel: ChannelState, rdy: int = 0, msg_timeout_s: float = 10.0, sample_rate: int = 0
    ) -> None:
        self.deliveries: list[Delivery] = []
        self.full = False
        self.offers = 0
        self.consumer = Subscription(self._offer, msg_timeout_s, sample_rate)
        self.channel = channel
        channel.add_subscription(self.consumer)
        if rdy:
            channel.set_ready(self.consumer, rdy, 0.0)

    def _offer(self, delivery: Delivery) -> bool:
        self.offers += 1
        if not self.full:
            self.deliveries.append(delivery)
        return not self.full

    @property
    def ids(self) -> list[bytes]:
        return [id_ for delivery in self.deliveries for id_ in delivery.ids]

    def finish(self, ids: list[bytes], now_s: float = 0.0) -> list[bytes]:
        return [id_ for id_, _ in reasons(self.channel.finish(self.consumer, ids, now_s))]

    def why(self, id_: bytes) -> str:
        """What FIN, REQ and TOUCH of a message that is not in flight here are told."""
        [(_, why)] = reasons(self.channel.missed_ids(self.consumer, [id_]))
        return why


def new_channel(
    mem: int = 1000, backend: MemoryBackend | None = None, seed: int = 1
) -> ChannelState:
    return ChannelState("c", mem, backend or MemoryBackend(), Random(seed))


def put(channel: ChannelState, first: int, count: int, sizes: Sequence[int] = (16,)) -> None:
    """What the topic does, with the task's step behind it if the task was woken."""
    woken: list[bool] = []
    channel.wake = lambda: woken.append(True)
    channel.put(segment(first, count, sizes), 0.0, wall_ns(0.0))
    while woken:
        woken.clear()
        channel.dispatch(0.0)


def test_messages_go_to_who_has_credit() -> None:
    """No RDY, no message; RDY is a ceiling on what is in flight."""
    channel = new_channel()
    client = Client(channel)
    put(channel, 0, 5)
    assert (client.ids, channel.depth, channel.message_count) == ([], 5, 5)
    channel.set_ready(client.consumer, 3, 0.0)
    assert (client.ids, channel.depth, channel.in_flight_count) == (message_ids(0, 3), 2, 3)
    channel.set_ready(client.consumer, 4, 0.0)
    assert client.ids == message_ids(0, 4)
    channel.set_ready(client.consumer, 1, 0.0)
    assert client.finish(message_ids(0, 3)) == []
    assert client.ids == message_ids(0, 4)
    assert client.finish(message_ids(3, 1)) == []
    assert client.ids == message_ids(0, 5)
    assert (channel.finish_count, client.consumer.finish_count) == (4, 4)
    assert client.consumer.message_count == 5


def test_a_waiting_client_is_served_when_messages_come() -> None:
    """As many as it has credit for; the others wait."""
    channel = new_channel()
    client = Client(channel, rdy=2)
    put(channel, 0, 3)
    assert (client.ids, channel.depth) == (message_ids(0, 2), 1)


def test_the_task_is_not_woken_for_messages_that_nobody_waits_for() -> None:
    """Waking the task costs; with no client in credit, or paused, segments are only queued."""
    channel = new_channel()
    channel.wake = lambda: pytest.fail("woken for nothing")
    channel.put(segment(0, 1), 0.0, wall_ns(0.0))
    client = Client(channel, rdy=1)
    channel.put(segment(1, 1), 0.0, wall_ns(0.0))
    channel.pause()
    assert client.finish(message_ids(0, 1)) == []
    channel.put(segment(2, 1), 0.0, wall_ns(0.0))
    assert channel.store.memory.depth == 2


@pytest.mark.parametrize("mem", [0, 2])
def test_a_waiting_client_gets_what_went_to_the_backend(mem: int) -> None:
    """Also when memory kept nothing (--mem-queue-size=0)."""
    channel = new_channel(mem)
    client = Client(channel, rdy=9)
    put(channel, 0, 5)
    assert (sorted(client.ids), channel.depth) == (message_ids(0, 5), 0)


def test_a_put_that_is_refused_changes_nothing() -> None:
    """All or nothing; not counted."""
    channel = new_channel(3, MemoryBackend(refuses=True))
    with pytest.raises(BackendError):
        channel.put(segment(0, 4), 0.0, wall_ns(0.0))
    assert (channel.message_count, channel.depth) == (0, 0)


def test_clients_share_in_turn() -> None:
    """One delivery each, the longest waiting first."""
    channel = new_channel(10_000)
    clients = [Client(channel, rdy=2500) for _ in range(3)]
    put(channel, 0, 5 * MAX_DELIVERY_MESSAGES)
    sizes = [[len(one.ids) for one in client.deliveries] for client in clients]
    assert sizes == [[MAX_DELIVERY_MESSAGES] * 2, [MAX_DELIVERY_MESSAGES] * 2,
                     [MAX_DELIVERY_MESSAGES]]  # fmt: skip


@pytest.mark.parametrize("sizes", [(100_000,), (100_000, 99_999)])
def test_a_delivery_is_bounded_in_bytes(sizes: tuple[int, ...]) -> None:
    """Large messages come in small deliveries, and any message comes."""
    channel = new_channel()
    client = Client(channel, rdy=10)
    put(channel, 0, 5, sizes)
    put(channel, 5, 1, (2 * MAX_DELIVERY_BYTES,))
    assert [len(one.ids) for one in client.deliveries] == [2, 2, 1, 1]


def test_fin_of_what_is_not_in_flight_here() -> None:
    """The failing ids come back in order, and the reason tells whose they are."""
    channel = new_channel()
    one, other = Client(channel, rdy=2), Client(channel, rdy=2)
    put(channel, 0, 4)
    a, b, c, d = message_ids(0, 4)
    assert (one.ids, other.ids) == ([a, b], [c, d])
    assert one.finish([c, a, a, b"?" * 16, b]) == [c, a, b"?" * 16]
    assert one.why(c) == "client does not own message"
    assert one.why(a) == "ID not in flight"
    assert (channel.finish_count, channel.in_flight_count) == (2, 2)


def test_requeue_puts_the_message_at_the_tail() -> None:
    """With its attempts; and credit is served at once."""
    channel = new_channel()
    client = Client(channel, rdy=1)
    put(channel, 0, 3)
    assert channel.requeue(client.consumer, message_ids(0, 1)[0], 0, 1.0, wall_ns(1.0))
    assert client.ids == message_ids(0, 2)
    assert not channel.requeue(client.consumer, message_ids(0, 1)[0], 0, 1.0, wall_ns(1.0))
    client.finish(message_ids(1, 1))
    client.finish(message_ids(2, 1))
    assert client.ids == [*message_ids(0, 3), *message_ids(0, 1)]
    assert [one.attempts for one in client.deliveries] == [1, 1, 1, 2]
    assert (channel.requeue_count, client.consumer.requeue_count) == (1, 1)


def test_requeue_with_a_delay_waits_for_its_time() -> None:
    """It counts as deferred, gives credit back, and a scan is asked for at its deadline."""
    channel = new_channel()
    client = Client(channel, rdy=1)
    put(channel, 0, 1)
    assert channel.requeue(client.consumer, message_ids(0, 1)[0], 1500, 0.0, wall_ns(0.0))
    assert (channel.deferred_count, channel.in_flight_count, channel.depth) == (1, 0, 0)
    assert channel.wake_at_s <= 1.5
    channel.scan(1.499, wall_ns(1.499))
    assert channel.deferred_count == 1
    assert channel.wake_at_s == pytest.approx(1.5)
    channel.scan(1.5, wall_ns(1.5))
    assert (channel.deferred_count, client.ids) == (0, message_ids(0, 1) * 2)
    assert client.deliveries[1].attempts == 2


def test_a_timeout_gives_credit_back() -> None:
    """The message goes to the tail, and the client gets the next one at once."""
    channel = new_channel()
    client = Client(channel, rdy=1)
    put(channel, 0, 2)
    channel.scan(9.999, wall_ns(9.999))
    assert channel.timeout_count == 0
    channel.scan(10.0, wall_ns(10.0))
    assert (channel.timeout_count, client.ids, channel.depth) == (1, message_ids(0, 2), 1)
    assert client.finish(message_ids(0, 1)) == message_ids(0, 1)


def test_a_timeout_comes_in_time_amid_a_stream_of_later_messages() -> None:
    """Each delivery sets a check only if it is earlier than the one that is set."""
    channel = new_channel()
    client = Client(channel, rdy=2)
    put(channel, 0, 1)
    [held] = client.ids
    for number in range(1, 200):
        now_s = number / 10
        if now_s >= channel.wake_at_s:
            channel.scan(now_s, wall_ns(now_s))
        if channel.timeout_count:
            break
        channel.put(segment(number, 1), now_s, wall_ns(now_s))
        client.finish([id_ for id_ in client.ids if id_ != held], now_s)
    assert now_s == 10.0


def test_alarms_never_come_late() -> None:
    """`wake_at` gets the earliest deadline, or the time to copy out old messages."""
    times: list[float] = []
    channel = new_channel()
    channel.wake_at = times.append
    slow = Client(channel, rdy=1)
    quick = Client(channel, rdy=1, msg_timeout_s=1.0)
    put(channel, 0, 1)
    assert (slow.ids, times) == (message_ids(0, 1), [COMPACT_AFTER_S])
    put(channel, 1, 1)
    assert (quick.ids, times) == (message_ids(1, 1), [COMPACT_AFTER_S, 1.0])
    channel.scan(0.5, wall_ns(0.5))
    assert times[-1] == channel.wake_at_s == 1.0
    quick.finish(message_ids(1, 1))
    slow.finish(message_ids(0, 1))
    channel.scan(1.0, wall_ns(1.0))
    channel.scan(COMPACT_AFTER_S, wall_ns(COMPACT_AFTER_S))
    assert channel.wake_at_s == float("inf")


def test_a_deleted_channel_asks_for_no_scan() -> None:
    """The alarm that was set is called off, and none is set by what the clients still send."""
    times: list[float] = []
    channel = new_channel()
    channel.wake_at = times.append
    client = Client(channel, rdy=2)
    put(channel, 0, 2)
    channel.close()
    assert times[-1] == float("inf")
    called_off = len(times)
    channel.requeue(client.consumer, client.ids[0], 100, 1.0, wall_ns(1.0))
    assert len(times) == called_off
    put(channel, 2, 1)
    assert (len(client.ids), len(times)) == (2, called_off), "nothing is delivered any more"


def test_the_alarm_comes_in_time_to_copy_out_what_is_old() -> None:
    """Also if a later scan was asked for already; after the scan the rest pins no batch."""
    channel = new_channel()
    channel.put(Segment(batch(90, 1, defer_ms=5000), 0, 1), 0.0, wall_ns(0.0))
    assert channel.wake_at_s == 5.0
    client = Client(channel, rdy=9)
    put(channel, 0, 9)
    assert channel.wake_at_s == COMPACT_AFTER_S
    (delivery,) = client.deliveries
    delivery.written = True
    client.finish(message_ids(0, 8))
    channel.scan(2.0, wall_ns(2.0))
    assert delivery.batch.count == 1


def test_touch_reaches_the_consumer() -> None:
    """And says no for what is not in flight there."""
    channel = new_channel()
    client, other = Client(channel, rdy=1), Client(channel)
    put(channel, 0, 1)
    (id_,) = message_ids(0, 1)
    assert channel.touch(client.consumer, id_, 8.0, 900.0)
    assert not channel.touch(other.consumer, id_, 8.0, 900.0)
    channel.scan(17.9, wall_ns(17.9))
    assert channel.timeout_count == 0
    channel.scan(18.0, wall_ns(18.0))
    assert channel.timeout_count == 1


def test_what_a_gone_client_had_stays_until_its_deadline() -> None:
    """Then it is delivered to another one, and the gone client is forgotten."""
    channel = new_channel()
    gone = Client(channel, rdy=2)
    put(channel, 0, 2)
    channel.remove_subscription(gone.consumer, [], False, 1.0)
    other = Client(channel, rdy=5)
    assert (other.ids, channel.in_flight_count) == ([], 2)
    assert other.finish(message_ids(0, 1)) == message_ids(0, 1)
    assert other.why(message_ids(0, 1)[0]) == "client does not own message"
    channel.scan(10.0, wall_ns(10.0))
    assert (other.ids, channel.timeout_count) == (message_ids(0, 2), 2)
    assert [one.attempts for one in other.deliveries] == [2]
    assert not channel.in_flight._disconnected


def test_a_gone_client_may_give_back_at_once() -> None:
    """With --requeue-on-disconnect."""
    channel = new_channel()
    gone, other = Client(channel, rdy=2), Client(channel)
    put(channel, 0, 2)
    channel.remove_subscription(gone.consumer, [], True, 1.0)
    channel.set_ready(other.consumer, 5, 1.0)
    assert other.ids == message_ids(0, 2)
    assert other.deliveries[0].attempts == 2


def test_what_was_never_written_goes_back_to_the_head() -> None:
    """In order, its attempts unchanged, but for what left the delivery meanwhile."""
    channel = new_channel()
    gone = Client(channel, rdy=3)
    put(channel, 0, 2)
    put(channel, 2, 3)
    unwritten = list(gone.deliveries)
    gone.finish(message_ids(1, 1))
    put(channel, 5, 1)
    channel.remove_subscription(gone.consumer, unwritten, False, 1.0)
    queued = []
    while channel.store.memory:
        queued += contents(channel.store.memory.pop_segment(99, 10**6))
    assert [(id_, attempts) for id_, _, attempts in queued] == [
        (id_, 0) for id_ in [*message_ids(0, 1), *message_ids(2, 1), *message_ids(4, 2)]
    ]
    assert channel.in_flight_count == 1


def test_an_idle_channel_forgets_clients_that_left() -> None:
    """Also those that waited for messages, paused or not."""
    channel = new_channel()
    for _ in range(10):
        client = Client(channel, rdy=1)
        channel.remove_subscription(client.consumer, [], False, 0.0)
    assert not channel.waiting
    assert not channel.in_flight.subscriptions


def test_a_full_client_loses_its_turn_not_its_messages() -> None:
    """What it did not take goes to others, in order; it is served again when it has room."""
    channel = new_channel()
    full, other = Client(channel), Client(channel)
    full.full = True
    channel.set_ready(full.consumer, 5, 0.0)
    put(channel, 0, 2)
    assert (channel.depth, channel.in_flight_count, full.consumer.blocked) == (2, 0, True)
    channel.set_ready(full.consumer, 6, 0.0)
    assert (channel.depth, full.offers) == (2, 1)
    channel.set_ready(other.consumer, 1, 0.0)
    assert other.ids == message_ids(0, 1)
    full.full = False
    channel.unblock(full.consumer, 0.0)
    assert full.ids == message_ids(1, 1)


def test_empty_gives_credit_back() -> None:
    """A client at its RDY waits again, and is served."""
    channel = new_channel()
    client = Client(channel, rdy=1)
    put(channel, 0, 2)
    run_out(channel.empty())
    assert list(channel.waiting) == [client.consumer]
    put(channel, 5, 1)
    assert client.ids[-1:] == message_ids(5, 1)


def test_a_requeued_message_goes_to_another_client_that_waits() -> None:
    """Also if the one that gave it back wants no more."""
    channel = new_channel()
    one, other = Client(channel, rdy=1), Client(channel)
    put(channel, 0, 1)
    channel.set_ready(one.consumer, 0, 0.0)
    channel.set_ready(other.consumer, 1, 0.0)
    assert channel.requeue(one.consumer, message_ids(0, 1)[0], 0, 0.0, wall_ns(0.0))
    assert other.ids == message_ids(0, 1)


def test_pause_stops_deliveries_only() -> None:
    """FIN, time-outs and requeues go on; unpause serves at once."""
    channel = new_channel()
    client = Client(channel, rdy=1)
    put(channel, 0, 3)
    channel.pause()
    client.finish(message_ids(0, 1))
    assert (client.ids, channel.depth) == (message_ids(0, 1), 2)
    channel.unpause(1.0)
    assert client.ids == message_ids(0, 2)
    channel.pause()
    channel.scan(11.0, wall_ns(11.0))
    assert (channel.timeout_count, channel.depth) == (1, 2)


def test_empty_drops_everything_but_credit() -> None:
    """Waiting, in flight, deferred, and what a gone client left; late FINs fail."""
    channel = new_channel(2)
    client, gone = Client(channel, rdy=2), Client(channel, rdy=1)
    put(channel, 0, 7)
    channel.remove_subscription(gone.consumer, [], False, 0.0)
    channel.requeue(client.consumer, message_ids(0, 1)[0], 100, 0.0, wall_ns(0.0))
    held = list(client.consumer.in_flight)
    run_out(channel.empty())
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert channel.dropped["emptied"] == 7
    assert client.finish(held, 1.0) == held
    assert client.why(held[0]) == "ID not in flight"
    put(channel, 10, 3)
    assert client.ids[-2:] == message_ids(10, 2)


def test_room_is_told_of() -> None:
    """A topic that is stuck on this channel hears when messages have left its queue."""
    channel = new_channel()
    told: list[int] = []
    channel.made_room = lambda: told.append(channel.depth)
    put(channel, 0, 3)
    assert told == []
    client = Client(channel, rdy=1)
    assert told == [2]
    run_out(channel.empty())
    assert told == [2, 0]
    sampling = Client(channel, rdy=1, sample_rate=1)
    channel.remove_subscription(client.consumer, [], False, 0.0)
    put(channel, 5, 1)
    assert (sampling.ids, channel.dropped["sampled"], told) == ([], 1, [2, 0, 0])


@pytest.mark.parametrize("rate", [1, 50, 99])
def test_sampling_drops_with_the_originals_arithmetic(rate: int) -> None:
    """Each message is dropped with probability (99 - rate)/100; credit is refilled meanwhile."""
    channel = new_channel(100_000)
    client = Client(channel, rdy=100_000, sample_rate=rate)
    put(channel, 0, 20_000)
    kept = len(client.ids)
    assert kept + channel.dropped["sampled"] == 20_000
    assert kept / 20_000 == pytest.approx((rate + 1) / 100, abs=0.006)
    assert (channel.depth, channel.in_flight_count) == (0, kept)
    assert client.deliveries[0].attempts == 1


def test_a_full_client_does_not_sample() -> None:
    """What it refused is whole again, and sampled once when it is delivered."""
    channel = new_channel()
    client = Client(channel, sample_rate=50)
    client.full = True
    put(channel, 0, 400)
    for _ in range(20):
        channel.set_ready(client.consumer, 500, 0.0)
        client.consumer.blocked = False
    assert (channel.depth, channel.dropped["sampled"]) == (400, 0)


def test_memory_and_backend_are_served_in_turn() -> None:
    """A retry in memory does not wait behind a backlog, nor the backlog behind memory."""
    channel = new_channel(50)
    put(channel, 0, 50)
    put(channel, 50, 50)
    client = Client(channel, rdy=1)
    for _ in range(49):
        client.finish(client.ids[-1:])
    memory = sum(id_ < message_ids(50, 1)[0] for id_ in client.ids)
    assert 10 < memory < 40


def test_a_backend_that_gives_nothing_stops_nobody() -> None:
    """It says it holds messages and can't read them just now: memory is served, and no error."""
    backend = MemoryBackend()
    channel = new_channel(2, backend)
    put(channel, 0, 4)
    backend.reads_nothing = True
    client = Client(channel, rdy=9)
    assert client.ids == message_ids(0, 2)
    backend.reads_nothing = False
    channel.dispatch(0.0)
    assert client.ids == message_ids(0, 4)


def test_deferred_messages_are_many_segments_of_one() -> None:
    """Each message of a deferred batch is due by itself, and none is delivered before."""
    channel = new_channel()
    client = Client(channel, rdy=9)
    one = batch(0, 3, defer_ms=200)
    channel.put(Segment(one, 0, 3), 0.0, wall_ns(0.0))
    assert (channel.deferred_count, channel.message_count, client.ids) == (3, 3, [])
    assert channel.wake_at_s == pytest.approx(0.2)
    channel.scan(0.2, wall_ns(0.2))
    assert client.ids == message_ids(0, 3)


def test_repr_shows_the_state() -> None:
    """For the debug pages and for tests."""
    channel = new_channel()
    Client(channel, rdy=1)
    put(channel, 0, 3)
    assert repr(channel) == "<ChannelState c depth=2 in_flight=1 deferred=0 clients=1>"


def test_few_messages_are_served_in_the_topics_turn_and_many_in_the_tasks() -> None:
    """A waiting client gets a handful at once; for a larger batch the channel's task is woken."""
    channel = new_channel()
    client = Client(channel, rdy=100)
    woken: list[bool] = []
    channel.wake = lambda: woken.append(True)
    channel.put(segment(0, MAX_DIRECT_MESSAGES), 0.0, wall_ns(0.0))
    assert (client.ids, woken) == (message_ids(0, MAX_DIRECT_MESSAGES), [])
    many = segment(MAX_DIRECT_MESSAGES, MAX_DIRECT_MESSAGES + 1)
    channel.put(many, 0.0, wall_ns(0.0))
    assert (len(client.ids), woken) == (MAX_DIRECT_MESSAGES, [True])
    assert channel.depth == many.count


def test_a_late_fin_is_told_why_before_its_credit_is_used() -> None:
    """FIN of a message that timed out: not in flight, though the same FIN's credit brings it."""
    channel = new_channel()
    client = Client(channel, rdy=2, msg_timeout_s=1.0)
    put(channel, 0, 2)
    timed_out, held = message_ids(0, 2)
    client.consumer.rdy = 0
    channel.scan(1.0, wall_ns(1.0))
    channel.set_ready(client.consumer, 1, 1.0)
    in_flight = client.ids[-1]
    late = held if in_flight == timed_out else timed_out
    answers = channel.finish(client.consumer, [in_flight, late], 1.0)
    assert reasons(answers) == [(late, "ID not in flight")]
    assert client.ids[-1] == late


@pytest.mark.parametrize("count", [1, MAX_DIRECT_MESSAGES, MAX_DIRECT_MESSAGES + 1])
def test_a_backend_with_all_that_is_published_is_served_like_memory(count: int) -> None:
    """A few messages are delivered in the topic's turn, more in the channel's; none was stored."""
    channel = new_channel(100, MemoryBackend(has_published=True))
    woken: list[bool] = []
    channel.wake = lambda: woken.append(True)
    assert channel.put(segment(0, 1), 0.0, wall_ns(0.0)) == PUT_QUEUED
    client = Client(channel, rdy=100)
    assert client.ids == message_ids(0, 1)
    assert channel.put(segment(1, count), 0.0, wall_ns(0.0)) == PUT_BUSY
    assert (len(client.ids) - 1, bool(woken)) == (
        (count, False) if count <= MAX_DIRECT_MESSAGES else (0, True)
    )
    channel.dispatch(0.0)
    assert client.ids == message_ids(0, 1 + count)
    assert channel.check() is None


def test_without_room_in_memory_the_channels_own_turn_delivers() -> None:
    """What went to today's disk queue is not read again in the topic's turn."""
    channel = new_channel(0)
    client = Client(channel, rdy=100)
    assert channel.put(segment(0, 1), 0.0, wall_ns(0.0)) == PUT_STORED
    assert client.ids == []


def test_the_backend_keeps_the_deferred_messages() -> None:
    """Where they are kept is the backend's choice, also after the channel was emptied."""
    backend = MemoryBackend()
    channel = new_channel(10, backend)
    assert channel.deferred is backend.deferred
    channel.put(Segment(batch(0, 1, defer_ms=1000), 0, 1), 0.0, wall_ns(0.0))
    run_out(channel.empty())
    assert channel.deferred is backend.deferred
    assert (channel.deferred_count, channel.check()) == (0, None)


class SlowlyRead(Deferred):
    """Deferred messages whose bodies have to be read first."""

    __slots__ = ("is_read",)

    def __init__(self) -> None:
        super().__init__()
        self.is_read = False

    @property
    def next_ns(self) -> int | None:
        return super().next_ns if self.is_read else None

    def pop_due(self, now_ns: int) -> Iterator[Segment]:
        return super().pop_due(now_ns) if self.is_read else iter(())


class SlowBackend(MemoryBackend):
    """A backend whose deferred messages are read when a test says so."""

    def new_deferred(self, scan_at: Callable[[float], None]) -> Deferred:
        self.scan_at = scan_at
        self.slow = SlowlyRead()
        return self.slow


def test_due_messages_that_have_to_be_read_come_when_they_are_there() -> None:
    """A scan that finds nothing yet asks for no other; the backend asks, and then they come."""
    backend = SlowBackend()
    channel = new_channel(10, backend)
    client = Client(channel, rdy=1)
    times: list[float] = []
    channel.wake_at = times.append
    channel.put(Segment(batch(0, 1, defer_ms=1000), 0, 1), 0.0, wall_ns(0.0))
    assert times == [1.0]
    channel.scan(1.0, wall_ns(1.0))
    assert (client.ids, times) == ([], [1.0])
    backend.slow.is_read = True
    backend.scan_at(0.0)
    assert times == [1.0, 0.0]
    channel.scan(1.5, wall_ns(1.5))
    assert client.ids == message_ids(0, 1)
    channel.close()
    backend.scan_at(0.0)
    assert times[-1] == NEVER
