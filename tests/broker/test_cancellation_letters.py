"""Each await of policies, dead letters and their replays is cancelled once: nothing is lost."""

from __future__ import annotations

import pytest
import trio

from tests.broker.support import check_nobody_left, consume
from tests.broker.test_cancellation_life import received
from tests.cancellation import BOTH_IN_SOAK, CancelAt, When, run_counted, sweep_awaits
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.core.policies import parse_policy
from trionsq.storage.letters import LetterFilter, SqliteLetters
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

BODIES = [b"dies", b"asked", b"expires", b"waits"]
POLICY = {"topics": "t", "max_attempts": 1, "message_ttl": "20s", "when_expired": "dead_letter"}


class KeptLetters(SqliteLetters):
    """Letters that outlive their broker, as in a file."""

    def close(self) -> None:
        return None


class Life:
    """A broker whose messages die, expire and are replayed.

    Attributes:
        acknowledged: bodies that nsqd has confirmed.
        broker: None before the start.
    """

    def __init__(self, disk: SimulatedDisk, clock: Clock, letters: SqliteLetters) -> None:
        self.acknowledged: set[bytes] = set()
        self.broker: Broker | None = None
        self.is_complete = False
        self._disk, self._clock, self._letters = disk, clock, letters

    async def run(self) -> None:
        async with nsqd_in_memory(
            disk=self._disk,
            clock=self._clock,
            letters=self._letters,
            storage="log",
            durability="always",
        ) as self.broker:
            await self._live(self.broker)
        self.is_complete = True

    async def _live(self, broker: Broker) -> None:
        assert await broker.policies.put(parse_policy("p", POLICY))
        channel = broker.topic("t").channel("c")
        talk = Conversation.begin(broker)
        await talk.say(commands.publish_many("t", BODIES[:2]))
        await talk.response()
        self.acknowledged.update(BODIES[:2])
        consumer, messages = await consume(broker, "t", "c", 2)
        await consumer.say(commands.ready(0), commands.requeue(messages[0].message_id, 0))
        await talk.say(commands.publish_many("t", BODIES[2:]))
        await talk.response()
        self.acknowledged.update(BODIES[2:])
        talk.close()
        [client] = channel.clients
        assert channel.given_up is not None
        assert channel.given_up.ask(client.consumer, messages[1].message_id, "asked", 0.0)
        consumer.close()
        await trio.sleep(2)
        # One comes back, and expires with those that nobody has read.
        await broker.dead_letters.replay(LetterFilter(topic="t", channel="c"), 1, 100)
        await trio.sleep(30)
        assert await broker.policies.delete("p")
        await broker.dead_letters.discard(LetterFilter(topic="t", reason="nothing"), 1)


async def live(cancel_at: CancelAt) -> None:
    disk, clock = SimulatedDisk(), Clock.from_trio()
    letters = KeptLetters(disk, ":memory:")
    life = Life(disk, clock, letters)
    await run_counted(cancel_at, life.run)
    assert life.is_complete or cancel_at.has_fired
    if life.broker is not None:
        assert life.broker._tasks is not None
        assert not life.broker._tasks.child_tasks
        check_nobody_left(life.broker)
    after = disk if life.is_complete else disk.after_kill()
    async with nsqd_in_memory(
        disk=after, clock=clock, letters=letters, storage="log", durability="always"
    ) as broker:
        broker.topic("t").channel("c")
        if "p" in broker.policies.applied.policies:
            assert await broker.policies.delete("p")
        await trio.sleep(1)
        dead = {one.letter.body for one in letters.find(LetterFilter(), 100, 1000)[0]}
        assert life.acknowledged <= dead | await received(broker, "t")
        if life.is_complete:
            assert dead == set(BODIES)


@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_letters_cancelled_at_any_await(when: When) -> None:
    """No task is left, and each message that was acknowledged is in the channel or a letter."""
    sweep_awaits(live, when, least=50, one_in=40)
