"""nsqd.dat with many topics: written in turns, and once for many changes (broker.metadata)."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import Gate
from trionsq.broker.channel import Channel
from trionsq.broker.topic import Topic
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory

ENTRIES_MAX = 150
"""Topics and channels that may be looked at in one turn of the event loop."""


class Looks(trio.abc.Instrument):
    """How many topics and channels are looked at in each step of a task. (pytest-trio uses it.)"""

    def __init__(self) -> None:
        self.now = 0
        self.longest = 0
        self.total = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, self.now)
        self.total += self.now
        self.now = 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Counts who is asked whether it is ephemeral, which is asked once for each entry."""
    counted = Looks()

    def is_ephemeral(entry: Topic | Channel) -> bool:
        counted.now += 1
        return entry.name.endswith("#ephemeral")

    monkeypatch.setattr(Topic, "is_ephemeral", property(is_ephemeral))
    monkeypatch.setattr(Channel, "is_ephemeral", property(is_ephemeral))
    return counted


@pytest.mark.parametrize(("topics", "channels"), [(10, 2), (1_000, 2), (2, 2_000)])
async def test_each_turn_looks_at_a_few(
    topics: int, channels: int, looks: Looks, autojump_clock: MockClock
) -> None:
    """Whether there are many topics or one has many channels; all of them are written."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        for number in range(topics):
            topic = broker.topic(f"t{number}")
            for channel in range(channels):
                topic.channel(f"c{channel}")
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        looks.now = looks.longest = looks.total = 0
        await broker.save_metadata()
        await broker._metadata.reserve_ids()
        await trio.lowlevel.checkpoint()
        assert looks.total >= topics * (1 + channels)
        assert looks.longest <= ENTRIES_MAX
        written = json.loads(disk.files()["nsqd.dat"])
        assert [len(topic["channels"]) for topic in written["topics"]] == [channels] * topics


async def test_many_changes_share_a_write(autojump_clock: MockClock) -> None:
    """Those who ask while one is under way wait for the same next one, which has all changes."""
    gate, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(disk=disk, background=gate) as broker:
        topics = [broker.topic(f"t{number}") for number in range(50)]
        await wait_all_tasks_blocked()
        gate.shut()
        async with trio.open_nursery() as nursery:
            for topic in topics:
                topic.pause()
                nursery.start_soon(broker.save_metadata)
                await wait_all_tasks_blocked()
            submitted = gate.submitted
            gate.open()
            while nursery.child_tasks:
                await trio.sleep(1)
                gate.run_all()
        assert gate.submitted - submitted <= 2
        written = json.loads(disk.files()["nsqd.dat"])
        assert all(topic["paused"] for topic in written["topics"])


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_who_is_cancelled_takes_nobody_along(
    cancelled: int, autojump_clock: MockClock
) -> None:
    """Of those who wait for the same write, the others have it done."""
    gate, disk = Gate(), SimulatedDisk()
    async with nsqd_in_memory(disk=disk, background=gate) as broker:
        topic = broker.topic("t")
        await wait_all_tasks_blocked()
        gate.shut()
        scopes = [trio.CancelScope() for _ in range(3)]
        saved: list[int] = []

        async def save(number: int) -> None:
            with scopes[number]:
                await broker.save_metadata()
                saved.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.save_metadata)
            await wait_all_tasks_blocked()
            topic.pause()
            for number in range(3):
                nursery.start_soon(save, number)
                await wait_all_tasks_blocked()
            scopes[cancelled].cancel()
            await wait_all_tasks_blocked()
            assert saved == []
            gate.open()
        assert sorted(saved) == [number for number in range(3) if number != cancelled]
        assert b'"paused":true' in disk.after_power_loss().files()["nsqd.dat"]
