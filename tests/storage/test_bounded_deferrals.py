"""What deferred messages cost in the event loop, counted: not more with more of anything."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from tests.storage.queues import (
    DEFERRAL_FILE,
    EVERYTHING,
    QUEUE,
    STAMP_NS,
    Message,
    drain,
    folder_on,
    messages,
    put,
    queue_on,
)
from trionsq.storage.deferral_file import HEADER, DeferralFile, encode
from trionsq.storage.diskqueue import DiskQueue
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import SimulatedDisk

DUE_NS = STAMP_NS + 10**12


def deferred_in_file(count: int) -> tuple[SimulatedDisk, list[Message]]:
    """A disk with that many deferred messages."""
    disk = SimulatedDisk(logged=True)
    wanted = messages(0, count, due_ns=DUE_NS)
    queue = queue_on(disk, max_file_bytes=1 << 30)
    put(queue, wanted)
    queue.close()
    disk.log.clear()
    return disk, wanted


def test_a_large_deferral_file_is_loaded_in_the_background() -> None:
    """The queue gives nothing before it is there, takes messages meanwhile, and then gives all,
    with their times."""
    disk, wanted = deferred_in_file(3_000)
    background = HeldBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background))
    assert ("read", DEFERRAL_FILE) not in disk.log
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
    assert DEFERRAL_FILE not in disk.files()


@pytest.mark.parametrize("how", ["emptied", "deleted", "fails"])
def test_a_deferral_file_whose_loading_is_overtaken(how: str) -> None:
    """By an end of its queue, after which it is gone; or by an error: only the delays are lost."""
    disk, wanted = deferred_in_file(3_000)
    background = HeldBackground()
    folder = folder_on(disk, background)
    queue = DiskQueue(QUEUE, folder)
    if how == "fails":
        disk.fail(errno.EIO, only={"read"}, name=DEFERRAL_FILE)
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
    assert DEFERRAL_FILE not in disk.files()


class CountedIds:
    """The ids of a batch, counted as they are looked at."""

    def __init__(self, ids: Any) -> None:
        self.ids = ids
        self.count = 0

    def slice(self, first: int, last: int) -> list[bytes]:
        self.count += last - first
        return list(self.ids.slice(first, last))


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
    assert DEFERRAL_FILE not in disk.files()


def test_a_kill_while_the_deferral_file_is_tidied_costs_no_delay() -> None:
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
    assert disk.files()[DEFERRAL_FILE].count(b"\n") == 101
    got = drain(queue_on(disk.after_kill()))
    assert [one.id for one in got] == [one.id for one in messages(2_400, 100)]
    assert all(one.due_ns is not None for one in got)


def drain_some(queue: DiskQueue, count: int) -> None:
    for _ in range(count):
        assert queue.read(1, 1_000) is not None


@pytest.mark.parametrize("count", [1, 16, 17, 18, 48, 49, 50, 100])
def test_a_read_ends_before_a_deferred_message(count: int) -> None:
    """However many messages stand before it, and not sooner."""
    queue = queue_on(SimulatedDisk())
    put(queue, messages(0, count))
    put(queue, messages(count, 1, due_ns=DUE_NS))
    put(queue, messages(count + 1, count))
    put(queue, messages(2 * count + 1, 1, due_ns=DUE_NS))
    counts = []
    while (one := queue.read(1000, EVERYTHING)) is not None:
        counts.append(one.count)
    assert counts == [count, 1, count, 1]


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


def test_deferral_files_are_read_in_pieces() -> None:
    """Neither loading nor tidying reads more than 64 KiB at once, which keeps other threads from
    running."""
    disk = SimulatedDisk()
    disk.write_file(DEFERRAL_FILE, HEADER + encode([(b"%016x" % n, n) for n in range(20_000)]))
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
