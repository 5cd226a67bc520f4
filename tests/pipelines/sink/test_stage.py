"""Staged mode: whatever dies when, a batch is published whole, and once but for one parcel."""

import errno
import json
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import trio

from pipelines.errors import PublishError, RowsError, StageError
from pipelines.sink.commands import CommandBatch, command_batches
from pipelines.sink.options import CommandLimits
from pipelines.sink.stage import PUBLISHED, Stage
from pipelines.sink.stagedfile import StagedFile
from tests.pipelines.sink.rows import batch
from tests.pipelines.sink.test_commands import opened
from tests.soak import more_in_soak, swept
from trionsq.testing.disk import Crashed, SimulatedDisk

LIMITS = CommandLimits(max_messages=2)


class FakeNsqd:
    """Takes parcels; it dies, or refuses, when it is told to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.refuse_at = -1

    async def deliver(self, parcel: CommandBatch) -> None:
        """Confirmed when it returns."""
        if len(self.bodies) == self.refuse_at:
            raise PublishError("n:1 refused")
        await trio.lowlevel.checkpoint()
        for command in parcel.commands:
            self.bodies += opened(command)[2]


def stage_rows(stage: Stage, first: int, end: int, query: str = "q") -> StagedFile:
    """A task with these numbers."""
    rows = batch([b"%d" % number for number in range(first, end)])
    staged = stage.write(query, [command_batches(rows, "t", LIMITS)])
    assert staged is not None
    return staged


def publish(stage: Stage, nsqd: FakeNsqd, number: int, *files: StagedFile, query: str = "q") -> int:
    """Commit a batch; how many rows it says."""
    return trio.run(stage.commit, query, number, files, nsqd.deliver)


def run_batch(disk: SimulatedDisk, nsqd: FakeNsqd, number: int) -> None:
    """What Spark does for a batch: two tasks of five rows each, then the commit."""
    stage = Stage(disk)
    files = [stage_rows(stage, at, at + 5) for at in (10 * number, 10 * number + 5)]
    publish(stage, nsqd, number, *files)


def numbers(nsqd: FakeNsqd) -> Counter[int]:
    """How often each is there."""
    return Counter(int(body) for body in nsqd.bodies)


def names(disk: SimulatedDisk) -> list[str]:
    """Of all files."""
    return sorted(disk.files())


def test_a_batch_is_published_and_leaves_nothing_behind() -> None:
    """All rows in order of their tasks; then the folder has only the record of it."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    for number in range(3):
        run_batch(disk, nsqd, number)
    assert nsqd.bodies == [b"%d" % number for number in range(30)]
    assert names(disk) == [PUBLISHED]
    assert disk.open_files == 0


def test_a_repeated_batch_publishes_nothing() -> None:
    """What its tasks staged again is removed."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    run_batch(disk, nsqd, 0)
    run_batch(disk, nsqd, 0)
    assert numbers(nsqd) == Counter(range(10))
    assert names(disk) == [PUBLISHED]


def test_after_a_refusal_it_goes_on_where_it_was() -> None:
    """With the files of the first time, also if the tasks have cut their rows otherwise."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    stage = Stage(disk)
    files = [stage_rows(stage, 0, 5), stage_rows(stage, 5, 10)]
    nsqd.refuse_at = 7
    with pytest.raises(PublishError, match="n:1 refused"):
        publish(stage, nsqd, 0, *files)
    # Spark aborts after a commit that failed; the batch has been begun all the same.
    stage.abandon("q", files)
    assert nsqd.bodies == [b"%d" % number for number in range(7)]
    nsqd.refuse_at = -1
    again = stage_rows(stage, 0, 10)
    assert publish(stage, nsqd, 0, again) == 3
    assert nsqd.bodies == [b"%d" % number for number in range(10)]
    assert names(disk) == [PUBLISHED]


@more_in_soak
@pytest.mark.parametrize("how", [SimulatedDisk.after_kill, SimulatedDisk.after_power_loss])
def test_a_crash_at_any_operation_loses_nothing_and_repeats_one_parcel_at_most(
    how: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """The whole batch is repeated, as Spark does, and crashes again; then the next one follows."""
    disk = SimulatedDisk()
    run_batch(disk, FakeNsqd(), 0)
    count = disk.operations
    assert count > 30
    for at in swept(count):
        for seed in range(2):
            nsqd = FakeNsqd()
            disk = SimulatedDisk(random=Random(100 * at + seed))
            crashes = 0
            for limit in (at, 1 + 7 * seed):
                disk.crash_at(limit)
                try:
                    run_batch(disk, nsqd, 0)
                except Crashed:
                    crashes += 1
                    disk = how(disk)
                else:
                    disk = disk.after_kill()
            run_batch(disk, nsqd, 0)
            found = numbers(nsqd)
            assert set(found) == set(range(10)), (at, seed)
            assert found.total() - 10 <= 2 * crashes, (at, seed)
            run_batch(disk, nsqd, 1)
            assert numbers(nsqd) - found == Counter(range(10, 20))
            assert names(disk) == [PUBLISHED]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_told_and_the_repeated_batch_is_whole(error: int) -> None:
    """At each operation: StageError with the reason; rows twice only if their mark failed."""
    disk = SimulatedDisk()
    run_batch(disk, FakeNsqd(), 0)
    failed = 0
    for at in range(1, disk.operations + 1):
        nsqd = FakeNsqd()
        broken = SimulatedDisk(random=Random(at))
        broken.fail(error, at=at, only=["open", "create", "write", "sync", "rename", "read"])
        try:
            run_batch(broken, nsqd, 0)
        except StageError:
            failed += 1
        broken.heal()
        run_batch(broken, nsqd, 0)
        assert set(numbers(nsqd)) == set(range(10))
        assert numbers(nsqd).total() <= 12
        assert names(broken) == [PUBLISHED]
        assert broken.open_files == 0
    assert failed > 20


def test_rows_that_are_refused_leave_no_file() -> None:
    """The task fails before it has staged anything that counts."""
    disk = SimulatedDisk()
    rows = batch([b"a", b""])
    with pytest.raises(RowsError, match="empty"):
        Stage(disk).write("q", [command_batches(rows, "t", LIMITS)])
    assert names(disk) == []


def test_no_rows_are_no_file() -> None:
    """A task without rows has nothing to stage, a batch without files is published at once."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    stage = Stage(disk)
    assert stage.write("q", []) is None
    assert publish(stage, nsqd, 0) == 0
    assert names(disk) == [PUBLISHED]


def test_files_of_attempts_that_were_aborted_go() -> None:
    """Drafts and files of which Spark knows nothing any more, too."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    stage = Stage(disk)
    known, lost = stage_rows(stage, 0, 5), stage_rows(stage, 0, 5)
    disk.write_file("0" * 32 + ".tmp", b"half")
    disk.write_file("notes.txt", b"somebody's")
    stage.abandon("q", [known])
    assert names(disk) == ["notes.txt"]
    assert lost.name not in names(disk)
    assert nsqd.bodies == []


def test_a_folder_belongs_to_one_query() -> None:
    """Another query is told so at its tasks and its commit, and removes nothing but its own."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    stage = Stage(disk)
    theirs = stage_rows(stage, 0, 5, query="other")
    run_batch(disk, nsqd, 0)
    with pytest.raises(StageError, match="belongs to query q, not to other"):
        stage_rows(stage, 0, 5, query="other")
    mine = stage_rows(stage, 10, 15)
    with pytest.raises(StageError, match="belongs to query q, not to other"):
        publish(stage, nsqd, 0, theirs, query="other")
    stage.abandon("other", [theirs])
    assert publish(stage, nsqd, 1, mine) == 5


def test_a_checkpoint_that_was_set_back_is_told() -> None:
    """An older batch, or another one while one is begun: neither is published silently."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    for number in range(3):
        run_batch(disk, nsqd, number)
    before = list(nsqd.bodies)
    with pytest.raises(StageError, match="is at batch 2, and the query at batch 1"):
        run_batch(disk, nsqd, 1)
    nsqd.refuse_at = len(before) + 2
    with pytest.raises(PublishError):
        run_batch(disk, nsqd, 3)
    with pytest.raises(StageError, match="is at batch 3, and the query at batch 4"):
        run_batch(disk, nsqd, 4)


def test_staged_files_that_are_gone_are_told_before_anything_is_published() -> None:
    """The folder is not the one that the executors see."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    stage = Stage(disk)
    staged = stage_rows(stage, 0, 5)
    disk.unlink(staged.name)
    with pytest.raises(StageError, match="all machines must see the same folder"):
        publish(stage, nsqd, 0, staged)
    assert nsqd.bodies == []


@pytest.mark.parametrize("name", [PUBLISHED, "batch-1.journal"])
def test_damage_is_told_and_nothing_is_changed(name: str) -> None:
    """Somebody has to decide: whether the batch is there, nobody knows."""
    disk, nsqd = SimulatedDisk(), FakeNsqd()
    run_batch(disk, nsqd, 0)
    disk.write_file(name, b"{")
    before = disk.files()
    stage = Stage(disk)
    with pytest.raises(StageError, match=f"{name} is damaged"):
        publish(stage, nsqd, 1)
    assert disk.files() == before


def test_a_newer_format_is_told() -> None:
    """Not misread."""
    disk = SimulatedDisk()
    disk.write_file(PUBLISHED, json.dumps({"version": 2, "query": "q", "batch": 0}).encode())
    with pytest.raises(StageError, match="newer trionsq"):
        stage_rows(Stage(disk), 0, 1)
