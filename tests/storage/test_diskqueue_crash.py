"""What is left of a disk queue when the process or the machine stops at any operation."""

from __future__ import annotations

from random import Random

import pytest

from tests.soak import by_level, more_in_soak
from tests.storage.queue_scenario import DUE_NS, Scenario, plain, told
from tests.storage.queues import QUEUE, drain, folder_on, messages, put, queue_on
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.metadata import remove_drafts
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import Crashed, SimulatedDisk

SEEDS = range(by_level(test=1, short=2, full=16))
DRAWS = 4

each_way = pytest.mark.parametrize("held", [False, True], ids=["at once", "held"])


def operations(*, held: bool) -> int:
    """How many the scenario has."""
    scenario = Scenario(SimulatedDisk(), held=held)
    scenario.run()
    return scenario.disk.operations


def crashed(at: int, seed: int, *, held: bool) -> Scenario:
    """The scenario as far as the operation in which the machine stopped."""
    scenario = Scenario(SimulatedDisk(random=Random(seed)), held=held)
    scenario.disk.crash_at(at)
    with pytest.raises(Crashed):
        scenario.run()
    return scenario


def check_it_goes_on(queue: DiskQueue, disk: SimulatedDisk) -> None:
    """A queue that was read to its end works as a new one does."""
    assert queue.depth == 0
    new = messages(1_000, 20)
    put(queue, new)
    assert queue.depth == 20
    assert drain(queue) == new
    queue.close()
    assert disk.open_files == 0
    remove_drafts(disk)
    assert not [name for name in disk.files() if name.endswith(".tmp")]
    assert queue_on(disk).depth == 0


@more_in_soak
@each_way
def test_a_kill_loses_no_accepted_message(held: bool) -> None:
    """After SIGKILL at any operation each message whose append returned and that was not read is
    there, unharmed and in order: there is no window in which it is not. What was read since the
    last sync comes again. Besides, only messages may come whose append or whose dropping by
    `empty` was under way."""
    for seed in SEEDS:
        for at in range(1, operations(held=held) + 1):
            with told(f"seed {seed}, operation {at}"):
                scenario = crashed(at, seed, held=held)
                disk = scenario.disk.after_kill()
                queue = queue_on(disk, max_file_bytes=300)
                assert not scenario.unread or queue.depth > 0
                got = plain(drain(queue))
                accepted = plain(scenario.accepted)
                there = [message for message in got if message in accepted]
                assert there == accepted[len(accepted) - len(there) :]
                assert len(there) >= len(scenario.unread)
                others = plain(scenario.trying + scenario.emptied)
                assert [m for m in got if m not in accepted and m not in others] == []
                check_it_goes_on(queue, disk)


@more_in_soak
@each_way
def test_power_loss_takes_nothing_that_was_synced(held: bool) -> None:
    """When the power fails at any operation, each message that was appended before the last
    completed sync began and was not read is there, unharmed and in order. Of later ones any part
    may be there; they may be damaged, for records have no checksum."""
    for seed in SEEDS:
        for at in range(1, operations(held=held) + 1):
            scenario = crashed(at, seed, held=held)
            for draw in range(DRAWS):
                with told(f"seed {seed}, operation {at}, draw {draw}"):
                    disk = scenario.disk.after_power_loss()
                    queue = queue_on(disk, max_file_bytes=300)
                    safe = plain(scenario.accepted[scenario.handed : scenario.durable])
                    got = plain(drain(queue))
                    assert [message for message in got if message in safe] == safe
                    check_it_goes_on(queue, disk)


def test_due_times_survive_a_kill_after_a_sync() -> None:
    """Deferred messages that a sync covered come back with their due times, each alone."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    wanted = messages(0, 3) + messages(3, 3, due_ns=DUE_NS) + messages(6, 3)
    for part in (wanted[:3], wanted[3:6], wanted[6:]):
        put(queue, part)
    folder.sync_all()
    for after in (disk.after_kill(), disk.after_power_loss()):
        got = drain(queue_on(after))
        assert plain(got) == plain(wanted)
        assert [message.due_ns is not None for message in got] == [False] * 3 + [True] * 3 + [
            False
        ] * 3
        assert all(0 <= (m.due_ns or DUE_NS) - DUE_NS < 1_000_000 for m in got)


def test_files_begun_since_the_last_sync_are_found() -> None:
    """However many files were begun while one sync took its time, a kill loses none of them."""
    disk = SimulatedDisk()
    background = HeldBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background, max_file_bytes=100))
    wanted = messages(0, 30)
    for message in wanted:
        put(queue, [message])
    assert background.submitted == 1
    assert len(disk.files()) > 10
    assert drain(queue_on(disk.after_kill())) == wanted


def test_files_that_outlived_their_end_are_removed() -> None:
    """A crash between storing the positions and removing what was read leaves nothing for ever."""
    disk = SimulatedDisk()
    queue = queue_on(disk, max_file_bytes=100)
    wanted = messages(0, 10)
    put(queue, wanted)
    before = disk.files()
    drain(queue, max_count=1)
    queue.close()
    for name, data in before.items():
        if name not in disk.files():
            disk.write_file(name, data)
    assert len(disk.files()) > 4
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    assert drain(queue) == []
    folder.sync_all()
    queue.close()
    assert len(disk.files()) == 2
