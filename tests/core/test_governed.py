"""What a policy makes of topics and channels: bounds, expiry, retry schedules, shared limits."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.core.helpers import WALL_NS, MemoryBackend, segment, wall_ns
from tests.core.test_topic import new_topic
from trionsq.core import weighed
from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.bounded import BoundedStore, QueueFull
from trionsq.core.bounds import weight
from trionsq.core.channel import ChannelState
from trionsq.core.governed import ChannelGovernor, govern_channel
from trionsq.core.governed_topic import govern_topic
from trionsq.core.policies import AppliedSettings
from trionsq.core.queue import MessageQueue
from trionsq.core.subscription import Delivery, Subscription
from trionsq.core.topic import TopicState
from trionsq.core.weighed import WeighedQueue
from trionsq.durations import SECOND_NS
from trionsq.wire.bodies import ListBodies

MEM = 5


class World:
    """A channel with settings, a client, and a wall clock that the test sets."""

    def __init__(self, mem: int = MEM, **settings: object) -> None:
        self.now_s = 0.0
        self.backend = MemoryBackend()
        self.channel = ChannelState("c", mem, self.backend, Random(1))
        self.got: list[Delivery] = []
        self.clients: list[Subscription] = []
        if settings:
            self.govern(**settings)

    def govern(self, **settings: object) -> None:
        applied = AppliedSettings(**settings) if settings else None  # type: ignore[arg-type]
        govern_channel(self.channel, applied, lambda: wall_ns(self.now_s))

    def subscribe(self, rdy: int) -> Subscription:
        client = Subscription(self._take, msg_timeout_s=60.0)
        self.clients.append(client)
        self.channel.add_subscription(client)
        self.channel.set_ready(client, rdy, self.now_s)
        return client

    def _take(self, delivery: Delivery) -> bool:
        delivery.written = True
        self.got.append(delivery)
        return True

    def put(self, first: int, count: int, size: int = 16) -> None:
        one = segment(first, count, (size,))
        self.channel.put(one, self.now_s, wall_ns(self.now_s))
        self.channel.dispatch(self.now_s)  # as its task does
        self.check()

    @property
    def governor(self) -> ChannelGovernor:
        """The policy at work."""
        assert isinstance(self.channel.governor, ChannelGovernor)
        return self.channel.governor

    @property
    def bounded(self) -> BoundedStore:
        """The queue with its bounds."""
        return self.governor.bounded

    def check(self) -> None:
        assert self.channel.check() is None

    @property
    def ids(self) -> list[int]:
        """What was delivered, in order."""
        return [int(id_, 16) for delivery in self.got for id_ in delivery.ids]

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.channel.dropped)


def policy_of(channel: ChannelState) -> tuple[object, object, object]:
    """What a channel has of its policy."""
    return channel.governor, channel.store.governor, channel.store.bounds


def test_the_governor_follows_the_policy() -> None:
    """A channel has one while a policy applies, and is as before when none does."""
    world = World()
    world.put(0, 8)
    world.govern(max_messages=100)
    assert world.governor.channel is world.channel
    assert world.bounded.store is world.channel.store
    assert None not in policy_of(world.channel)
    assert type(world.channel.store.memory) is WeighedQueue
    assert world.channel.depth == 8
    world.govern()
    assert set(policy_of(world.channel)) == {None}
    assert world.channel.in_flight.return_timed_out == world.channel.store.restore
    assert type(world.channel.store.memory) is MessageQueue
    assert world.channel.settings is None
    world.put(8, 8)
    world.subscribe(100)
    assert sorted(world.ids) == list(range(16))
    world.check()


@pytest.mark.parametrize("mem", [0, 5, 100])
def test_drop_oldest_keeps_the_newest(mem: int) -> None:
    """With drop_oldest a full channel has the newest messages, wherever they are kept."""
    world = World(mem, max_messages=10, when_full="drop_oldest")
    for first in range(0, 100, 4):
        world.put(first, 4)
        assert world.channel.depth <= 10
    assert world.dropped == {"max_messages": 90}
    world.subscribe(100)
    assert sorted(world.ids) == list(range(90, 100))
    world.check()


@pytest.mark.parametrize("mem", [0, 5, 100])
def test_drop_newest_keeps_the_oldest(mem: int) -> None:
    """With drop_newest a full channel has the oldest messages, and no more than the bound."""
    world = World(mem, max_messages=10, when_full="drop_newest")
    for first in range(0, 100, 4):
        world.put(first, 4)
    assert world.channel.depth == 10
    assert world.dropped == {"max_messages": 90}
    world.subscribe(100)
    assert sorted(world.ids) == list(range(10))
    world.check()


@pytest.mark.parametrize("when_full", ["drop_oldest", "drop_newest"])
@pytest.mark.parametrize("mem", [0, 5, 100])
def test_bytes_are_bounded(when_full: str, mem: int) -> None:
    """The bodies that wait are never more than max_bytes; what goes in and out is weighed."""
    world = World(mem, max_bytes=1000, when_full=when_full)
    client = world.subscribe(0)
    for turn in range(50):
        world.put(turn * 4, 4, size=16 + turn)
        assert world.bounded.nbytes <= 1000
        world.channel.set_ready(client, len(client.in_flight) + turn % 3, world.now_s)
    assert world.channel.depth > 5
    world.channel.set_ready(client, 1000, world.now_s)
    assert world.bounded.nbytes == 0
    assert world.dropped["max_bytes"] + len(world.ids) == 200
    world.check()


def test_a_backlog_of_before_is_trimmed_in_steps() -> None:
    """A policy that comes to a long backlog drops it in bounded calls, the oldest first."""
    world = World(10_000)
    for first in range(0, 9_000, 3):
        world.put(first, 3)
    world.govern(max_messages=100)
    calls = 1
    while world.governor.trim(0.0):
        calls += 1
    assert calls == 5
    assert world.channel.depth == 100
    world.subscribe(1000)
    assert sorted(world.ids) == list(range(8_900, 9_000))


def test_a_requeued_message_counts_as_its_age() -> None:
    """What drop_oldest drops is by the age of its heads, not by where they are."""
    world = World(100, max_messages=3)
    client = world.subscribe(1)
    world.put(0, 1)
    world.channel.set_ready(client, 0, 0.0)
    world.put(1, 3)
    world.channel.requeue(client, b"%016x" % 0, 0, 0.0, wall_ns(0.0))
    world.put(4, 1)
    assert world.channel.depth == 3
    world.check()


def test_expired_messages_are_not_delivered() -> None:
    """A consumer gets no message that is older than message_ttl, and all others."""
    world = World(3, message_ttl_ns=10 * SECOND_NS)
    stamps = [WALL_NS + n * SECOND_NS for n in range(8)]
    ids = [b"%016x" % n for n in range(8)]
    bodies = ListBodies([b"x"] * 8)
    column = ListColumn([stamp.to_bytes(8) for stamp in stamps])
    batch = MessageBatch(bodies, ListColumn(ids), stamps[0], 0, column)
    world.channel.put(Segment(batch, 0, 8), 0.0, wall_ns(0.0))
    world.now_s = 13.0  # what was published at 3 s is 10 s old: it is gone
    world.subscribe(100)
    assert sorted(world.ids) == [4, 5, 6, 7]
    assert world.dropped == {"expired": 4}
    world.check()


def test_what_returns_too_late_is_dropped() -> None:
    """A message that comes back after its time is not delivered once more."""
    world = World(message_ttl_ns=10 * SECOND_NS)
    client = world.subscribe(10)
    world.put(0, 2)
    world.now_s = 11.0
    for id_ in (0, 1):
        world.channel.requeue(client, b"%016x" % id_, 0, 11.0, wall_ns(11.0))
    assert world.ids == [0, 1]
    assert world.dropped == {"expired": 2}
    world.check()


def test_many_expired_messages_take_turns() -> None:
    """A long run of expired messages wakes the task again rather than to hold it up."""
    world = World(100_000, message_ttl_ns=SECOND_NS)
    for n in range(500):
        world.put(n, 1)
    world.now_s = 5.0
    wakes: list[int] = []
    world.channel.wake = lambda: wakes.append(1)
    world.subscribe(1)
    while world.channel.depth:
        assert wakes
        wakes.clear()
        world.channel.dispatch(world.now_s)
    assert world.ids == []
    assert world.dropped == {"expired": 500}


@pytest.mark.parametrize("setting", ["message_ttl_ns", "max_age_ns"])
@pytest.mark.parametrize("mem", [0, 2, 100])
def test_old_messages_go_without_a_consumer(setting: str, mem: int) -> None:
    """What has become too old is dropped though nobody reads; the rest stays in its order."""
    world = World(mem, **{setting: 10 * SECOND_NS})
    for second in range(20):
        batch = MessageBatch(
            ListBodies([b"x"]), ListColumn([b"%016x" % second]), wall_ns(float(second))
        )
        world.channel.put(Segment(batch, 0, 1), 0.0, wall_ns(0.0))
    world.now_s = 15.0
    assert not world.governor.drop_old(15.0, wall_ns(15.0))
    assert world.channel.depth == 14
    world.subscribe(100)
    assert sorted(world.ids) == list(range(6, 20))
    reason = "expired" if setting == "message_ttl_ns" else "max_age"
    assert world.dropped == {reason: 6}
    world.check()


def test_a_retry_waits_as_the_schedule_says() -> None:
    """REQ with 0 and a time-out defer by the delay of the attempt; the last one repeats."""
    world = World(retry_delays_ns=(SECOND_NS, 10 * SECOND_NS))
    client = world.subscribe(1)
    world.put(0, 1)
    for attempt, delay_s in enumerate([1, 10, 10], 1):
        assert len(world.got) == attempt
        assert world.channel.requeue(client, b"%016x" % 0, 0, world.now_s, wall_ns(world.now_s))
        assert world.channel.deferred_count == 1
        due_ns = world.channel.deferred.next_ns
        assert due_ns is not None
        assert abs(due_ns - wall_ns(world.now_s) - delay_s * SECOND_NS) <= delay_s * SECOND_NS / 10
        world.now_s += delay_s * 1.2
        world.channel.scan(world.now_s, wall_ns(world.now_s))
    assert len(world.got) == 4
    world.now_s += 100
    world.channel.scan(world.now_s, wall_ns(world.now_s))
    assert (world.channel.timeout_count, world.channel.deferred_count) == (1, 1)
    world.check()


def test_a_delay_that_the_client_names_stays() -> None:
    """The schedule is for REQ with 0 alone."""
    world = World(retry_delays_ns=(100 * SECOND_NS,))
    client = world.subscribe(1)
    world.put(0, 1)
    world.channel.requeue(client, b"%016x" % 0, 2_000, 0.0, wall_ns(0.0))
    assert world.channel.deferred.next_ns == wall_ns(2.0)


def test_retries_do_not_come_together() -> None:
    """Delays of one step of the schedule differ, by a tenth at most."""
    world = World(retry_delays_ns=(100 * SECOND_NS,))
    client = world.subscribe(100)
    world.put(0, 50)
    for n in range(50):
        world.channel.requeue(client, b"%016x" % n, 0, 0.0, wall_ns(0.0))
    dues = {due_ns - WALL_NS for due_ns, _ in world.channel.deferred}
    assert len(dues) > 40
    assert min(dues) >= 90 * SECOND_NS
    assert max(dues) <= 110 * SECOND_NS


def test_max_in_flight_is_of_all_clients() -> None:
    """All clients together hold no more; what one gives back another one may get."""
    world = World(1000, max_in_flight=5)
    one, other = world.subscribe(4), world.subscribe(4)
    world.put(0, 20)
    assert world.channel.in_flight_count == 5
    while world.channel.depth or world.channel.in_flight_count:
        holder = one if one.in_flight else other
        # Its RDY is 0, so that the other client has to get the next one.
        world.channel.set_ready(holder, 0, 0.0)
        world.channel.finish(holder, [next(iter(holder.in_flight))], 0.0)
        assert world.channel.in_flight_count <= 5
        for client in (one, other):
            world.channel.set_ready(client, 4, 0.0)
    assert sorted(world.ids) == list(range(20))
    world.check()


def test_a_client_without_credit_passes_its_room_on() -> None:
    """A FIN of a client that wants no more serves one that waits."""
    world = World(1000, max_in_flight=1)
    one = world.subscribe(1)
    world.put(0, 2)
    world.channel.set_ready(one, 0, 0.0)
    other = world.subscribe(1)
    assert not other.in_flight
    world.channel.finish(one, list(one.in_flight), 0.0)
    assert len(other.in_flight) == 1


def test_a_long_backlog_is_weighed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that comes to it takes what is behind for as large as the first messages; once it
    is empty the size is right again."""
    monkeypatch.setattr(weighed, "_MAX_WEIGHED", 10)
    world = World(1000)
    for first in range(0, 20, 2):
        world.put(first, 2, 10)
    for first in range(20, 60, 2):
        world.put(first, 2, 100)
    world.govern(max_bytes=100_000)
    store = world.bounded
    assert store.nbytes == 60 * 10
    client = world.subscribe(60)
    assert (len(client.in_flight), store.nbytes) == (60, 0)
    world.put(60, 3, 100)
    assert store.nbytes == 300


# Topics


def texts(count: int, size: int = 10) -> ListBodies:
    return ListBodies([b"x" * size] * count)


def governed_topic(mem: int = MEM, **settings: object) -> TopicState:
    topic, _ = new_topic(mem)
    govern_topic(topic, AppliedSettings(**settings), lambda: wall_ns(100.0))  # type: ignore[arg-type]
    return topic


def is_governed(topic: TopicState) -> bool:
    return topic.governor is not None


@pytest.mark.parametrize("mem", [0, 5, 100])
@pytest.mark.parametrize("when_full", ["drop_oldest", "drop_newest", "refuse"])
def test_a_topic_without_channel_is_bounded(mem: int, when_full: str) -> None:
    """A topic that nobody reads keeps no more than its bound."""
    topic = governed_topic(mem, max_messages=10, when_full=when_full)
    refused: list[str] = []
    for turn in range(30):
        try:
            topic.publish(texts(2), wall_ns(float(turn)))
        except QueueFull as error:
            refused += [str(error)] * 2
    assert set(refused) <= {"topic t is full: max_messages"}
    assert topic.depth == 10
    assert topic.check() is None
    assert len(refused) + topic.dropped["max_messages"] == 50
    oldest_ns = topic.oldest_ns()
    assert oldest_ns == wall_ns(25.0 if when_full == "drop_oldest" else 0.0)


def test_what_passes_through_a_topic_is_no_backlog() -> None:
    """A topic that can hand on its messages takes more at once than its bound."""
    topic = governed_topic(100, max_messages=3, when_full="refuse")
    channel = ChannelState("c", 100, MemoryBackend(), Random(1))
    topic.add_channel(channel)
    topic.publish(texts(50), wall_ns(0.0))
    while topic.pump(0.0, wall_ns(0.0)):
        pass
    assert channel.depth == 50


def test_a_full_channel_refuses_at_the_topic() -> None:
    """With refuse the publisher is told which channel is full, and of what; nothing is lost."""
    topic, _ = new_topic(100)
    channels = [ChannelState(name, 100, MemoryBackend(), Random(1)) for name in "ab"]
    for channel in channels:
        topic.add_channel(channel)
    settings = AppliedSettings(max_messages=10, when_full="refuse")
    govern_channel(channels[1], settings, lambda: wall_ns(0.0))
    govern_topic(topic, None, lambda: wall_ns(0.0))
    assert is_governed(topic)
    for _ in range(5):
        topic.publish(texts(2), wall_ns(0.0))
    with pytest.raises(QueueFull, match="channel t:b is full: max_messages"):
        topic.publish(texts(1), wall_ns(0.0))
    while topic.pump(0.0, wall_ns(0.0)):
        pass
    assert [channel.depth for channel in channels] == [10, 10]
    with pytest.raises(QueueFull):
        topic.publish(texts(1), wall_ns(0.0))
    govern_channel(channels[1], None, lambda: wall_ns(0.0))
    topic.publish(texts(1), wall_ns(0.0))  # before the topic hears of it
    govern_topic(topic, None, lambda: wall_ns(0.0))
    assert not is_governed(topic)
    topic.publish(texts(1), wall_ns(0.0))


def test_old_messages_of_a_topic_go() -> None:
    """A topic without channels drops what has become too old."""
    topic = governed_topic(3, message_ttl_ns=10 * SECOND_NS)
    for second in range(20):
        topic.publish(texts(1), wall_ns(float(second)))
    assert topic.governor is not None
    assert not topic.governor.drop_old(0.0, wall_ns(15.0))
    assert topic.depth == 14
    assert topic.dropped == {"expired": 6}
    assert topic.check() is None


def test_what_is_to_be_a_letter_waits_for_a_channel() -> None:
    """A topic without channels drops nothing that its channels are to keep as dead letters."""
    topic = governed_topic(3, message_ttl_ns=10 * SECOND_NS, when_expired="dead_letter")
    for second in range(20):
        topic.publish(texts(1), wall_ns(float(second)))
    assert topic.governor is not None
    assert not topic.governor.drop_old(0.0, wall_ns(100.0))
    assert (topic.depth, topic.dropped) == (20, {})


def numbers() -> Iterator[int]:
    """Numbers that never repeat."""
    n = 0
    while True:
        yield n
        n += 1


@pytest.mark.parametrize("seed", range(20))
def test_counters_balance_whatever_happens(seed: int) -> None:
    """Under any mixture of policies and clients each message is in one place or counted."""
    random = Random(seed)
    world = World(random.choice([0, 3, 50]))
    ids = numbers()
    clients = [world.subscribe(0) for _ in range(3)]
    choices: list[dict[str, object]] = [
        {},
        {"max_messages": 7},
        {"max_messages": 7, "when_full": "drop_newest"},
        {"max_bytes": 200, "message_ttl_ns": 3 * SECOND_NS},
        {"max_in_flight": 3, "retry_delays_ns": (SECOND_NS,)},
        {"max_age_ns": 2 * SECOND_NS, "when_full": "drop_newest"},
        {"retry_share": 70},
        {"retry_share": 20, "max_messages": 7, "message_ttl_ns": 3 * SECOND_NS},
    ]
    for _ in range(300):
        world.now_s += random.choice([0.0, 0.0, 0.5])
        client = random.choice(clients)
        action = random.randrange(6)
        if action == 0:
            world.govern(**random.choice(choices))
        elif action == 1:
            first = next(ids)
            count = random.randrange(1, 5)
            for _ in range(count):
                next(ids)
            batch = segment(first, count, (16, 40)).batch
            batch.timestamp_ns = wall_ns(world.now_s)
            world.channel.put(Segment(batch, 0, count), world.now_s, wall_ns(world.now_s))
        elif action == 2:
            world.channel.set_ready(client, random.randrange(4), world.now_s)
        elif action == 3 and client.in_flight:
            world.channel.finish(client, [random.choice(list(client.in_flight))], world.now_s)
        elif action == 4 and client.in_flight:
            one = random.choice(list(client.in_flight))
            delay_ms = random.choice([0, 500])
            world.channel.requeue(client, one, delay_ms, world.now_s, wall_ns(world.now_s))
        else:
            world.channel.scan(world.now_s, wall_ns(world.now_s))
            if world.channel.governor is not None:
                world.channel.governor.drop_old(world.now_s, wall_ns(world.now_s))
        world.check()
        store = world.channel.store
        if isinstance(store.memory, WeighedQueue):
            assert store.memory.nbytes == sum(map(weight, store.memory.peek()))
            assert store.memory.depth == sum(one.count for one in store.memory.peek())
