"""A channel's task and its clients."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import (
    check_balances,
    check_nobody_left,
    connect,
    finish,
    numbered,
    publish,
)
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame, Response

SCAN_S = 0.1
TIMES = pytest.mark.parametrize("how", ["time-out", "REQ 0", "REQ 500", "FIN"])


async def test_a_paused_channel_delivers_nothing(autojump_clock: MockClock) -> None:
    """Messages pile up in it; requeues and time-outs go on; unpausing serves everybody at once."""
    async with nsqd_in_memory(msg_timeout_ns=2 * SECOND_NS) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        publish(broker, "t", b"1", b"2")
        one, _ = await consumer.messages(2)
        channel = broker.topics["t"].channels["c"]
        channel.pause()
        publish(broker, "t", b"3")
        await consumer.say(commands.requeue(one.message_id, 0))
        await consumer.silence(5)
        assert (channel.core.depth, channel.core.in_flight_count) == (3, 0)
        assert (channel.core.requeue_count, channel.core.timeout_count) == (1, 1)
        channel.unpause()
        assert {m.body for m in await consumer.messages(3)} == {b"1", b"2", b"3"}
        check_balances(broker)


@pytest.fixture
def nothing_is_delivered_by_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single messages take the way of large batches, through the channel's task."""
    monkeypatch.setattr("trionsq.core.channel.MAX_DIRECT_MESSAGES", 0)


@pytest.mark.usefixtures("nothing_is_delivered_by_the_topic")
async def test_a_pause_holds_messages_that_the_task_was_woken_for(
    autojump_clock: MockClock,
) -> None:
    """A channel that is paused after it was woken, and before its turn, delivers nothing."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        await wait_all_tasks_blocked()
        topic = broker.topics["t"]
        channel = topic.channels["c"]
        for body in numbered(3):
            publish(broker, "t", body)
        while topic.core.pump(topic._clock.now_s(), topic._clock.now_ns()):
            pass
        assert channel._wake_up.is_pending
        channel.pause()
        await consumer.silence(5)
        assert channel.core.depth == 3
        channel.unpause()
        assert {m.body for m in await consumer.messages(3)} == set(numbered(3))


@pytest.mark.usefixtures("nothing_is_delivered_by_the_topic")
@pytest.mark.parametrize("count", [1, 2, 70])
async def test_emptying_drops_also_messages_that_the_task_was_woken_for(
    count: int, autojump_clock: MockClock
) -> None:
    """Waiting, in flight and deferred messages are dropped; what comes after stays."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=200)
        publish(broker, "t", b"in flight")
        old = await consumer.message()
        publish(broker, "t", b"deferred", defer_ms=1000)
        await wait_all_tasks_blocked()
        topic = broker.topics["t"]
        channel = topic.channels["c"]
        for body in numbered(count):
            publish(broker, "t", body)
        while topic.core.pump(topic._clock.now_s(), topic._clock.now_ns()):
            pass
        assert channel.core.depth == count
        assert channel._wake_up.is_pending
        channel.empty()
        assert channel.core.dropped["emptied"] == 2 + count
        assert channel.core.depth == channel.core.in_flight_count == 0
        publish(broker, "t", b"after")
        assert (await consumer.message()).body == b"after"
        await consumer.silence(2)
        await consumer.say(commands.finish(old.message_id))
        assert "ID not in flight" in await consumer.error()
        check_balances(broker)


async def test_emptying_gives_credit_back(autojump_clock: MockClock) -> None:
    """A client whose messages were dropped gets the next ones."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", b"1")
        await consumer.message()
        broker.topics["t"].channels["c"].empty()
        publish(broker, "t", b"2")
        assert (await consumer.message()).body == b"2"


async def test_a_deleted_channel_takes_its_clients_along(autojump_clock: MockClock) -> None:
    """All of them are closed without a frame, and the name is free."""
    async with nsqd_in_memory() as broker:
        consumers = [Conversation.begin(broker) for _ in range(3)]
        for consumer in consumers:
            await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", *numbered(5))
        for consumer in consumers:
            await consumer.message()
        topic = broker.topics["t"]
        old = topic.channels["c"]
        topic.delete_channel("c")
        for consumer in consumers:
            assert await consumer.end() == []
        await wait_all_tasks_blocked()
        check_nobody_left(broker)
        assert topic.channels == {}
        assert old.core.depth == old.core.in_flight_count == 0
        late = Conversation.begin(broker)
        await late.subscribe("t", "c", ready=10)
        publish(broker, "t", b"new")
        assert (await late.message()).body == b"new"


async def test_an_ephemeral_channel_goes_with_its_last_client(autojump_clock: MockClock) -> None:
    """Not before, and its topic stays unless it is ephemeral too."""
    async with nsqd_in_memory() as broker:
        first, second = Conversation.begin(broker), Conversation.begin(broker)
        for consumer in (first, second):
            await consumer.subscribe("t", "c#ephemeral", ready=1)
        first.close()
        await wait_all_tasks_blocked()
        assert "c#ephemeral" in broker.topics["t"].channels
        second.close()
        await wait_all_tasks_blocked()
        assert broker.topics["t"].channels == {}


async def test_an_ephemeral_channel_drops_what_is_over(autojump_clock: MockClock) -> None:
    """A slow client of it never stops the topic, and each drop is counted."""
    async with nsqd_in_memory(mem_queue_size=3) as broker:
        slow, other = Conversation.begin(broker), Conversation.begin(broker)
        await slow.subscribe("t", "slow#ephemeral")
        await other.subscribe("t", "other", ready=100)
        for body in numbered(10):
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        assert [m.body for m in await other.messages(10)] == numbered(10)
        core = broker.topics["t"].channels["slow#ephemeral"].core
        assert core.depth == 3
        assert core.dropped == {"ephemeral overflow": 7}
        check_balances(broker)


@pytest.mark.parametrize("ready", [1, 10, 100])
async def test_clients_share_fairly(ready: int, autojump_clock: MockClock) -> None:
    """Clients with equal RDY who finish at once get about equal parts of single messages."""
    count = 400
    async with nsqd_in_memory() as broker:
        shares: dict[int, int] = dict.fromkeys(range(4), 0)

        async def consume(number: int) -> None:
            consumer = Conversation.begin(broker)
            await consumer.subscribe("t", "c", ready=ready)
            while True:
                message = await consumer.message()
                shares[number] += 1
                await consumer.say(commands.finish(message.message_id))

        async with trio.open_nursery() as nursery:
            for number in shares:
                nursery.start_soon(consume, number)
            await wait_all_tasks_blocked()
            for body in numbered(count):
                publish(broker, "t", body)
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert sum(shares.values()) == count
        assert min(shares.values()) > count / len(shares) / 3
        check_balances(broker)


async def test_a_backlog_is_shared_by_credit(autojump_clock: MockClock) -> None:
    """Of one large batch each client gets no more than its RDY."""
    async with nsqd_in_memory() as broker:
        consumers = [connect(broker) for _ in range(3)]
        for talk, _, _ in consumers:
            await talk.subscribe("t", "c", ready=7)
        publish(broker, "t", *numbered(100))
        await wait_all_tasks_blocked()
        assert [len(client.consumer.in_flight) for _, client, _ in consumers] == [7, 7, 7]
        assert broker.topics["t"].channels["c"].core.depth == 79


async def test_sampling_drops_its_share(autojump_clock: MockClock) -> None:
    """sample_rate: the rest is gone for the channel, counted, and costs no credit."""
    count = 2000
    async with nsqd_in_memory() as broker:
        consumer, client, _ = connect(broker)
        await consumer.say(commands.identify({"sample_rate": 29}))
        await consumer.response()
        await consumer.subscribe("t", "c", ready=2500)
        publish(broker, "t", *numbered(count))
        await wait_all_tasks_blocked()
        core = broker.topics["t"].channels["c"].core
        kept = len(client.consumer.in_flight)
        assert 0.25 * count < kept < 0.35 * count
        assert core.dropped == {"sampled": count - kept}
        assert core.depth == 0
        assert len(await consumer.messages(kept)) == kept
        check_balances(broker)


async def test_consumers_of_a_channel_can_be_limited(autojump_clock: MockClock) -> None:
    """--max-channel-consumers: one more is refused, and may come when one has left."""
    async with nsqd_in_memory(max_channel_consumers=2) as broker:
        first, second, third = (Conversation.begin(broker) for _ in range(3))
        await first.subscribe("t", "c")
        await second.subscribe("t", "c")
        await third.say(commands.subscribe("t", "c"))
        assert await third.error() == (
            "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2"
        )
        third.close()
        first.close()
        await wait_all_tasks_blocked()
        fourth = Conversation.begin(broker)
        await fourth.subscribe("t", "c")
        other = Conversation.begin(broker)
        await other.subscribe("t", "other")


@pytest.mark.parametrize("delay_ms", [1, 150, 5000, 3_600_000])
async def test_deferred_messages_are_punctual(delay_ms: int, autojump_clock: MockClock) -> None:
    """DPUB: not before its time, and at most a scan interval after it."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        await consumer.say(commands.publish_deferred("t", delay_ms, b"later"))
        await consumer.response()
        start_s = trio.current_time()
        await wait_all_tasks_blocked()
        assert broker.topics["t"].channels["c"].core.deferred_count == 1
        assert (await consumer.message()).body == b"later"
        took_s = trio.current_time() - start_s
        assert delay_ms / 1e3 - 0.001 <= took_s <= delay_ms / 1e3 + 2 * SCAN_S
        check_balances(broker)


@pytest.mark.parametrize("delay_ms", [1, 250, 3000])
async def test_requeued_messages_are_punctual(delay_ms: int, autojump_clock: MockClock) -> None:
    """REQ with a delay: the same, with attempts counted on."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", b"x")
        message = await consumer.message()
        start_s = trio.current_time()
        await consumer.say(commands.requeue(message.message_id, delay_ms))
        again = await consumer.message()
        took_s = trio.current_time() - start_s
        assert delay_ms / 1e3 <= took_s <= delay_ms / 1e3 + 2 * SCAN_S
        assert (again.attempts, again.message_id) == (2, message.message_id)
        check_balances(broker)


async def test_time_outs_are_punctual(autojump_clock: MockClock) -> None:
    """A message that is not finished comes again after the connection's own msg_timeout."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.say(commands.identify({"msg_timeout": 2500}))
        await consumer.response()
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", b"x")
        for attempts in range(1, 4):
            start_s = trio.current_time()
            assert (await consumer.message()).attempts == attempts
            if attempts > 1:
                assert 2.5 <= trio.current_time() - start_s <= 2.5 + 2 * SCAN_S
        assert broker.topics["t"].channels["c"].core.timeout_count == 2


@TIMES
async def test_credit_comes_back(how: str, autojump_clock: MockClock) -> None:
    """However a message leaves a client at RDY 1, the next one is served, to whoever is next."""
    async with nsqd_in_memory(msg_timeout_ns=1 * SECOND_NS) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", *numbered(10))
        for _ in range(30):
            message = await consumer.message()
            if how == "FIN":
                await consumer.say(commands.finish(message.message_id))
                publish(broker, "t", b"more")
            elif how.startswith("REQ"):
                await consumer.say(commands.requeue(message.message_id, int(how.split()[1])))
        check_balances(broker)


async def test_touch_gives_more_time(autojump_clock: MockClock) -> None:
    """Each TOUCH begins the msg_timeout anew, until max-msg-timeout after the delivery."""
    async with nsqd_in_memory(
        msg_timeout_ns=2 * SECOND_NS, max_msg_timeout_ns=5 * SECOND_NS
    ) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", b"x")
        message = await consumer.message()
        start_s = trio.current_time()
        for _ in range(4):
            await consumer.silence(1)
            await consumer.say(commands.touch(message.message_id))
        assert (await consumer.message()).attempts == 2
        assert 5 <= trio.current_time() - start_s <= 5 + 2 * SCAN_S


async def test_a_touch_that_changes_nothing_loses_no_deadline(autojump_clock: MockClock) -> None:
    """With msg_timeout equal to max-msg-timeout a TOUCH is in vain, and does no harm."""
    async with nsqd_in_memory(
        msg_timeout_ns=4 * SECOND_NS, max_msg_timeout_ns=4 * SECOND_NS
    ) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=2)
        publish(broker, "t", b"1")
        first = await consumer.message()
        start_s = trio.current_time()
        await trio.sleep(2)
        publish(broker, "t", b"2")
        await consumer.message()
        await consumer.say(commands.touch(first.message_id))
        assert (await consumer.message()).body == b"1"
        assert 4 <= trio.current_time() - start_s <= 4 + 2 * SCAN_S


async def test_closing_wait(autojump_clock: MockClock) -> None:
    """After CLS nothing new comes, and what is in flight can be finished."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", b"1", b"2")
        message = await consumer.message()
        await consumer.say(b"CLS\n")
        await consumer.response(b"CLOSE_WAIT")
        await finish(consumer, message)
        await consumer.silence(5)
        core = broker.topics["t"].channels["c"].core
        assert (core.finish_count, core.depth) == (1, 1)


async def test_nothing_follows_close_wait(autojump_clock: MockClock) -> None:
    """A message that comes together with CLS is written before its answer, or not at all."""
    async with nsqd_in_memory() as broker:
        for _ in range(20):  # the tasks of a connection run in either order
            consumer = Conversation.begin(broker)
            await consumer.subscribe("t", "c", ready=1)
            await wait_all_tasks_blocked()
            publish(broker, "t", b"1")
            await consumer.say(b"CLS\n")
            while not isinstance(frame := await consumer.frame(), Response):
                assert isinstance(frame, MessageFrame)
                await finish(consumer, frame)
            assert frame == Response(b"CLOSE_WAIT")
            await consumer.silence(1)
            consumer.close()


async def test_a_message_belongs_to_its_client(autojump_clock: MockClock) -> None:
    """Another client's FIN, REQ and TOUCH are refused, and hurt neither."""
    async with nsqd_in_memory() as broker:
        owner, thief = Conversation.begin(broker), Conversation.begin(broker)
        await owner.subscribe("t", "c", ready=1)
        await thief.subscribe("t", "c")
        publish(broker, "t", b"1")
        message = await owner.message()
        for command in (
            commands.finish(message.message_id),
            commands.requeue(message.message_id, 0),
            commands.touch(message.message_id),
        ):
            await thief.say(command)
            assert "client does not own message" in await thief.error()
        await finish(owner, message)
        assert broker.topics["t"].channels["c"].core.finish_count == 1


async def test_a_deleted_channel_leaves_no_task(autojump_clock: MockClock) -> None:
    """Neither does a deleted topic, of itself and of its channels."""
    async with nsqd_in_memory() as broker:
        assert broker._tasks is not None
        await wait_all_tasks_blocked()
        before = {task.name for task in broker._tasks.child_tasks}
        broker.topic("t").channel("c")
        broker.topic("t").channel("d")
        await wait_all_tasks_blocked()
        assert len(broker._tasks.child_tasks) == len(before) + 3
        broker.topics["t"].delete_channel("c")
        await wait_all_tasks_blocked()
        assert len(broker._tasks.child_tasks) == len(before) + 2
        broker.delete_topic("t")
        await wait_all_tasks_blocked()
        assert {task.name for task in broker._tasks.child_tasks} == before
