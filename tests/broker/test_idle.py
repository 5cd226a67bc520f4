"""What idle connections hold after large traffic: nothing of it."""

from __future__ import annotations

import gc
import tracemalloc

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import connect, finish, numbered, publish
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

CONNECTIONS = 20
BODY_NBYTES = 100_000


async def test_publishers_hold_nothing_of_what_they_sent(autojump_clock: MockClock) -> None:
    """Neither the parser nor the task that reads has the last read in its hands."""
    async with nsqd_in_memory() as broker:
        talks = [connect(broker, capacity_bytes=2**20)[0] for _ in range(CONNECTIONS)]
        await wait_all_tasks_blocked()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for talk in talks:
            await talk.say(commands.publish("t", bytes(BODY_NBYTES)))
            await talk.response()
        broker.delete_topic("t")
        await wait_all_tasks_blocked()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert len(broker.clients) == CONNECTIONS
        assert held < CONNECTIONS * BODY_NBYTES / 20


async def test_consumers_hold_nothing_of_what_they_got(autojump_clock: MockClock) -> None:
    """Not the frames, and after a while not the table of what was in flight either."""
    async with nsqd_in_memory() as broker:
        talks = []
        for number in range(CONNECTIONS):
            talk, _, _ = connect(broker, capacity_bytes=2**20)
            await talk.subscribe("t", f"c{number}", ready=2500)
            talks.append(talk)
        await wait_all_tasks_blocked()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        publish(broker, "t", *numbered(2500, size=100))
        for talk in talks:
            await finish(talk, *await talk.messages(2500))
        for _ in range(3):
            for talk in talks:
                await talk.say(commands.nop())
            await trio.sleep(10)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert len(broker.clients) == CONNECTIONS
        # A table for 2,500 messages takes 150 kB.
        assert held < CONNECTIONS * 20_000
