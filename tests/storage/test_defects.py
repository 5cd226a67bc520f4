"""A defect in a disk job costs its queue, for as long as it lasts, and nothing else."""

from __future__ import annotations

import pytest

from tests.storage.queues import QUEUE, STAMP_NS, drain, folder_on, messages, put, queue_on
from trionsq.core.queue import BackendError
from trionsq.storage.deferral_file import DeferralFile
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.storage.recovery import UndeletedFiles
from trionsq.storage.sync import QueueSync
from trionsq.storage.sync_job import SyncJob
from trionsq.testing.background import HeldBackground, InlineBackground
from trionsq.testing.disk import SimulatedDisk


def broken(*args: object, **kwargs: object) -> None:
    raise TypeError("a defect")


def fault(folder: DataFolder) -> str | None:
    """What is wrong now."""
    return folder.fault


@pytest.mark.parametrize(
    "what", ["run", "_sync_files", "_store_deferrals", "_write_positions", "_clean_up"]
)
def test_a_defect_in_a_sync(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue shows it, and takes no message that would not become durable; it is readable, and
    goes on when the defect has gone. Other queues do not notice. It is logged once, and counted."""
    disk, background = SimulatedDisk(), InlineBackground()
    folder = folder_on(disk, background)
    queue, other = DiskQueue(QUEUE, folder), DiskQueue("other", folder)
    put(queue, messages(0, 3))
    put(queue, messages(3, 2, due_ns=STAMP_NS + 10**12))
    with monkeypatch.context() as patch:
        patch.setattr(SyncJob, what, broken)
        for _ in range(3):
            folder.sync_all()
            folder.retry()
            assert "a defect of nsqd" in (fault(folder) or "")
            if what != "_clean_up":  # all is durable by then
                with pytest.raises(BackendError, match="a defect of nsqd"):
                    put(queue, messages(5, 1))
    assert background.defects.count >= 3
    assert len([record for record in caplog.records if record.exc_info]) == 1
    put(other, messages(0, 1))
    one = queue.read(1, 1_000)
    assert one is not None
    folder.retry()
    assert fault(folder) is None
    assert queue.check() is None
    put(queue, messages(5, 1))
    ids = [message.id for message in drain(queue)]
    assert ids == [message.id for message in messages(one.count, 6 - one.count)]
    assert drain(other) == messages(0, 1)
    queue.close()
    other.close()
    assert disk.open_files == 0


def test_a_defect_when_the_end_of_a_sync_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes out, to be counted by the background; the queue is as after one in the job."""
    background = HeldBackground()
    folder = folder_on(SimulatedDisk(), background)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr(QueueSync, "_apply_success", broken)
        with pytest.raises(TypeError):
            background.run_all()
    assert "a defect of nsqd" in (fault(folder) or "")
    with pytest.raises(BackendError):
        put(queue, messages(3, 1))
    folder.retry()
    background.run_all()
    assert fault(folder) is None
    put(queue, messages(3, 1))
    assert drain(queue) == messages(0, 4)


def test_a_defect_while_a_deferral_file_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages come without their delay, as after an error of the disk."""
    disk, background = SimulatedDisk(), HeldBackground()
    queue = queue_on(disk)
    wanted = messages(0, 2_000, due_ns=STAMP_NS + 10**12)
    put(queue, wanted)
    queue.close()
    queue = DiskQueue(QUEUE, folder_on(disk, background))
    monkeypatch.setattr(DeferralFile, "load", broken)
    background.run_one()
    assert background.defects.count == 1
    assert [one.id for one in drain(queue)] == [one.id for one in wanted]


def test_a_defect_while_a_deleted_queue_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows and is tried again; a queue of that name can be made meanwhile."""
    disk, background = SimulatedDisk(), InlineBackground()
    folder = folder_on(disk, background)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr(UndeletedFiles, "_delete_some", broken)
        queue.delete()
        folder.retry()
        assert "a defect of nsqd" in (fault(folder) or "")
        queue = DiskQueue(QUEUE, folder)
        put(queue, messages(3, 1))
    folder.sync_all()
    folder.retry()
    assert fault(folder) is None
    assert drain(queue) == messages(3, 1)
    queue.delete()
    assert disk.files() == {}


def test_a_defect_at_the_stop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` raises what it raises for an error of the disk; no file stays open."""
    disk, background = SimulatedDisk(), InlineBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background))
    put(queue, messages(0, 2))
    put(queue, messages(2, 1))
    monkeypatch.setattr(SyncJob, "_write_positions", broken)
    with pytest.raises(BackendError, match="a defect of nsqd"):
        queue.close()
    assert background.defects.count == 1
    assert disk.open_files == 0
    assert drain(queue_on(disk)) == messages(0, 3)


def spoil(queue: DiskQueue, how: str) -> None:
    """Make the state of a queue with messages contradict itself."""
    if how == "behind":
        queue._positions.read_pos = 10**6
    elif how == "later files":
        queue._reader.finished.add(10**6)
    elif how == "sealed":
        queue._writer.sealed.append((10**6, None))
    elif how == "which is sealed":
        queue._writer.sealed.append((queue._positions.write_file, None))
    elif how == "due times":
        queue.empty()
        queue._deferrals.add([b"x"], [1])
    elif how == "no file":
        queue._is_bare = True
    else:
        queue.read(1, 1)
        queue._reader._index = 2


@pytest.mark.parametrize(
    "text",
    ["behind", "later files", "sealed", "which is sealed", "due times", "no file", "continues at"],
)
def test_what_contradicts_itself_is_told(text: str) -> None:
    """`check` names what is wrong; of a sound queue nothing, in any state."""
    queue = DiskQueue(QUEUE, folder_on(SimulatedDisk()))
    assert queue.check() is None
    put(queue, messages(0, 4))
    assert queue.check() is None
    spoil(queue, text)
    assert text in (queue.check() or "")
