"""When the next message of a disk queue was published (DiskQueue.oldest_ns): for /metrics."""

from __future__ import annotations

import errno

import pytest

from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.bodies import ListBodies

COUNT = 40


def open_queue(disk: SimulatedDisk) -> DiskQueue:
    """The queue t, whose files hold a few messages each."""
    return DiskQueue("t", DataFolder(disk, InlineBackground(), max_file_bytes=300))


def append(queue: DiskQueue, numbers: range) -> None:
    """Messages published one after the other, of different lengths."""
    for number in numbers:
        bodies = ListBodies([b"x" * (number % 7 + 1)])
        batch = MessageBatch(bodies, ListColumn([b"%016d" % number]), 1000 + number)
        queue.append(Segment(batch, 0, 1))


def test_it_is_always_that_of_the_message_that_is_read_next() -> None:
    """Amid what was read ahead, at its end, in another file, after a restart, after emptying."""
    disk = SimulatedDisk(logged=True)
    queue = open_queue(disk)
    assert queue.oldest_ns() is None
    append(queue, range(COUNT))
    for number in range(COUNT):
        if number % 9 == 5:
            queue.close()
            queue = open_queue(disk)
        if number % 5 == 3:
            append(queue, range(COUNT + number, COUNT + number + 1))
        assert queue.oldest_ns() == 1000 + number
        before = disk.operations
        assert queue.oldest_ns() == 1000 + number
        assert disk.operations == before, "it asked the disk again"
        segment = queue.read(1, 2**20)
        assert segment is not None
        assert segment.first_ns == 1000 + number
    assert queue.oldest_ns() is not None
    queue.empty()
    assert queue.oldest_ns() is None
    append(queue, range(3))
    assert queue.oldest_ns() == 1000


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_disk_that_does_not_tell_is_asked_again(operation: str) -> None:
    """Neither is the queue's state changed by the look, nor is a file left open."""
    disk = SimulatedDisk()
    queue = open_queue(disk)
    append(queue, range(3))
    open_files = disk.open_files
    disk.fail(errno.EIO, only=(operation,), name="t.diskqueue.0*")
    assert queue.oldest_ns() is None
    assert disk.faults.total() == 1
    assert queue.oldest_ns() == 1000
    assert disk.open_files == open_files
    assert queue.depth == 3
