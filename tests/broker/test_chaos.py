"""In whatever disorder: nothing acknowledged is lost, all balances, and nothing is left behind."""

from __future__ import annotations

import logging
from collections import Counter
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.broker.chaos import MOODY, STEADY, Chaos
from tests.broker.support import Gate, check_balances, check_nobody_left
from tests.soak import by_level, more_in_soak
from trionsq.broker.runtime import Clock
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

SEEDS = range(by_level(test=2, short=10, full=400))
LASTS_S = 15.0
# Longer than every time-out and delay.
QUIET_S = 6.0
KINDS = {
    "FIN", "REQ", "TOUCH", "RDY", "ignore", "sleep", "too late", "refused",
    "close", "half close", "break in", "break out", "stall", "closed", "CLS",
    "topic", "steady", "moody", "empty", "delete",
    "disk failed", "disk held up", "overflowed", "restarted",
}  # fmt: skip


async def run_chaos(seed: int, happened: Counter[str]) -> None:
    """One run. Balances are looked at all the time, and what must have arrived in the end."""
    random = Random(seed)
    disk, gate, clock = SimulatedDisk(random=Random(seed)), Gate(), Clock.from_trio()
    async with nsqd_in_memory(
        disk=disk,
        background=gate,
        clock=clock,
        seed=seed,
        mem_queue_size=random.choice((0, 5, 40)),
        max_bytes_per_file=random.choice((1500, 100_000)),
        sync_every=random.choice((1, 10, 2500)),
        msg_timeout_ns=SECOND_NS,
        queue_scan_selection_count=random.choice((1, 20)),
    ) as broker:
        chaos = Chaos(broker, random)
        broker.topic("t").channel(STEADY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chaos.operator)
            nursery.start_soon(chaos.saboteur, disk, gate)
            for _ in range(3):
                nursery.start_soon(chaos.publisher)
            for channel in (STEADY, STEADY, STEADY, MOODY, MOODY):
                nursery.start_soon(chaos.consumer, channel)
            for _ in range(int(LASTS_S / 0.1)):
                await trio.sleep(0.1)
                check_balances(broker)
                chaos.happened["overflowed"] += broker.topics["t"].core.store.backend.depth
            nursery.cancel_scope.cancel()
        for transport in chaos.transports:
            for pipe in (transport.incoming, transport.outgoing):
                pipe.break_with(ConnectionResetError("the end"))
        disk.heal()
        gate.open()
        await trio.sleep(2)
        assert broker.health == "OK"
        check_nobody_left(broker)
        check_balances(broker)
        will_restart = random.random() < 0.5
        if not will_restart:
            await check_all_arrives(chaos)
            steady = broker.topics["t"].channels[STEADY].core
            published = broker.topics["t"].core.message_count
            assert steady.message_count == published == steady.finish_count
        assert broker.client_failures == 0
        assert all(transport.is_closed for transport in chaos.transports)
    assert (broker.unsaved, disk.open_files) == ([], 0)
    if will_restart:
        async with nsqd_in_memory(disk=disk, clock=clock, msg_timeout_ns=SECOND_NS) as broker:
            chaos.broker = broker
            await check_all_arrives(chaos)
    chaos.happened["restarted"] += will_restart
    chaos.happened["disk failed"] += disk.faults.total()
    chaos.happened["disk held up"] += gate.held_up
    happened.update(chaos.happened)


async def check_all_arrives(chaos: Chaos) -> None:
    """With everything going again, both channels run empty, and what was promised is there."""
    topic = chaos.broker.topics["t"]
    topic.unpause()
    topic.channel(MOODY)
    bodies: dict[str, set[bytes]] = {STEADY: set(), MOODY: set()}

    async def drain(name: str) -> None:
        topic.channels[name].unpause()
        talk = Conversation.begin(chaos.broker)
        await talk.subscribe("t", name, ready=100)
        while True:
            message = await talk.message()
            bodies[name].add(message.body)
            await talk.say(commands.finish(message.message_id))

    with trio.move_on_after(QUIET_S):
        async with trio.open_nursery() as nursery:
            for name in bodies:
                nursery.start_soon(drain, name)
    for name in bodies:
        core = topic.channels[name].core
        assert (core.depth, core.in_flight_count, core.deferred_count) == (0, 0, 0), core
    assert topic.core.depth == 0
    assert chaos.acknowledged <= chaos.finished | bodies[STEADY]
    assert chaos.finished | bodies[STEADY] <= chaos.sent


@more_in_soak
def test_chaos(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Some seeds; everything that can be done was done in some of them."""
    caplog.set_level(logging.CRITICAL, "trionsq")
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        monkeypatch.setattr("trio._core._run._r", Random(seed))
        try:
            trio.run(run_chaos, seed, happened, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert happened.keys() >= KINDS
