"""What a call on a disk queue costs in the event loop, counted: not more with more of anything."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.storage.queues import (
    QUEUE,
    SIDECAR,
    STAMP_NS,
    Message,
    drain,
    folder_on,
    messages,
    put,
    queue_on,
    records_name,
)
from trionsq.broker.background import ThreadBackground
from trionsq.disk import RealDisk, RealFile
from trionsq.storage.deferral_file import HEADER, DeferralFile, encode
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


def deferred_in_file(count: int) -> tuple[SimulatedDisk, list[Message]]:
    """A disk with that many deferred messages."""
    disk = SimulatedDisk(logged=True)
    wanted = messages(0, count, due_ns=DUE_NS)
    queue = queue_on(disk, max_file_bytes=1 << 30)
    put(queue, wanted)
    queue.close()
    disk.log.clear()
    return disk, wanted


def test_a_large_sidecar_is_loaded_in_the_background() -> None:
    """The queue gives nothing before it is there, takes messages meanwhile, and then gives all,
    with their times."""
    disk, wanted = deferred_in_file(3_000)
    background = HeldBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background))
    assert ("read", SIDECAR) not in disk.log
    assert (queue.depth, queue.read(1, 1_000)) == (3_000, None)
    woken: list[None] = []
    queue.caught_up = lambda: woken.append(None)
    more = messages(3_000, 2, due_ns=DUE_NS + 10**9)
    put(queue, more)
    queue.sync()
    background.run_all()
    assert woken
    got = drain(queue)
    assert [one.id for one in got] == [one.id for one in wanted + more]
    assert all(abs((one.due_ns or 0) - DUE_NS) < 10**6 for one in got[:3_000])
    assert all(abs((one.due_ns or 0) - DUE_NS - 10**9) < 10**6 for one in got[3_000:])
    background.run_all()
    queue.close()
    assert SIDECAR not in disk.files()


@pytest.mark.parametrize("how", ["emptied", "deleted", "fails"])
def test_a_sidecar_whose_loading_is_overtaken(how: str) -> None:
    """By an end of its queue, after which it is gone; or by an error: only the delays are lost."""
    disk, wanted = deferred_in_file(3_000)
    background = HeldBackground()
    folder = folder_on(disk, background)
    queue = DiskQueue(QUEUE, folder)
    if how == "fails":
        disk.fail(errno.EIO, only={"read"}, name=SIDECAR)
        background.run_all()
        assert disk.faults["read"]
        assert drain(queue) == [one._replace(due_ns=None) for one in wanted]
    else:
        if how == "emptied":
            queue.empty()
        else:
            queue.delete()
            queue = DiskQueue(QUEUE, folder)
        put(queue, messages(9_000, 2))
        background.run_all()
        assert drain(queue) == messages(9_000, 2)
    background.run_all()
    queue.close()
    assert SIDECAR not in disk.files()


class CountedIds:
    """The ids of a batch, counted as they are looked at."""

    def __init__(self, ids: Any) -> None:
        self.ids = ids
        self.count = 0

    def cut(self, first: int, last: int) -> list[bytes]:
        self.count += last - first
        return list(self.ids.cut(first, last))


@pytest.mark.parametrize("behind", [10, 2_000])
def test_a_deferred_message_costs_the_same_whatever_is_behind_it(behind: int) -> None:
    """To take one, no more ids are looked at than its own and a few behind it."""
    disk = SimulatedDisk()
    queue = queue_on(disk, max_file_bytes=1 << 30)
    put(queue, messages(0, 1, due_ns=DUE_NS))
    put(queue, messages(1, behind))
    block = queue._reader._load()
    assert block is not None
    assert block.batch is not None
    counted = block.batch.ids = CountedIds(block.batch.ids)
    one = queue.read(1 << 30, 1 << 30)
    assert one is not None
    assert one.count == 1
    assert one.batch.defer_ms
    assert counted.count <= 3


class Noting(dict[bytes, int]):
    """A map that may not be gone through, and says when it is freed entry by entry."""

    freed = 0

    def popitem(self) -> tuple[bytes, int]:
        self.freed += 1
        return super().popitem()

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("all due times are looked at in the event loop")

    keys = values = items = copy = __iter__  # type: ignore[assignment]


def test_dropping_many_deferred_messages_is_left_to_a_job() -> None:
    """The loop hands their map on as it is."""
    disk, background = SimulatedDisk(), HeldBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background))
    put(queue, messages(0, 100, due_ns=DUE_NS))
    background.run_all()
    kept = queue._deferrals._due_ns = Noting(queue._deferrals._due_ns)
    assert queue.empty() == 100
    assert (len(kept), kept.freed) == (100, 0)
    background.run_all()
    assert (len(kept), kept.freed) == (0, 100)
    assert SIDECAR not in disk.files()


def test_a_kill_while_the_sidecar_is_tidied_costs_no_delay() -> None:
    """Messages that were read after the positions were noted come again, so their lines stay."""
    disk, background = SimulatedDisk(), HeldBackground()
    folder = folder_on(disk, background, max_file_bytes=1 << 30, sync_every=1 << 30)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2_500, due_ns=DUE_NS))
    queue.sync()
    background.run_all()
    drain_some(queue, 2_400)
    queue.sync()  # the positions of now; most lines are of no use
    drain_some(queue, 50)
    background.run_one()
    assert disk.files()[SIDECAR].count(b"\n") == 101
    got = drain(queue_on(disk.after_kill()))
    assert [one.id for one in got] == [one.id for one in messages(2_400, 100)]
    assert all(one.due_ns is not None for one in got)


def drain_some(queue: DiskQueue, count: int) -> None:
    for _ in range(count):
        assert queue.read(1, 1_000) is not None


@pytest.mark.parametrize("due_ns", [10**19 - 1, 10**19, STAMP_NS + 2**63])
def test_the_latest_due_times_that_options_allow_are_stored(due_ns: int) -> None:
    """--max-req-timeout may be up to 2**63 ns: some three hundred years from now."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2, due_ns=due_ns))
    queue.close()
    assert folder.fault is None
    assert DeferralFile(disk, QUEUE).load() == dict.fromkeys([b"%016x" % n for n in (0, 1)], due_ns)
    assert all(0 <= (one.due_ns or 0) - due_ns < 10**6 for one in drain(queue_on(disk)))


def test_sidecars_are_read_in_pieces() -> None:
    """Neither loading nor tidying reads more than 64 KiB at once, which keeps other threads from
    running."""
    disk = SimulatedDisk()
    disk.write_file(SIDECAR, HEADER + encode([(b"%016x" % n, n) for n in range(20_000)]))
    sizes: list[int] = []
    opened = disk.open

    def noting(name: str) -> Any:
        file = opened(name)
        read = file.read

        class File:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(file, attribute)

            def read(self, nbytes: int, offset: int) -> bytes:
                sizes.append(nbytes)
                return read(nbytes, offset)

        return File()

    disk.open = noting  # type: ignore[method-assign]
    file = DeferralFile(disk, QUEUE)
    assert len(file.load()) == 20_000
    file.keep_only(lambda id_, due_ns: due_ns % 2 == 0)
    assert len(DeferralFile(disk, QUEUE).load()) == 10_000
    assert max(sizes) <= 64 * 1024


# All queues


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
