"""A drain: no more publishes, and nsqd ends when nothing is left."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trionsq.broker.drain import DrainPhase
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}
ENGINES = pytest.mark.parametrize("options", [{}, LOG], ids=["default", "log"])


@ENGINES
async def test_each_publish_is_refused_and_the_connection_stays_for_a_second(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    """So a client that has sent more gets an answer to each; afterwards it finds another node."""
    async with nsqd_in_memory(**options) as broker:
        talk, idle = Conversation.begin(broker), Conversation.begin(broker)
        await talk.say(commands.publish("t", b"before"))
        await talk.response()
        broker.topic("t").channel("c")
        broker.drain.begin()
        await talk.say(commands.publish("t", b"x") * 3 + commands.publish_many("t", [b"x", b"y"]))
        await talk.say(commands.publish_deferred("t", 1, b"x"))
        assert [await talk.error() for _ in range(5)] == [
            *["E_PUB_FAILED PUB failed draining"] * 3,
            "E_MPUB_FAILED MPUB failed draining",
            "E_DPUB_FAILED DPUB failed draining",
        ]
        await talk.say(commands.nop())
        assert broker.topic("t").core.message_count == 1
        start_s = trio.current_time()
        with pytest.raises(UnexpectedFrame):
            await talk.frame()
        assert 0.5 < trio.current_time() - start_s < 1.5
        assert len(broker.clients) == 1  # who published nothing stays
        await idle.say(commands.nop())


@pytest.mark.parametrize(
    "command",
    [
        commands.publish("new", b"x"),
        commands.publish_many("new", [b"x", b"y"]),
        commands.publish_deferred("new", 1, b"x"),
    ],
    ids=["PUB", "MPUB", "DPUB"],
)
async def test_a_refused_publish_makes_no_topic(command: bytes) -> None:
    """Also if its body comes later; the connection then understands the next command."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker)
        broker.drain.begin()
        await talk.say(command[:-1])
        await wait_all_tasks_blocked()
        await talk.say(command[-1:] + command)
        assert (await talk.error()).endswith("PUB failed draining")
        assert (await talk.error()).endswith("PUB failed draining")
        assert not broker.topics


async def test_a_topic_that_a_consumer_makes_refuses_publishes(autojump_clock: MockClock) -> None:
    """A consumer may subscribe during a drain, and nothing gets in behind it."""
    async with nsqd_in_memory() as broker:
        broker.drain.begin()
        talk, publisher = Conversation.begin(broker), Conversation.begin(broker)
        await talk.subscribe("t", "c")
        await publisher.say(commands.publish("t", b"x"))
        assert await publisher.error() == "E_PUB_FAILED PUB failed draining"
        assert broker.topics["t"].core.message_count == 0


@ENGINES
async def test_it_ends_when_the_last_message_is_finished(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    """Waiting, deferred and in flight: each keeps the node; consumers get them all."""
    async with nsqd_in_memory(**options, drain_timeout_ns=0) as broker:
        talk = Conversation.begin(broker)
        broker.topic("t").channel("c")
        await talk.say(commands.publish("t", b"one") + commands.publish_deferred("t", 5000, b"two"))
        await talk.response()
        await talk.response()
        broker.drain.begin()
        await trio.sleep(20)
        assert broker.drain.remaining == 2
        await talk.subscribe("t", "c", ready=10)
        first, second = await talk.message(), await talk.message()
        assert {first.body, second.body} == {b"one", b"two"}
        await talk.say(commands.finish(first.message_id))
        await trio.sleep(5)
        assert (broker.drain.phase, broker.drain.remaining) == (DrainPhase.DRAINING, 1)
        assert not broker.drain.ended.is_set()
        assert broker.not_ready_reason == "draining"
        await talk.say(commands.finish(second.message_id))
        with trio.fail_after(5):
            await broker.drain.ended.wait()
        assert broker.drain.phase is DrainPhase.EMPTY


@ENGINES
async def test_at_its_limit_what_is_left_is_saved(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    """The next nsqd has it."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **options, drain_timeout_ns=10 * 10**9) as broker:
        talk = Conversation.begin(broker)
        broker.topic("t").channel("c")
        await talk.say(commands.publish("t", b"one"))
        await talk.response()
        broker.drain.begin()
        start_s = trio.current_time()
        await broker.drain.ended.wait()
        assert 10 <= trio.current_time() - start_s < 11
        assert broker.drain.phase is DrainPhase.LIMIT
    assert not broker.unsaved
    async with nsqd_in_memory(disk=disk, **options) as broker:
        assert broker.not_ready_reason is None
        talk = Conversation.begin(broker)
        await talk.subscribe("t", "c", ready=1)
        assert (await talk.message()).body == b"one"


async def test_a_cancelled_drain_takes_publishes_again(autojump_clock: MockClock) -> None:
    """And neither its limit nor an empty node ends nsqd; a second drain does."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker)
        await talk.say(commands.publish("t", b"x"))
        await talk.response()
        broker.drain.begin()
        await talk.say(commands.publish("t", b"x"))
        await talk.error()
        await trio.sleep(0.5)
        broker.drain.cancel()
        assert broker.not_ready_reason is None
        await trio.sleep(2)
        await talk.say(commands.publish("t", b"x"))
        await talk.response()
        await broker.topics["t"].empty().wait()
        await trio.sleep(100)
        assert not broker.drain.ended.is_set()
        broker.drain.begin()
        await broker.drain.ended.wait()


async def test_a_drain_without_exit_only_waits(autojump_clock: MockClock) -> None:
    """The node is empty, refuses publishes, and stays."""
    async with nsqd_in_memory() as broker:
        broker.topic("t")
        broker.drain.begin(exits=False)
        await trio.sleep(100)
        assert broker.drain.phase is DrainPhase.EMPTY
        assert not broker.drain.ended.is_set()
        assert broker.topics["t"].refusal


@ENGINES
async def test_a_repeat_of_what_is_stored_is_answered(options: dict[str, Any]) -> None:
    """Its publisher must not send it to another node; a new one is refused."""
    async with nsqd_in_memory(**options) as broker:
        talk = Conversation.begin(broker)
        await talk.say(commands.identify({"feature_negotiation": True, "idempotent_publish": True}))
        await talk.frame()
        await talk.say(commands.publish("t", b"x", b"k"))
        await talk.response()
        broker.drain.begin()
        await talk.say(commands.publish("t", b"x", b"k") + commands.publish("t", b"y", b"l"))
        await talk.response()
        assert await talk.error() == "E_PUB_FAILED PUB failed draining"
        assert broker.topics["t"].core.message_count == 1
