"""Files of a deleted queue that the disk does not delete (trionsq.storage.recovery)."""

from __future__ import annotations

import errno

import pytest

from tests.storage.queues import (
    DEFERRAL_FILE,
    META,
    QUEUE,
    STAMP_NS,
    drain,
    folder_on,
    messages,
    put,
    records_name,
)
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.testing.disk import SimulatedDisk

FILES = [records_name(0), records_name(1), META, DEFERRAL_FILE]


def fault(folder: DataFolder) -> str:
    """What is wrong now."""
    return folder.fault or ""


def deleted_in_vain(stays: str = "") -> tuple[SimulatedDisk, DataFolder]:
    """A disk with all files of a deleted queue, or one of them, which can't be removed."""
    disk = SimulatedDisk()
    folder = folder_on(disk, max_file_bytes=100)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 4, due_ns=STAMP_NS + 10**12))
    queue.sync()
    assert set(FILES) <= set(disk.files())
    disk.fail(errno.EIO, forever=True, only={"unlink"}, name=f"{stays}*")
    queue.delete()
    assert disk.faults["unlink"]
    return disk, folder


@pytest.mark.parametrize("stays", ["", *FILES])
def test_it_shows_until_it_is_gone(stays: str, caplog: pytest.LogCaptureFixture) -> None:
    """In the log and in the health; tried again with all else that failed."""
    disk, folder = deleted_in_vain(stays)
    assert "files remain" in caplog.text
    for _ in range(2):
        assert fault(folder).endswith("Input/output error")
        folder.retry()
        folder.sync_all()
    disk.heal()
    folder.retry()
    assert not fault(folder)
    assert not disk.files()


@pytest.mark.parametrize("heals", [False, True])
@pytest.mark.parametrize("stays", ["", *FILES])
def test_no_message_comes_back(stays: str, heals: bool) -> None:
    """A queue of the same name is empty, takes messages, and removes what is left of the other."""
    disk, folder = deleted_in_vain(stays)
    if heals:
        disk.heal()
    queue = DiskQueue(QUEUE, folder)
    assert queue.depth == 0
    put(queue, messages(10, 1))
    folder.sync_all()
    disk.heal()
    folder.retry()
    assert not fault(folder)
    queue.close()
    left = b"".join(disk.files().values())
    assert not [message for message in messages(0, 4) if message.record in left]
    assert drain(DiskQueue(QUEUE, folder_on(disk))) == messages(10, 1)


def test_deleted_once_more() -> None:
    """What the second could not remove either goes with what is left of it."""
    disk, folder = deleted_in_vain()
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(10, 1))
    queue.delete()
    assert fault(folder)
    disk.heal()
    folder.retry()
    assert not fault(folder)
    assert not disk.files()
