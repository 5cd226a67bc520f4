"""The simulated disk (trionsq.testing.disk): what it counts, and the faults it can have."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from tests.storage.disks import put
from trionsq.disk import replace_file
from trionsq.testing.disk import OPERATIONS, Crashed, SimulatedDisk

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "diskqueue"
SEEDS = range(200)


def test_it_counts_and_tells_what_is_done() -> None:
    """Operations are counted and, if asked, logged by name; handles that are open are counted."""
    disk = SimulatedDisk(logged=True)
    file = put(disk, "a", b"abc")
    disk.rename("a", "b")
    assert disk.open_files == 1
    file.close()
    assert disk.open_files == 0
    assert disk.log == [
        ("names", ""),
        ("create", "a"),
        ("write", "a"),
        ("sync", "a"),
        ("sync_folder", ""),
        ("rename", "a -> b"),
        ("close", "a"),
    ]
    assert disk.operations == len(disk.log)
    assert disk.files() == {"b": b"abc"}
    assert disk.operations == len(disk.log)
    assert SimulatedDisk().log == []


def test_a_closed_file_is_not_used_again() -> None:
    """Any use of a handle after its close is a mistake of the caller: ValueError."""
    file = put(SimulatedDisk(), "a", b"abc")
    file.close()
    for call in (lambda: file.write(b"x", 0), lambda: file.read(1, 0), file.sync, file.close):
        with pytest.raises(ValueError, match="closed file: /simulated/a"):
            call()


def test_a_real_folder_is_loaded() -> None:
    """The golden data are on the simulated disk byte for byte, and durable."""
    folder = GOLDEN / "topic_memory_flush" / "data"
    disk = SimulatedDisk.load(folder)
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert expected
    assert disk.files() == disk.after_power_loss().files() == expected
    assert disk.operations == 0


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_put_there_is_durable_at_once(synced: bool) -> None:
    """`write_file` needs no sync, whatever was under way for that name."""
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"old", synced=synced).close()
        disk.unlink("a")
        disk.write_file("a", b"new")
        assert disk.after_power_loss().files() == disk.files() == {"a": b"new"}
        disk.sync_folder()
        assert disk.after_power_loss().files() == {"a": b"new"}


def test_threads_may_use_it_at_once() -> None:
    """No operation is lost or mixed up when several threads write and sync."""
    disk = SimulatedDisk()

    def work(name: str) -> None:
        file = disk.create(name)
        for offset in range(200):
            file.write(name.encode(), offset)
            file.sync()
            disk.sync_folder()
        file.close()

    threads = [Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert disk.operations == 4 * (2 + 3 * 200)
    assert disk.after_power_loss().files() == {name: name.encode() * 200 for name in "abcd"}
    assert disk.open_files == 0


# The simulated disk: faults


def test_the_nth_operation_fails_once() -> None:
    """Only operations of the kinds meant are counted, and the one after it works again."""
    disk = SimulatedDisk()
    disk.fail(errno.EIO, at=2, only={"sync"})
    file = put(disk, "a", b"abc")
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.sync()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/simulated/a")
    file.sync()
    assert disk.faults == {"sync": 1}
    file.close()


def test_a_disk_fails_until_healed() -> None:
    """``forever`` lets all that follow fail as well; after `heal` nothing does."""
    disk = SimulatedDisk()
    disk.fail(errno.EIO, at=2, forever=True)
    disk.names()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error") as caught:
            disk.create("a")
        assert caught.value.filename == "/simulated/a"
    with pytest.raises(OSError, match="Input/output error") as caught:
        disk.rename("a", "b")
    assert (caught.value.filename, caught.value.filename2) == ("/simulated/a", "/simulated/b")
    disk.heal()
    assert disk.names() == []
    assert disk.faults == {"create": 3, "rename": 1}


def test_faults_may_be_for_some_files_only() -> None:
    """``name`` is a pattern; other files neither count nor fail."""
    disk = SimulatedDisk()
    disk.fail(errno.ENOSPC, forever=True, only={"write"}, name="*.meta.dat")
    replace_file(disk, "t.diskqueue.000000.dat", b"abc")
    disk.fail(errno.EROFS, name="new")
    put(disk, "old", b"").close()
    with pytest.raises(OSError, match="Read-only"):
        disk.rename("old", "new")
    meta = disk.create("t.diskqueue.meta.dat")
    with pytest.raises(OSError, match="No space"):
        meta.write(b"abc", 0)
    meta.close()


def test_a_crash_may_be_for_some_operations_only() -> None:
    """Others, and those of other files, do not count; impossible ones are refused."""
    disk = SimulatedDisk()
    disk.crash_at(2, only=["create"], name="*.dat")
    disk.create("a.dat").write(b"a", 0)
    disk.create("b.log").sync()
    disk.rename("a.dat", "c.dat")
    with pytest.raises(Crashed):
        disk.create("d.dat")
    assert disk.crashed
    with pytest.raises(ValueError, match="no such operation"):
        SimulatedDisk().crash_at(1, only=["fly"])


def test_a_fault_that_could_never_happen_is_refused() -> None:
    """A misspelt operation would make a test prove nothing."""
    disk = SimulatedDisk()
    with pytest.raises(ValueError, match="fsync"):
        disk.fail(errno.EIO, only={"fsync"})
    with pytest.raises(ValueError, match="0"):
        disk.fail(errno.EIO, at=0)
    with pytest.raises(ValueError, match="0"):
        disk.crash_at(0)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_can_fail(operation: str) -> None:
    """The error is raised and counted; apart from writes and closes nothing was done."""
    disk = SimulatedDisk()
    put(disk, "a", b"abc")
    file = disk.open("a")
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open("a"),
        "create": lambda: disk.create("b"),
        "rename": lambda: disk.rename("a", "b"),
        "unlink": lambda: disk.unlink("a"),
        "names": disk.names,
        "sync_folder": disk.sync_folder,
        "free_bytes": disk.free_bytes,
        "write": lambda: file.write(b"", 0),
        "read": lambda: file.read(1, 0),
        "size": file.size,
        "truncate": lambda: file.truncate(0),
        "sync": file.sync,
        "close": file.close,
    }
    disk.fail(errno.EIO, only={operation})
    with pytest.raises(OSError, match="Input/output error"):
        calls[operation]()
    assert disk.faults == {operation: 1}
    assert disk.files() == {"a": b"abc"}
    assert disk.open_files == (1 if operation == "close" else 2)
    if operation != "close":
        calls[operation]()


def test_a_write_that_fails_leaves_a_part() -> None:
    """Nothing, all, the beginning, the end, or both without the middle; never other bytes."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        file = put(disk, "a", b"....")
        disk.fail(errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            file.write(b"1234", 0)
        found.add(disk.files()["a"])
        file.write(b"5678", 0)
        assert disk.files()["a"] == b"5678"
    assert {b"....", b"1234", b"12..", b"..34", b"1..4"} <= found
    for data in found:
        assert all(
            byte in pair for byte, pair in zip(data, (b".1", b".2", b".3", b".4"), strict=True)
        )


def test_a_full_disk_takes_what_fits() -> None:
    """Beyond the capacity a write is cut off and fails; given room, it works again."""
    disk = SimulatedDisk(capacity=10)
    put(disk, "a", b"1234567").close()
    file = disk.create("b")
    with pytest.raises(OSError, match="No space left") as caught:
        file.write(b"abcdef", 0)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/simulated/b")
    assert disk.files()["b"] == b"abc"
    assert disk.free_bytes() == 0
    file.write(b"ABC", 0)  # what is there already needs no room
    with pytest.raises(OSError, match="No space left"):
        file.write(b"x", 5)
    assert file.size() == 3
    disk.capacity = 12
    assert disk.free_bytes() == 2
    file.write(b"de", 3)
    disk.capacity = 5
    assert disk.free_bytes() == 0
    disk.capacity = None
    file.write(b"x" * 100, 0)
    assert disk.faults == {"write": 2}
    file.close()


def test_room_is_given_back_when_nobody_has_the_file_open() -> None:
    """A removed file takes room until its last handle is closed."""
    disk = SimulatedDisk(capacity=10)
    file = put(disk, "a", b"1234567")
    disk.unlink("a")
    assert disk.free_bytes() == 3
    file.truncate(5)
    assert disk.free_bytes() == 5
    file.close()
    assert disk.free_bytes() == disk.after_kill().free_bytes() == 10


def test_what_a_sync_failed_to_save_stays_in_doubt() -> None:
    """It is readable, but a power loss may lose it, also after a later sync that succeeded."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        file = put(disk, "a", b"aa")
        file.write(b"bb", 2)
        disk.fail(errno.EIO, only={"sync"})
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.write(b"cc", 4)
        file.sync()
        assert disk.files() == disk.after_kill().files() == {"a": b"aabbcc"}
        found.add(disk.after_power_loss().files()["a"])
        file.write(b"dd", 2)
        file.sync()
        assert disk.after_power_loss().files() == {"a": b"aaddcc"}
    assert {b"aabbcc", b"aa\0\0cc"} <= found
    assert all(data[:2] == b"aa" and data[4:] == b"cc" for data in found)


def test_names_that_a_sync_failed_to_save_stay_in_doubt() -> None:
    """The same holds for the folder: a file whose name was lost once may be missing."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        disk.fail(errno.EIO, only={"sync_folder"})
        file = disk.create("a")
        with pytest.raises(OSError, match="Input/output error") as caught:
            disk.sync_folder()
        assert caught.value.filename == "/simulated"
        disk.sync_folder()
        assert disk.names() == ["a"]
        found.add("a" in disk.after_power_loss().files())
        file.close()
    assert found == {True, False}
