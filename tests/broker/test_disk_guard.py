"""--min-free-disk (trionsq.broker.disk_guard)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trionsq.broker.topic import PublishRefused, Topic
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire.bodies import ListBodies
from trionsq.wire.errors import DRAINING


def takes(topic: Topic) -> bool:
    """Whether a publish is taken; the refusal names the reason."""
    try:
        topic.publish(ListBodies([b"x"]))
    except PublishRefused as refused:
        return "bytes free" not in str(refused)
    return True


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_publishes_are_refused_before_the_disk_is_full(
    storage: str, autojump_clock: MockClock
) -> None:
    """With less than the limit free each publish is refused, also to new topics; with a twentieth
    more they are taken again."""
    disk = SimulatedDisk(capacity=50_000_000)
    async with nsqd_in_memory(disk=disk, storage=storage, min_free_disk=10_000_000) as broker:
        topic = broker.topic("t")
        await trio.sleep(1.0)
        assert takes(topic)
        disk.write_file("other", bytes(42_000_000))
        await trio.sleep(1.0)
        assert not takes(topic)
        assert not takes(broker.topic("new"))
        assert broker.not_ready_reason == "the disk has less than 10000000 bytes free"
        disk.write_file("other", bytes(39_700_000))
        await trio.sleep(1.0)
        assert not takes(topic)
        disk.write_file("other", bytes(1_000))
        await trio.sleep(1.0)
        assert takes(topic)
        assert takes(broker.topics["new"])
        assert broker.not_ready_reason is None


async def test_a_drain_goes_on_when_the_disk_has_room(autojump_clock: MockClock) -> None:
    """A node that is drained meanwhile goes on refusing publishes, for that reason."""
    disk = SimulatedDisk(capacity=50_000_000)
    async with nsqd_in_memory(disk=disk, min_free_disk=10_000_000) as broker:
        topic = broker.topic("t")
        disk.write_file("other", bytes(45_000_000))
        await trio.sleep(1.0)
        assert topic.refusal.startswith("the disk has less")
        broker.drain.begin(0, exits=False)
        disk.write_file("other", bytes(1_000))
        await trio.sleep(1.0)
        assert topic.refusal == DRAINING


async def test_without_the_option_the_figure_is_only_shown(autojump_clock: MockClock) -> None:
    """Without --min-free-disk a full disk refuses nothing, and /metrics tells of it."""
    disk = SimulatedDisk(capacity=1_000_000)
    async with nsqd_in_memory(disk=disk) as broker:
        disk.write_file("other", bytes(990_000))
        await trio.sleep(31.0)
        assert broker.disk_guard.free_bytes is not None
        assert broker.disk_guard.free_bytes <= 10_000
        assert takes(broker.topic("t"))
