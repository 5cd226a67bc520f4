"""Publishes with a key over TCP: a repeat is stored once, and other clients see nothing of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.broker.support import Gate, check_balances, consume
from trionsq.broker.broker import Broker
from trionsq.broker.logs import log_of
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands
from trionsq.wire.client import Response

LOG: dict[str, Any] = {"storage": "log", "durability": "always"}
ASK: dict[str, object] = {"feature_negotiation": True, "idempotent_publish": True}


async def asking(broker: Broker) -> Conversation:
    """A client that may use keys."""
    talk = Conversation.begin(broker)
    assert (await identified(talk, ASK))["idempotent_publish"] is True
    return talk


async def identified(talk: Conversation, features: dict[str, object]) -> dict[str, Any]:
    """The answer to IDENTIFY."""
    await talk.say(commands.identify(features))
    frame = await talk.frame()
    assert isinstance(frame, Response)
    return dict(json.loads(frame.data))


def count(broker: Broker, topic: str = "t") -> int:
    """Messages that were stored."""
    check_balances(broker)
    return broker.topics[topic].core.message_count


@pytest.mark.parametrize("options", [{}, LOG], ids=["default", "log"])
@pytest.mark.parametrize(
    "command",
    [
        commands.publish("t", b"x", b"k"),
        commands.publish_many("t", [b"x", b"yy"], b"k"),
        commands.publish_deferred("t", 1000, b"x", b"k"),
    ],
    ids=["PUB", "MPUB", "DPUB"],
)
async def test_a_repeat_is_stored_once(command: bytes, options: dict[str, Any]) -> None:
    """In one read, in a later one, and from another connection; each is answered OK."""
    async with nsqd_in_memory(**options) as broker:
        one, other = await asking(broker), await asking(broker)
        await one.say(command + command)
        await one.response()
        await one.response()
        stored = count(broker)
        await other.say(command)
        await other.response()
        await one.say(command)
        await one.response()
        assert count(broker) == stored == (2 if b"MPUB" in command else 1)
        assert broker.registry.keys.repeated_count == 3


async def test_a_body_in_pieces_has_its_key() -> None:
    """An MPUB whose body comes byte by byte, and a PUB."""
    async with nsqd_in_memory() as broker:
        talk = await asking(broker)
        for command in (
            commands.publish_many("t", [b"x", b"yy"], b"k"),
            commands.publish("t", b"x", b"l"),
        ):
            for _ in range(2):
                for at in range(len(command)):
                    await talk.say(command[at : at + 1])
                    await trio.testing.wait_all_tasks_blocked()
                await talk.response()
        assert count(broker) == 3


async def test_a_key_counts_for_its_topic_and_its_messages() -> None:
    """The same key in another topic is another one; other messages with it are refused."""
    async with nsqd_in_memory() as broker:
        talk = await asking(broker)
        await talk.say(commands.publish("t", b"x", b"k"), commands.publish("u", b"x", b"k"))
        await talk.response()
        await talk.response()
        assert (count(broker), count(broker, "u")) == (1, 1)
        for other in (
            commands.publish("t", b"y", b"k"),
            commands.publish_many("t", [b"x", b"x"], b"k"),
            commands.publish_deferred("t", 5, b"x", b"k"),
        ):
            talk = await asking(broker)
            await talk.say(other)
            command = other.split()[0].decode()
            assert await talk.error() == f"E_KEY_REUSED {command} key stands for other messages"
            assert not await talk.end()
        assert count(broker) == 1


async def test_a_repeat_shares_the_round_of_the_first(autojump_clock: MockClock) -> None:
    """It is answered when the first publish is safe, not before; it is stored once."""
    background = Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        broker.topic("t")
        one, other = await asking(broker), await asking(broker)
        background.shut()
        for talk in (one, other):
            await talk.say(commands.publish("t", b"x", b"k"))
        await one.silence(5)
        await other.silence(5)
        background.open()
        await one.response()
        await other.response()
        assert count(broker) == 1


async def test_after_a_failure_the_repeat_is_a_new_publish() -> None:
    """A round that failed stored nothing, so its key stands for nothing."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        broker.topic("t")
        talk = await asking(broker)
        disk.fail(28, forever=True)
        await talk.say(commands.publish("t", b"x", b"k"))
        assert (await talk.error()).startswith("E_PUB_FAILED")
        disk.heal()
        for _ in range(2):
            talk = await asking(broker)
            await talk.say(commands.publish("t", b"y", b"k"))
            await talk.response()
        assert count(broker) == 1


async def test_a_key_is_forgotten_behind_the_window(autojump_clock: MockClock) -> None:
    """A repeat after --idempotency-window is a publish of its own, and the key's memory is free."""
    async with nsqd_in_memory(idempotency_window_ns=10 * 10**9) as broker:
        talk = await asking(broker)
        for wait_s, stored in ((0, 1), (9, 1), (1.5, 2), (9, 2), (30, 3)):
            await trio.sleep(wait_s)
            await talk.say(commands.publish("t", b"x", b"k"))
            await talk.response()
            assert count(broker) == stored
        await trio.sleep(12)
        assert not broker.registry.keys
        assert not broker.topics["t"].keys


async def test_a_deleted_topic_takes_its_keys_with_it_and_an_emptied_one_keeps_them() -> None:
    """Of a topic made again nothing was published; what was emptied was published."""
    async with nsqd_in_memory(**LOG) as broker:
        talk = await asking(broker)

        async def publish() -> None:
            await talk.say(commands.publish("t", b"x", b"k"))
            await talk.response()

        await publish()
        broker.topics["t"].empty()
        await publish()
        assert count(broker) == 1
        assert broker.topics["t"].core.depth == 0
        broker.delete_topic("t")
        await publish()
        assert (count(broker), broker.topics["t"].core.depth) == (1, 1)


async def test_who_does_not_ask_sees_nothing_of_it() -> None:
    """Neither in the answer to IDENTIFY, nor in that to a third parameter, which is ignored."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker)
        assert "idempotent_publish" not in await identified(talk, {"feature_negotiation": True})
        for command in (
            commands.publish("t", b"x", b"k"),
            commands.publish_many("t", [b"x"], b"k"),
            commands.publish_deferred("t", 0, b"x", b"k"),
        ):
            for _ in range(2):
                await talk.say(command)
                await talk.response()
        assert count(broker) == 6


@pytest.mark.parametrize("off", [{"idempotency_window_ns": 0}, {"idempotency_max_keys": 0}])
async def test_an_nsqd_without_keys_says_so(off: dict[str, Any]) -> None:
    """Who asks is told no, and keys are ignored."""
    async with nsqd_in_memory(**off) as broker:
        talk = Conversation.begin(broker)
        assert (await identified(talk, ASK))["idempotent_publish"] is False
        for _ in range(2):
            await talk.say(commands.publish("t", b"x", b"k"))
            await talk.response()
        assert count(broker) == 2


async def test_an_identify_that_does_not_ask_again_ends_it() -> None:
    """The last IDENTIFY counts, as for all that it settles."""
    async with nsqd_in_memory() as broker:
        talk = await asking(broker)
        await identified(talk, {"feature_negotiation": True})
        for _ in range(2):
            await talk.say(commands.publish("t", b"x", b"k"))
            await talk.response()
        assert count(broker) == 2


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"PUB t k e e", "E_INVALID PUB invalid number of parameters"),
        (b"DPUB t 1 k e e", "E_INVALID DPUB invalid number of parameters"),
        (b'PUB t k "', 'E_BAD_KEY PUB key "\\"" is not valid'),
        (b"PUB t ", 'E_BAD_KEY PUB key "" is not valid'),
        (b"MPUB t %b" % (b"k" * 65), f'E_BAD_KEY MPUB key "{"k" * 65}" is not valid'),
        (b"PUB $ k", 'E_BAD_TOPIC PUB topic name "$" is not valid'),
        (b"DPUB t x k", "E_INVALID DPUB could not parse timeout x"),
    ],
)
async def test_what_is_no_command_with_a_key_is_refused(line: bytes, error: str) -> None:
    """As other faults of these commands: the connection ends."""
    async with nsqd_in_memory() as broker:
        talk = await asking(broker)
        await talk.say(line + b"\n")
        assert await talk.error() == error
        with pytest.raises(UnexpectedFrame):
            await talk.frame()


async def test_large_publishes_are_compared_in_turns(autojump_clock: MockClock) -> None:
    """Of more messages than one step hashes: the repeat is known, and one that differs at its end
    is not."""
    bodies = [b"%d" % number for number in range(5000)]
    async with nsqd_in_memory() as broker:
        talk = await asking(broker)
        for _ in range(2):
            await talk.say(commands.publish_many("t", bodies, b"k"))
            await talk.response()
        assert count(broker) == len(bodies)
        await talk.say(commands.publish_many("t", [*bodies[:-1], b"other"], b"k"))
        assert (await talk.error()).startswith("E_KEY_REUSED")


async def test_a_repeat_finds_its_key_when_the_disk_is_full() -> None:
    """What is stored is answered OK, though nothing new is taken."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, **LOG) as broker:
        talk = await asking(broker)
        await talk.say(commands.publish("t", b"x", b"k"))
        await talk.response()
        disk.fail(28, forever=True)
        await talk.say(commands.publish("t", b"x", b"k"))
        await talk.response()
        disk.heal()
        _, messages = await consume(broker, "t", "c", 1)
        assert [message.body for message in messages] == [b"x"]


async def test_channels_get_publishes_with_keys_together() -> None:
    """A topic hands on a few batches in each turn. If each publish were one of them, a client that
    does not wait for each OK would be far ahead of the channels."""
    total, background = 400, Gate()
    async with nsqd_in_memory(background=background, **LOG) as broker:
        topic = broker.topic("t")
        talk = await asking(broker)
        background.shut()
        lines = [commands.publish("t", b"%d" % number, b"%d" % number) for number in range(total)]
        await talk.say(b"".join(lines))
        await talk.silence(5)
        background.run_all()  # shut, so that each round ends before the next one is written
        background.open()
        for _ in lines:
            await talk.response()
        topic_log = log_of(topic)
        assert topic_log is not None
        assert len(topic_log.cache) < total / 20
        _, messages = await consume(broker, "t", "c", total)
        assert [message.body for message in messages] == [b"%d" % n for n in range(total)]
