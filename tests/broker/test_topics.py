"""A topic's task: from publishing to the channels."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, connect, full_disk, is_stuck, numbered, publish
from trionsq.broker.topic import PublishRefused
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

BATCHES = 70
assert BATCHES > 64, "more than a memory channel of the topic holds"


async def test_every_channel_gets_every_message(autojump_clock: MockClock) -> None:
    """Fan-out: each of many channels gets each message once, with the same id, in order."""
    bodies = numbered(100)
    async with nsqd_in_memory() as broker:
        consumers = []
        for number in range(20):
            consumer = Conversation.begin(broker)
            await consumer.subscribe("t", f"c{number}", ready=100)
            consumers.append(consumer)
        publish(broker, "t", *bodies[:60])
        publish(broker, "t", *bodies[60:])
        seen = [await consumer.messages(100) for consumer in consumers]
        check_balances(broker)
    for messages in seen:
        assert [message.body for message in messages] == bodies
        assert [message.message_id for message in messages] == [
            message.message_id for message in seen[0]
        ]


async def test_messages_wait_for_the_first_channel(autojump_clock: MockClock) -> None:
    """The first channel of a topic gets the backlog; a later one only what comes after it."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"early")
        first, second = Conversation.begin(broker), Conversation.begin(broker)
        await first.subscribe("t", "c1", ready=10)
        assert (await first.message()).body == b"early"
        await second.subscribe("t", "c2", ready=10)
        publish(broker, "t", b"late")
        assert (await first.message()).body == b"late"
        assert (await second.message()).body == b"late"
        await second.silence(1)


@pytest.mark.parametrize("count", [BATCHES, 63, 64, 65, 200])
async def test_a_new_topic_starts_with_all_that_one_read_brought(
    count: int, autojump_clock: MockClock
) -> None:
    """SUB, RDY and many MPUBs in one read, before the new tasks have run: nothing is stuck."""
    bodies = numbered(count)
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker, capacity_bytes=2**20)
        await consumer.say(
            commands.subscribe("t", "c"),
            commands.ready(2500),
            *(commands.publish_many("t", [body]) for body in bodies),
        )
        for _ in range(count + 1):
            await consumer.response()
        messages = await consumer.messages(count)
        assert sorted(message.body for message in messages) == bodies
        check_balances(broker)


@pytest.mark.parametrize("count", [1, BATCHES, 500])
async def test_batches_keep_their_order(count: int, autojump_clock: MockClock) -> None:
    """One publisher, one consumer, a quiet channel: first in, first out, however many batches."""
    bodies = numbered(count)
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=2500)
        for body in bodies:
            publish(broker, "t", body)
        assert [message.body for message in await consumer.messages(count)] == bodies


async def test_a_paused_topic_holds_messages(autojump_clock: MockClock) -> None:
    """Publishing goes on, nothing is handed to the channels, and unpausing hands over all."""
    bodies = numbered(5)
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        topic = broker.topics["t"]
        topic.pause()
        for body in bodies:
            publish(broker, "t", body)
        await consumer.silence(5)
        assert topic.core.depth == 5
        topic.unpause()
        assert [message.body for message in await consumer.messages(5)] == bodies
        assert topic.core.depth == 0


async def test_a_pause_holds_messages_that_the_task_was_woken_for(
    autojump_clock: MockClock,
) -> None:
    """A topic that is paused after it was woken, and before its turn, hands on nothing."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        await wait_all_tasks_blocked()
        topic = broker.topics["t"]
        publish(broker, "t", b"1")
        topic.pause()
        publish(broker, "t", b"2")
        await consumer.silence(5)
        assert topic.core.depth == 2
        topic.unpause()
        assert {m.body for m in await consumer.messages(2)} == {b"1", b"2"}


@pytest.mark.parametrize("count", [1, 3, BATCHES])
async def test_emptying_a_topic_drops_messages_that_the_task_was_woken_for(
    count: int, autojump_clock: MockClock
) -> None:
    """Messages published before it are dropped, messages published after it are delivered."""
    async with nsqd_in_memory() as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=2500)
        await wait_all_tasks_blocked()
        topic = broker.topics["t"]
        for body in numbered(count):
            publish(broker, "t", body)
        topic.empty()
        assert topic.core.depth == 0
        assert topic.core.dropped["emptied"] == count
        publish(broker, "t", b"after")
        assert (await consumer.message()).body == b"after"
        await consumer.silence(1)


async def test_a_deleted_topic_takes_its_clients_along(autojump_clock: MockClock) -> None:
    """Deleting closes the consumers without a frame; then the name is free and new."""
    async with nsqd_in_memory() as broker:
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=1)
        publish(broker, "t", b"1", b"2")
        await consumer.message()
        old = broker.topics["t"]
        broker.delete_topic("t")
        with pytest.raises(PublishRefused, match="exiting"):
            old.publish(None)  # type: ignore[arg-type]  # refused before it looks
        assert await consumer.end() == []
        assert broker.topics == {}
        publish(broker, "t", b"new")
        assert broker.topics["t"].core.message_count == 1
        with pytest.raises(KeyError):
            broker.delete_topic("other")


async def test_an_ephemeral_topic_ends_with_its_last_channel(autojump_clock: MockClock) -> None:
    """It stays while it has a channel, or never had one."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t#ephemeral", b"1")
        assert "t#ephemeral" in broker.topics
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t#ephemeral", "c#ephemeral", ready=1)
        await consumer.message()
        consumer.close()
        await wait_all_tasks_blocked()
        assert broker.topics == {}


async def test_an_ephemeral_topic_drops_what_is_over(autojump_clock: MockClock) -> None:
    """Its overflow never fails a publish; what it drops is counted."""
    async with nsqd_in_memory(mem_queue_size=3) as broker:
        publisher = Conversation.begin(broker)
        for body in numbered(5):
            await publisher.say(commands.publish("t#ephemeral", body))
            await publisher.response()
        core = broker.topics["t#ephemeral"].core
        assert (core.depth, core.message_count) == (3, 5)
        assert core.dropped == {"ephemeral overflow": 2}


async def test_what_memory_has_no_room_for_goes_to_disk(autojump_clock: MockClock) -> None:
    """A run of PUBs beyond --mem-queue-size is answered by OKs, and all of it arrives."""
    async with nsqd_in_memory(mem_queue_size=3) as broker:
        publisher = Conversation.begin(broker)
        await publisher.say(*(commands.publish("t", body) for body in numbered(7)))
        for _ in range(7):
            await publisher.response()
        store = broker.topics["t"].core.store
        assert (store.memory.depth, store.backend.depth) == (3, 4)
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        assert sorted(message.body for message in await consumer.messages(7)) == numbered(7)


async def test_a_run_of_pubs_is_refused_before_any_ok(autojump_clock: MockClock) -> None:
    """PUBs that came together and find no room, nor a disk: one E_PUB_FAILED, nothing is kept."""
    disk = full_disk()
    async with nsqd_in_memory(mem_queue_size=3, disk=disk) as broker:
        publisher = Conversation.begin(broker)
        await publisher.say(*(commands.publish("t", body) for body in numbered(7)))
        assert (await publisher.error()).startswith("E_PUB_FAILED PUB failed ")
        assert await publisher.end() == []
        assert broker.topics["t"].core.depth == 0
    assert disk.faults


@pytest.mark.parametrize("sizes", [(8,), (8, 9)])
async def test_mpub_is_all_or_nothing(sizes: tuple[int, ...], autojump_clock: MockClock) -> None:
    """An MPUB for which memory has no room and the disk neither leaves nothing behind."""
    bodies = [body for size in sizes for body in numbered(2, size)]
    disk = full_disk()
    async with nsqd_in_memory(mem_queue_size=2 * len(sizes) + 1, disk=disk) as broker:
        publisher = Conversation.begin(broker)
        await publisher.say(commands.publish_many("t", bodies))
        await publisher.response()
        await publisher.say(commands.publish_many("t", bodies))
        assert (await publisher.error()).startswith("E_MPUB_FAILED MPUB failed ")
        core = broker.topics["t"].core
        assert (core.depth, core.message_count) == (len(bodies), len(bodies))
    assert disk.faults


@pytest.mark.parametrize("size", [1, 4, 40])
@pytest.mark.parametrize("command", ["PUB", "MPUB"])
async def test_a_fast_publisher_waits_for_the_topics_task(
    command: str, size: int, autojump_clock: MockClock
) -> None:
    """While messages move on, a publisher that finds no room waits and is not refused.

    That is so too when it is a channel whose room is just about to come back.
    """
    count = 10 * size
    bodies = numbered(count)
    async with nsqd_in_memory(mem_queue_size=size) as broker:
        consumers = [Conversation.begin(broker) for _ in range(2)]
        for consumer in consumers:
            await consumer.subscribe("t", "c", ready=count)
        publisher = Conversation.begin(broker)
        if command == "PUB":
            await publisher.say(*(commands.publish("t", body) for body in bodies))
        else:
            await publisher.say(
                *(
                    commands.publish_many("t", bodies[first : first + size])
                    for first in range(0, count, size)
                )
            )
        for _ in range(count if command == "PUB" else 10):
            await publisher.response()
        await wait_all_tasks_blocked()
        channel = broker.topics["t"].channels["c"]
        assert channel.core.in_flight_count == count
        check_balances(broker)


async def test_a_full_channel_does_not_stop_the_topic(autojump_clock: MockClock) -> None:
    """What a slow channel has no memory for goes to its disk queue; the others go on."""
    bodies = numbered(12)
    async with nsqd_in_memory(mem_queue_size=2) as broker:
        quick, slow = Conversation.begin(broker), Conversation.begin(broker)
        await quick.subscribe("t", "quick", ready=100)
        await slow.subscribe("t", "slow")
        for first in range(0, 12, 2):
            publish(broker, "t", *bodies[first : first + 2])
        assert sorted(m.body for m in await quick.messages(12)) == bodies
        store = broker.topics["t"].channels["slow"].core.store
        assert (store.memory.depth, store.backend.depth) == (2, 10)
        await slow.say(commands.ready(100))
        assert sorted(m.body for m in await slow.messages(12)) == bodies
        assert broker.health == "OK"
        check_balances(broker)


async def test_a_channel_that_the_disk_refuses_stops_the_topic(autojump_clock: MockClock) -> None:
    """The others keep what they got, /ping is red; with room all goes on, nothing comes twice."""
    bodies = numbered(12)
    async with nsqd_in_memory(mem_queue_size=6, disk=full_disk()) as broker:
        quick, slow = Conversation.begin(broker), Conversation.begin(broker)
        await quick.subscribe("t", "quick", ready=100)
        await slow.subscribe("t", "slow")
        topic = broker.topics["t"]
        for first in range(0, 12, 2):
            publish(broker, "t", *bodies[first : first + 2])
            await wait_all_tasks_blocked()
        assert is_stuck(topic)
        assert topic.channels["slow"].core.depth == 6
        assert broker.health.startswith("NOK - ")
        with pytest.raises(PublishRefused):
            publish(broker, "t", *numbered(6))
        got = [m.body for m in await quick.messages(8 if "quick" < "slow" else 6)]
        await slow.say(commands.ready(100))
        assert sorted(m.body for m in await slow.messages(12)) == bodies
        got += [m.body for m in await quick.messages(12 - len(got))]
        assert sorted(got) == bodies
        await quick.silence(1)
        await slow.silence(1)
        assert not is_stuck(topic)
        assert topic.core.depth == 0
        check_balances(broker)


async def test_deleting_the_full_channel_lets_the_topic_go_on(autojump_clock: MockClock) -> None:
    """A channel that nobody reads can be deleted, and the others get the rest."""
    bodies = numbered(10)
    async with nsqd_in_memory(mem_queue_size=4, disk=full_disk()) as broker:
        quick = Conversation.begin(broker)
        await quick.subscribe("t", "quick", ready=100)
        topic = broker.topics["t"]
        topic.channel("forgotten")
        for body in bodies[:8]:
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        assert is_stuck(topic)
        topic.delete_channel("forgotten")
        await wait_all_tasks_blocked()
        for body in bodies[8:]:
            publish(broker, "t", body)
        assert sorted(m.body for m in await quick.messages(10)) == bodies
        await quick.silence(1)


async def test_sampling_makes_room_too(autojump_clock: MockClock) -> None:
    """A client that samples nearly all away empties a full channel, and the topic goes on."""
    async with nsqd_in_memory(
        mem_queue_size=2, disk=full_disk(), max_msg_timeout_ns=10**15
    ) as broker:
        consumer = Conversation.begin(broker)
        await consumer.say(commands.identify({"sample_rate": 1}))
        await consumer.response()
        await consumer.subscribe("t", "c")
        for body in numbered(4):
            publish(broker, "t", body)
            await wait_all_tasks_blocked()
        topic = broker.topics["t"]
        assert is_stuck(topic)
        await consumer.say(commands.ready(100))
        await trio.sleep(1)
        assert not is_stuck(topic)
        assert topic.core.depth == 0
        check_balances(broker)


async def test_an_mpub_whose_topic_is_deleted_before_its_body_has_come(
    autojump_clock: MockClock,
) -> None:
    """It makes the topic anew, as a PUB a moment later would: what is confirmed is there."""
    said = commands.publish_many("t", [b"a", b"b"])
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"old")
        publisher = Conversation.begin(broker)
        await publisher.say(said[:-1])
        await wait_all_tasks_blocked()
        before = broker.topics["t"]
        broker.delete_topic("t")
        await publisher.say(said[-1:])
        await publisher.response()
        topic = broker.topics["t"]
        assert topic is not before
        assert (topic.core.message_count, topic.core.depth) == (2, 2)
        assert before.core.held == 0
