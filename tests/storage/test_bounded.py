"""What a call on a disk queue costs in the event loop, counted: not more with more of anything."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.storage.queues import (
    QUEUE,
    STAMP_NS,
    drain,
    folder_on,
    messages,
    put,
    queue_on,
    records_name,
)
from trionsq.broker.background import ThreadBackground
from trionsq.disk import RealDisk, RealFile
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.storage.recovery import resume_deletions
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import SimulatedDisk

DUE_NS = STAMP_NS + 10**12
LIMIT_S = 60.0


def in_files(count: int) -> tuple[SimulatedDisk, HeldBackground, DataFolder, DiskQueue]:
    """A queue with that many files, each with a message; no job is under way."""
    disk, background = SimulatedDisk(logged=True), HeldBackground()
    for number in range(count):
        disk.write_file(records_name(number), messages(number, 1)[0].record)
    disk.write_file(f"{QUEUE}.diskqueue.meta.dat", b"%d\n0,0\n%d,40\n" % (count, count - 1))
    folder = folder_on(disk, background, max_file_bytes=50)
    queue = DiskQueue(QUEUE, folder)
    assert queue.depth == count
    background.run_all()
    disk.log.clear()
    return disk, background, folder, queue


def fault(folder: DataFolder) -> str | None:
    """What is wrong now."""
    return folder.fault


def emptied(queue: DiskQueue, folder: DataFolder) -> None:
    queue.empty()


def deleted(queue: DiskQueue, folder: DataFolder) -> None:
    queue.delete()


def made_anew(queue: DiskQueue, folder: DataFolder) -> None:
    """Deleted, and one of that name made at once."""
    queue.delete()
    DiskQueue(QUEUE, folder)


def made_beside(queue: DiskQueue, folder: DataFolder) -> None:
    """Another queue is made in a folder with many files."""
    DiskQueue("another", folder)


@pytest.mark.parametrize("act", [emptied, deleted, made_anew, made_beside])
def test_the_loop_does_the_same_for_ten_files_and_ten_thousand(
    act: Callable[[DiskQueue, DataFolder], None],
) -> None:
    """As many operations on the disk, and none that waits for it: the files go in the background,
    and all of them do."""
    done: list[list[str]] = []
    for count in (10, 10_000):
        disk, background, folder, queue = in_files(count)
        act(queue, folder)
        done.append([operation for operation, _ in disk.log])
        assert len(disk.files()) > count
        folder.sync_all()
        background.run_all()
        if act is not made_beside:
            assert len(disk.files()) <= 1
    assert done[0] == done[1]
    assert len(done[0]) <= 10
    assert not {"unlink", "sync", "sync_folder", "names"} & set(done[0])


def test_what_is_to_be_removed_takes_no_memory_for_each_file() -> None:
    """It is a range of numbers, while the jobs remove a few at a time."""
    disk, background, _, queue = in_files(1_000)
    queue.empty()
    assert queue._sync._job is not None
    assert len(queue._sync._job.finished._ranges) == 1
    disk.log.clear()
    background.run_one()
    assert 0 < [operation for operation, _ in disk.log].count("unlink") <= 10


def test_messages_are_made_durable_between_removals() -> None:
    """Those that come while the files of an emptied queue go need not wait for the last of them."""
    disk, background, _, queue = in_files(1_000)
    queue.empty()
    background.run_one()
    put(queue, messages(5_000, 1))
    queue.sync()
    for _ in range(3):
        background.run_one()
    assert len(disk.files()) > 900
    assert drain(queue_on(disk.after_power_loss())) == messages(5_000, 1)


def test_one_file_that_stays_holds_up_no_other() -> None:
    """All others go; it shows, and goes when the disk lets it."""
    for act in (emptied, deleted):
        disk, background, folder, queue = in_files(100)
        disk.fail(errno.EIO, forever=True, only={"unlink"}, name=records_name(7))
        act(queue, folder)
        background.run_all()
        left = [name for name in disk.files() if "meta" not in name]
        assert left == [records_name(7)]
        assert fault(folder) == f"/simulated/{records_name(7)}: Input/output error"
        disk.heal()
        folder.retry()
        background.run_all()
        assert fault(folder) is None
        assert records_name(7) not in disk.files()


class HangingFile(RealFile):
    """A file whose sync takes until it is released."""

    def sync(self) -> None:
        HangingDisk.hang("sync of due times" if ".deferred." in self.path else "sync")
        super().sync()


class HangingDisk(RealDisk):
    """A disk on which some operation takes until it is released."""

    hanging = ""
    began = threading.Event()
    released = threading.Event()

    @classmethod
    def hang(cls, operation: str) -> None:
        if cls.hanging == operation:
            assert threading.current_thread() is not threading.main_thread()
            cls.began.set()
            assert cls.released.wait(LIMIT_S)

    def open(self, name: str) -> RealFile:
        return HangingFile(self._at(name), 2)

    def create(self, name: str) -> RealFile:
        return HangingFile(self._at(name), 2 | 64 | 128)

    def unlink(self, name: str) -> None:
        self.hang("unlink")
        super().unlink(name)


@contextmanager
def released_at_last() -> Iterator[None]:
    try:
        yield
    finally:
        HangingDisk.released.set()


@pytest.mark.parametrize("operation", ["sync", "sync of due times", "unlink"])
async def test_no_call_waits_for_a_disk_that_hangs(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a job is caught in an fsync or a removal, messages are taken and read, the queue is
    emptied, deleted and made anew. Afterwards all is as if it had not been."""
    monkeypatch.setattr(HangingDisk, "began", threading.Event())
    monkeypatch.setattr(HangingDisk, "released", threading.Event())
    monkeypatch.setattr(HangingDisk, "hanging", operation)
    with trio.fail_after(LIMIT_S), released_at_last():
        async with trio.open_nursery() as nursery:
            background = ThreadBackground()
            await nursery.start(background.run)
            folder = folder_on(HangingDisk(tmp_path), background, max_file_bytes=100)
            queue = DiskQueue(QUEUE, folder)
            put(queue, messages(0, 9))
            put(queue, messages(9, 2, due_ns=DUE_NS))
            queue.sync()
            if operation == "unlink":
                queue.empty()
            while not HangingDisk.began.is_set():
                await trio.lowlevel.checkpoint()
            for first in range(20, 60, 10):
                put(queue, messages(first, 10))
                depth = queue.depth
                assert depth >= 10
                assert queue.empty() == depth
                put(queue, messages(first, 5))
                assert drain(queue) == messages(first, 5)
                put(queue, messages(first, 5))
                queue.delete()
                queue = DiskQueue(QUEUE, folder)
                assert queue.depth == 0
            put(queue, messages(90, 3))
            assert not HangingDisk.released.is_set()
            HangingDisk.released.set()
            await background.wait_idle()
            assert drain(queue) == messages(90, 3)
            queue.delete()
            await background.wait_idle()
            assert folder.disk.names() == []
            assert folder.fault is None
            nursery.cancel_scope.cancel()


# Due times


class Counting:
    """A queue that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def sync(self) -> None:
        self.count += 1

    retry = release_finished_file = sync


@pytest.mark.parametrize("count", [10, 10_000])
def test_many_queues_are_looked_after_in_steps(count: int) -> None:
    """Syncs and tries touch a few queues before others get their turn, and all in the end."""
    folder = folder_on(SimulatedDisk())
    queues = [Counting() for _ in range(count)]
    for steps, queues_of in (
        (folder.sync_in_steps, folder.changed),
        (folder.retry_in_steps, folder.queues),
    ):
        queues_of.update(dict.fromkeys(queues))
        folder.faults["a file"] = "broken"
        before = sum(queue.count for queue in queues)
        done = before
        for _ in steps():
            now = sum(queue.count for queue in queues)
            assert now - done <= 20
            done = now
        assert done == before + count


def test_a_queue_that_went_meanwhile_is_left_alone() -> None:
    """Between two steps a queue may be deleted."""
    folder = folder_on(SimulatedDisk())
    queues = [Counting() for _ in range(100)]
    folder.changed.update(dict.fromkeys(queues))
    steps = folder.sync_in_steps()
    next(steps)
    folder.changed.clear()
    list(steps)
    assert 0 < sum(queue.count for queue in queues) <= 20


def test_full_files_do_not_stay_open_however_many() -> None:
    """While a sync hangs, a queue that is written on holds a few files open, and syncs none itself.
    All are made durable later."""
    disk, background = SimulatedDisk(logged=True), HeldBackground()
    folder = folder_on(disk, background, max_file_bytes=50)
    queue = DiskQueue(QUEUE, folder)
    wanted = messages(0, 100)
    for one in wanted:
        put(queue, [one])
    assert disk.open_files < 25
    assert "sync" not in [operation for operation, _ in disk.log]
    background.run_all()
    assert drain(queue_on(disk.after_power_loss(), max_file_bytes=50)) == wanted


@pytest.mark.parametrize("act", [emptied, deleted])
def test_a_stop_does_not_wait_for_many_removals(
    act: Callable[[DiskQueue, DataFolder], None],
) -> None:
    """It removes a number of files that does not grow; the next start knows of the others, removes
    them, and none of their messages comes back."""
    disk, background, folder, queue = in_files(1_000)
    act(queue, folder)
    background.run_one()
    folder.stopping = True
    background.run_all()
    if act is emptied:
        put(queue, messages(2_000, 2))
        background.run_all()
        queue.close()
    assert 800 < len(disk.files()) < 1_002
    folder = folder_on(disk, background)
    if act is emptied:
        queue = DiskQueue(QUEUE, folder)
        folder.sync_all()
        background.run_all()
        assert drain(queue) == messages(2_000, 2)
        queue.delete()
    else:
        assert resume_deletions(folder, []) == []
    background.run_all()
    assert disk.files() == {}


def test_files_with_messages_are_no_remains() -> None:
    """What belongs to no topic, but was not deleted, stays, however much of it was read."""
    disk, background, folder, queue = in_files(10)
    queue.read(1, 1_000)
    background.run_all()
    queue.close()
    disk.write_file(records_name(3, "damaged"), b"?")
    disk.write_file("damaged.diskqueue.meta.dat", b"?")
    disk.write_file(records_name(4, "without"), b"?")
    before = disk.files()
    folder = folder_on(disk, background)
    others = resume_deletions(folder, [])
    assert sorted(others) == ["damaged", QUEUE, "without"]
    background.run_all()
    assert disk.files() == before
