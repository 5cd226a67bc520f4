"""The queue scan: it costs for channels that have something due, and is never late."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, connect, finish, numbered, publish
from trionsq.broker.timers import ScanQueue
from trionsq.core.channel import ChannelState
from trionsq.core.containers import NEVER
from trionsq.durations import MILLISECOND_NS, SECOND_NS
from trionsq.storage.discard import DiscardingBackend
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

SCAN_S = 0.1


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each channel, by name, was scanned."""
    counts: Counter[str] = Counter()
    original = ChannelState.scan

    def counted(self: ChannelState, now_s: float, now_ns: int) -> int:
        counts[self.name] += 1
        return original(self, now_s, now_ns)

    monkeypatch.setattr(ChannelState, "scan", counted)
    return counts


def a_channel(name: str = "c") -> ChannelState:
    """A channel of no topic."""
    return ChannelState(name, 10, DiscardingBackend(), Random(0))


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(0, 100))
def test_what_is_due_comes_out_in_order(times: list[float], now_s: float) -> None:
    """Each channel whose time has come, the earliest first; no other."""
    queue = ScanQueue()
    at_s_of = {a_channel(str(number)): at_s for number, at_s in enumerate(times)}
    for channel, at_s in at_s_of.items():
        queue.set_time(channel, at_s)
    found: list[float] = []
    while (due := queue.pop_due_channel(now_s)) is not None:
        found.append(at_s_of[due])
    assert found == sorted(at_s for at_s in times if at_s <= now_s)
    assert len(queue) == len(times) - len(found)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10))
def test_a_later_word_takes_the_place_of_an_earlier_one(times: list[float]) -> None:
    """However often a channel changes its mind, it is there once, with the last time it said."""
    queue = ScanQueue()
    channel, other = a_channel(), a_channel("other")
    queue.set_time(other, 200.0)
    for at_s in times:
        queue.set_time(channel, at_s)
        assert len(queue) == 2
    assert queue.pop_due_channel(times[-1] - 0.001) is None
    assert queue.pop_due_channel(times[-1]) is channel
    queue.set_time(other, NEVER)
    assert (len(queue), queue.pop_due_channel(1000.0)) == (0, None)


@pytest.mark.parametrize("channels", [1, 100])
async def test_the_timer_queue_does_not_grow(channels: int, autojump_clock: MockClock) -> None:
    """A message deferred for an hour beside a trickle: one entry for each channel, at any time."""
    async with nsqd_in_memory() as broker:
        topic = broker.topic("t")
        consumers = [Conversation.begin(broker) for _ in range(channels)]
        for number, consumer in enumerate(consumers):
            await consumer.subscribe("t", f"c{number}", ready=1)
        publish(broker, "t", b"late", defer_ms=3_600_000)
        for _ in range(20):
            publish(broker, "t", b"x")
            for consumer in consumers:
                await finish(consumer, await consumer.message())
            await trio.sleep(3)
        assert len(broker.registry.scan_queue) <= len(topic.channels) == channels


async def test_idle_channels_cost_nothing(scans: Counter[str], autojump_clock: MockClock) -> None:
    """Of a thousand channels only the one with a message in flight is scanned, now and then."""
    async with nsqd_in_memory() as broker:
        for number in range(1000):
            broker.topic(f"t{number % 10}").channel(f"idle{number}")
        consumer = Conversation.begin(broker)
        await consumer.subscribe("busy", "busy", ready=1)
        publish(broker, "busy", b"x")
        message = await consumer.message()
        await trio.sleep(20)
        assert scans.keys() == {"busy"}
        assert scans["busy"] <= 11
        await finish(consumer, message)
        await trio.sleep(5)
        scans.clear()
        await trio.sleep(20)
        assert scans.total() == 0


async def test_a_busy_channel_is_not_scanned_for_each_message(
    scans: Counter[str], autojump_clock: MockClock
) -> None:
    """Deliveries and FINs in quick succession do not multiply the scans."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        for _ in range(500):
            publish(broker, "t", b"x")
            message = await consumer.message()
            await consumer.say(commands.finish(message.message_id))
            await trio.sleep(0.01)
        assert scans["c"] <= 5
        assert len(broker.registry.scan_queue) <= 5


@pytest.mark.parametrize("seed", range(3))
async def test_no_deadline_is_missed(seed: int, autojump_clock: MockClock) -> None:
    """Many channels with time-outs and delays of all lengths: each comes within a scan interval."""
    random = Random(seed)
    late_s: list[float] = []
    async with nsqd_in_memory(queue_scan_selection_count=1) as broker:

        async def one(number: int) -> None:
            timeout_ms = random.randrange(1000, 5000)
            talk, _, _ = connect(broker)
            await talk.say(commands.identify({"msg_timeout": timeout_ms}))
            await talk.response()
            await talk.subscribe(f"t{number}", "c", ready=2)
            publish(broker, f"t{number}", b"x")
            first = await talk.message()
            expected_s = trio.current_time() + timeout_ms / 1e3
            if number % 2:
                delay_ms = random.randrange(1, 3000)
                await talk.say(commands.requeue(first.message_id, delay_ms))
                expected_s = trio.current_time() + delay_ms / 1e3
            again = await talk.message()
            assert again.attempts == 2
            late_s.append(trio.current_time() - expected_s)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number)
                await trio.sleep(random.random() / 50)
        check_balances(broker)
    assert len(late_s) == 100
    assert min(late_s) > -0.001
    assert max(late_s) <= SCAN_S + 0.001


async def test_a_channel_deleted_before_its_scan(autojump_clock: MockClock) -> None:
    """Its entry leaves the scan queue with it."""
    async with nsqd_in_memory(msg_timeout_ns=1500 * MILLISECOND_NS) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        publish(broker, "t", *numbered(3))
        publish(broker, "t", b"later", defer_ms=1000)
        await consumer.messages(3)
        broker.delete_topic("t")
        await consumer.end()
        await trio.sleep(5)
        assert len(broker.registry.scan_queue) == 0


async def test_slow_messages_do_not_keep_their_batch(autojump_clock: MockClock) -> None:
    """A few messages left in flight of a large batch are copied out of it after a while."""
    async with nsqd_in_memory(msg_timeout_ns=60 * SECOND_NS) as broker:
        consumer, client, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=100)
        publish(broker, "t", *numbered(100, size=1000))
        messages = await consumer.messages(100)
        await finish(consumer, *messages[:95])
        [delivery] = set(client.consumer.in_flight.values())
        assert delivery.batch.count == 100
        await trio.sleep(5)
        [delivery] = set(client.consumer.in_flight.values())
        assert delivery.batch.count == 5
        await finish(consumer, *messages[95:])
        await wait_all_tasks_blocked()
        assert broker.topics["t"].channels["c"].core.finish_count == 100
