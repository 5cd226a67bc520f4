"""The disk as storage sees it: what real and simulated ones share, and what the latter can do."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.disk import Disk, DiskFile, RealDisk, replace_file
from trionsq.storage.folder import Background
from trionsq.testing.background import HeldBackground, InlineBackground
from trionsq.testing.disk import OPERATIONS, Crashed, SimulatedDisk

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "diskqueue"
SEEDS = range(200)


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


def put(disk: Disk, name: str, data: bytes, *, synced: bool = True) -> DiskFile:
    """Make a file, or open it, and write it anew from its start."""
    file = disk.open(name) if name in disk.names() else disk.create(name)
    file.write(data, 0)
    if synced:
        file.sync()
        disk.sync_folder()
    return file


def content(disk: Disk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


# What every disk does


def test_what_was_written_is_read(disk: Disk) -> None:
    """Bytes are read where they were written; at the end of the file there are fewer, then none."""
    file = disk.create("a")
    assert (file.size(), file.read(10, 0)) == (0, b"")
    file.write(b"0123456789", 0)
    file.write(b"xy", 4)
    file.write(b"", 50)
    assert file.read(100, 0) == b"0123xy6789"
    assert file.read(3, 3) == b"3xy"
    assert file.read(5, 8) == b"89"
    assert file.read(5, 10) == file.read(5, 1000) == file.read(0, 2) == b""
    assert file.size() == 10
    file.sync()
    file.close()
    assert content(disk, "a") == b"0123xy6789"


def test_holes_are_zeros(disk: Disk) -> None:
    """What lies between the old end and a write beyond it reads as zeros."""
    file = disk.create("a")
    file.write(b"ab", 0)
    file.write(b"cd", 5)
    assert file.read(10, 0) == b"ab\0\0\0cd"
    file.close()


def test_truncating_cuts_off(disk: Disk) -> None:
    """The rest is gone for good: growing again brings zeros."""
    file = disk.create("a")
    file.write(b"0123456789", 0)
    file.truncate(4)
    assert file.read(10, 0) == b"0123"
    file.truncate(6)
    assert file.read(10, 0) == b"0123\0\0"
    file.close()


def test_negative_numbers_are_refused(disk: Disk) -> None:
    """An offset or a size below zero is the caller's mistake, and never wraps around."""
    file = put(disk, "a", b"abc")
    calls: tuple[Callable[[], object], ...] = (
        lambda: file.write(b"x", -1),
        lambda: file.read(1, -1),
        lambda: file.truncate(-1),
    )
    for call in calls:
        with pytest.raises(OSError, match="Invalid argument") as caught:
            call()
        assert caught.value.filename == os.path.join(disk.path, "a")
    assert file.read(9, 0) == b"abc"
    file.close()


def test_creating_what_exists_is_an_error(disk: Disk) -> None:
    """The file that has the name stays as it is."""
    put(disk, "a", b"abc").close()
    with pytest.raises(FileExistsError) as caught:
        disk.create("a")
    assert caught.value.filename == os.path.join(disk.path, "a")
    assert content(disk, "a") == b"abc"


def test_what_is_missing_is_an_error_with_its_path(disk: Disk) -> None:
    """Opening, removing and renaming a file that is not there names it, and makes none."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: disk.open("a"),
        lambda: disk.unlink("a"),
        lambda: disk.rename("a", "b"),
    )
    for call in calls:
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.filename == os.path.join(disk.path, "a")
    assert caught.value.filename2 == os.path.join(disk.path, "b")
    assert disk.names() == []


def test_renaming_replaces(disk: Disk) -> None:
    """The file that had the new name is gone; handles go on with the file that they opened."""
    old, new = put(disk, "b", b"old"), put(disk, "a", b"new")
    disk.rename("a", "b")
    assert disk.names() == ["b"]
    assert content(disk, "b") == b"new"
    new.write(b"N", 0)
    assert content(disk, "b") == b"New"
    assert old.read(9, 0) == b"old"
    disk.rename("b", "b")
    assert content(disk, "b") == b"New"
    old.close()
    new.close()


def test_an_open_file_survives_its_removal(disk: Disk) -> None:
    """A removed file stays usable through its handle, and its name is free for another."""
    file = put(disk, "a", b"abc")
    disk.unlink("a")
    assert disk.names() == []
    put(disk, "a", b"other").close()
    file.write(b"d", 3)
    file.sync()
    assert file.read(9, 0) == b"abcd"
    assert content(disk, "a") == b"other"
    file.close()


def test_handles_of_one_file_share_it(disk: Disk) -> None:
    """What one has written another reads at once."""
    one, other = put(disk, "a", b"abc"), disk.open("a")
    one.write(b"X", 1)
    assert other.read(3, 0) == b"aXc"
    one.close()
    assert other.size() == 3
    other.close()


def test_all_names_are_listed(disk: Disk) -> None:
    """Names with the characters that NSQ uses come back as they are, in any order."""
    names = ["t:c.diskqueue.000000.dat", "t#ephemeral", "nsqd.dat"]
    for name in names:
        disk.create(name).close()
    disk.sync_folder()
    assert sorted(disk.names()) == sorted(names)
    assert disk.free_bytes() > 0


def test_replacing_leaves_the_new_content_only(disk: Disk) -> None:
    """Whether there was a file or none: afterwards it has the new content, and no draft is left."""
    for data in (b"first", b"second", b""):
        replace_file(disk, "a", data)
        assert content(disk, "a") == data
        assert disk.names() == ["a"]


# The real disk


def test_real_files_are_private(tmp_path: Path) -> None:
    """Files are made with mode 0600 and are not handed to child processes."""
    disk = RealDisk(tmp_path)
    disk.create("a").close()
    replace_file(disk, "b", b"data")
    for name in ("a", "b"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    file = disk.open("a")
    inheritable = [os.get_inheritable(fd) for fd in _descriptors_of(tmp_path / "a")]
    assert inheritable == [False]
    file.close()


def _descriptors_of(path: Path) -> list[int]:
    found = []
    for fd in range(3, 256):
        with suppress(OSError):  # nothing is open under that number
            if os.path.samestat(os.fstat(fd), path.stat()):
                found.append(fd)
    return found


def test_a_write_goes_on_after_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take few bytes at a time: all are written all the same."""
    pwrite, calls = os.pwrite, 0

    def few(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        return pwrite(fd, bytes(data)[:3], offset)

    monkeypatch.setattr(os, "pwrite", few)
    disk = RealDisk(tmp_path)
    put(disk, "a", b"0123456789", synced=False).close()
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    assert calls == 4


def test_a_write_that_makes_no_progress_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not go round for ever."""
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    file = RealDisk(tmp_path).create("a")
    with pytest.raises(OSError, match="nothing was written") as caught:
        file.write(b"abc", 0)
    assert caught.value.filename == str(tmp_path / "a")
    file.close()


@pytest.mark.parametrize(
    ("function", "operation"),
    [("pwrite", "write"), ("pread", "read"), ("ftruncate", "truncate"), ("fsync", "sync")],
)
def test_real_errors_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, operation: str
) -> None:
    """An error of an open file carries its number, its text and the path."""

    def failing(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = RealDisk(tmp_path).create("a")
    monkeypatch.setattr(os, function, failing)
    args = {"write": (b"abc", 0), "read": (1, 0), "truncate": (0,), "sync": ()}[operation]
    with pytest.raises(OSError, match="Input/output error") as caught:
        getattr(file, operation)(*args)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "a"))
    file.close()


def test_a_real_folder_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync of the folder carries the folder's path; a missing folder too."""

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error") as caught:
        RealDisk(tmp_path).sync_folder()
    assert caught.value.filename == str(tmp_path)
    gone = RealDisk(tmp_path / "gone")
    for call in (gone.sync_folder, gone.names, gone.free_bytes):
        with pytest.raises(FileNotFoundError) as missing:
            call()
        assert missing.value.filename == str(tmp_path / "gone")


# The simulated disk: looking at it


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


# The simulated disk: crashes


def test_nothing_works_after_a_crash() -> None:
    """The operation raises `Crashed`, and so does each one after it, also of other handles."""
    disk = SimulatedDisk()
    file = put(disk, "a", b"abc")
    disk.crash_at(2)
    assert file.size() == 3
    assert "crashed" not in repr(disk)
    for call in (file.sync, lambda: file.read(1, 0), disk.names, file.close):
        with pytest.raises(Crashed):
            call()
    assert not issubclass(Crashed, Exception)
    assert "crashed" in repr(disk)


def test_the_operation_that_crashes_is_done_or_not() -> None:
    """A write may be there in part as well; all else happens wholly or not at all."""
    writes, renames, syncs = set(), set(), set()
    for seed in SEEDS:
        disks = [SimulatedDisk(random=Random(seed)) for _ in range(3)]
        files = [put(disk, "a", b"....") for disk in disks]
        files[2].write(b"1234", 0)
        for disk in disks:
            disk.crash_at(1)
        with pytest.raises(Crashed):
            files[0].write(b"1234", 0)
        with pytest.raises(Crashed):
            disks[1].rename("a", "b")
        with pytest.raises(Crashed):
            files[2].sync()
        writes.add(disks[0].after_kill().files()["a"])
        renames.add(tuple(disks[1].after_kill().files()))
        syncs.add(disks[2].after_power_loss().files()["a"])
    assert {b"....", b"1234", b"12..", b"..34"} <= writes
    assert renames == {("a",), ("b",)}
    assert {b"....", b"1234"} <= syncs


def test_a_killed_process_leaves_all_it_did() -> None:
    """What was written is there, but it is as little durable as it was; handles are gone."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed), capacity=100, path="/data")
        file = put(disk, "a", b"synced")
        file.write(b"unsync", 0)
        disk.create("b")
        disk.fail(errno.EIO, forever=True)
        after = disk.after_kill()
        assert after.files() == {"a": b"unsync", "b": b""}
        assert (after.open_files, after.operations, after.capacity) == (0, 0, 100)
        assert after.path == "/data"
        found.add("b" in after.after_power_loss().files())
        after.open("a").write(b"UNSYNC", 0)
        after.unlink("b")
        assert disk.files() == {"a": b"unsync", "b": b""}
    assert found == {True, False}


def test_power_loss_takes_any_part_of_what_was_not_durable() -> None:
    """Writes are missing in any combination and torn; the hole that one leaves is zeros."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        file = put(disk, "a", b"aa")
        file.write(b"bb", 2)
        file.write(b"cc", 4)
        found.add(disk.after_power_loss().files()["a"])
    assert {b"aa", b"aabb", b"aabbcc", b"aa\0\0cc", b"aab", b"aa\0\0\0\0"} <= found
    allowed = (b"a", b"a", b"b\0", b"b\0", b"c\0", b"c\0")
    for data in found:
        assert all(byte in choice for byte, choice in zip(data, allowed, strict=False))
        assert 2 <= len(data) <= 6


def test_power_loss_may_undo_a_truncation() -> None:
    """Cutting a file off is not durable before the next sync either."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        file = put(disk, "a", b"123456")
        file.truncate(2)
        found.add(disk.after_power_loss().files()["a"])
        file.sync()
        assert disk.after_power_loss().files() == {"a": b"12"}
    assert found == {b"12", b"123456"}


def test_power_loss_may_undo_names() -> None:
    """Without a sync of the folder each name may be old or new; a rename is never half done."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"1")
        put(disk, "b", b"2")
        put(disk, "x", b"3")
        disk.rename("a", "b")
        disk.unlink("x")
        disk.create("y")
        found.add(tuple("".join(map(str, item)) for item in _flat(disk)))
        disk.sync_folder()
        assert _flat(disk) == [("b", "1"), ("y", "")]
    renamed = {items for items in found if "a1" not in items}
    assert all("b1" in items for items in renamed)
    assert all("b2" in items for items in found - renamed)
    assert renamed
    assert found - renamed
    assert {"x3" in items for items in found} == {"y" in items for items in found} == {True, False}


def _flat(disk: SimulatedDisk) -> list[tuple[str, str]]:
    return [(name, data.decode()) for name, data in disk.after_power_loss().files().items()]


def test_what_happens_to_one_name_stays_in_order() -> None:
    """A power loss never keeps the second change of a name without the first."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"1")
        disk.rename("a", "b")
        put(disk, "a", b"2", synced=False).sync()
        found.add(tuple(_flat(disk)))
    assert found == {(("a", "1"),), (("b", "1"),), (("a", "2"), ("b", "1"))}


def test_the_same_seed_gives_the_same_disk() -> None:
    """A failure is found again by its seed."""

    def run(seed: int) -> list[dict[str, bytes]]:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"x" * 1000, synced=False)
        disk.crash_at(1)
        with pytest.raises(Crashed):
            disk.open("a")
        return [disk.after_power_loss().files() for _ in range(20)]

    assert run(1) == run(1)
    assert run(1) != run(2)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 20), st.integers(1, 12)),
        st.sampled_from([("sync", 0, 0), ("failed sync", 0, 0)]),
    ),
    max_size=25,
)


@given(STEPS, st.integers(0, 2**32))
def test_what_was_synced_survives(steps: list[tuple[str, int, int]], seed: int) -> None:
    """A byte that was synced since it was written last survives; any other is one of its history.

    So it is also after a second power loss, and after a kill and then a power loss.
    """
    disk = SimulatedDisk(random=Random(seed))
    file = put(disk, "a", b"")
    now = bytearray()
    possible: dict[int, set[int]] = {}  # by position, what a power loss may leave
    dirty: set[int] = set()
    size_min = 0
    for number, (step, offset, nbytes) in enumerate(steps, 1):
        if step == "write":
            now.extend(bytes(max(0, offset + nbytes - len(now))))
            now[offset : offset + nbytes] = bytes([number]) * nbytes
            file.write(bytes([number]) * nbytes, offset)
            for position in range(offset, offset + nbytes):
                possible.setdefault(position, {0}).add(number)
                dirty.add(position)
        elif step == "sync":
            file.sync()
            for position in dirty:
                possible[position] = {now[position]}
            size_min = max(size_min, *(position + 1 for position in dirty), 0)
            dirty.clear()
        else:
            disk.fail(errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                file.sync()
            dirty.clear()
    assert disk.files()["a"] == now
    after = disk.after_power_loss()
    for data in (after.files()["a"], disk.after_kill().after_power_loss().files()["a"]):
        assert size_min <= len(data) <= len(now)
        for position, byte in enumerate(data):
            assert byte in possible.get(position, {0})
    assert after.after_power_loss().files() == after.files()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "rename", "unlink", "sync_folder"]),
            st.sampled_from("abc"),
            st.sampled_from("abc"),
        ),
        max_size=20,
    ),
    st.integers(0, 2**32),
)
def test_synced_names_survive(steps: list[tuple[str, str, str]], seed: int) -> None:
    """After a sync of the folder the names are as they were then, apart from what came later."""
    disk = SimulatedDisk(random=Random(seed))
    expected: dict[str, bytes] = {}
    touched: set[str] = set()
    for number, (step, name, new_name) in enumerate(steps):
        if step == "put" and name not in expected:
            file = disk.create(name)
            file.write(b"%d" % number, 0)
            file.sync()
            file.close()
            expected[name] = b"%d" % number
            touched.add(name)
        elif step == "rename" and name in expected:
            disk.rename(name, new_name)
            expected[new_name] = expected.pop(name)
            touched |= {name, new_name} if name != new_name else set()
        elif step == "unlink" and name in expected:
            disk.unlink(name)
            del expected[name]
            touched.add(name)
        elif step == "sync_folder":
            disk.sync_folder()
            touched.clear()
            assert disk.after_power_loss().files() == expected
    assert disk.files() == disk.after_kill().files() == expected
    files = disk.after_power_loss().files()
    for name in set("abc") - touched:
        assert files.get(name) == expected.get(name)


# Replacing a file


def count_operations(work: Callable[[SimulatedDisk], object], had: bytes | None) -> int:
    disk = simulated(had, 0)
    work(disk)
    return disk.operations


def simulated(had: bytes | None, seed: int) -> SimulatedDisk:
    disk = SimulatedDisk(random=Random(seed))
    if had is not None:
        disk.write_file("a", had)
    return disk


def replace(disk: SimulatedDisk) -> None:
    replace_file(disk, "a", b"the new content")


@pytest.mark.parametrize("had", [b"the old content, which is longer", b"", None])
def test_a_crash_leaves_the_old_content_or_the_new(had: bytes | None) -> None:
    """At whichever operation it comes: never a mix, and never none if there was one."""
    found = set()
    crashes = 0
    for at in range(1, count_operations(replace, had) + 1):
        for seed in range(30):
            disk = simulated(had, seed)
            disk.crash_at(at)
            with pytest.raises(Crashed):
                replace(disk)
            crashes += disk.crashed
            for after in (disk.after_kill(), disk.after_power_loss()):
                found.add(after.files().get("a"))
    assert crashes == 6 * 30
    assert found == {had, b"the new content"}


@pytest.mark.parametrize("had", [b"the old content", None])
def test_once_replaced_it_stays_replaced(had: bytes | None) -> None:
    """When it has returned, no power loss brings the old content back."""
    for seed in SEEDS:
        disk = simulated(had, seed)
        replace(disk)
        assert disk.after_power_loss().files() == {"a": b"the new content"}


@pytest.mark.parametrize("had", [b"the old content", None])
def test_replacing_that_fails_cleans_up(had: bytes | None) -> None:
    """Whichever operation fails: an error, no draft and no open file left, old content or new."""
    count = count_operations(replace, had)
    for at in range(1, count + 1):
        disk = simulated(had, at)
        disk.fail(errno.EIO, at=at)
        with pytest.raises(OSError, match="Input/output error"):
            replace(disk)
        assert disk.faults.total() == 1
        assert disk.files().get("a") == (b"the new content" if at == count else had)
        assert disk.files().keys() <= {"a"}
        assert disk.open_files == 0


# Blocking work


def test_inline_work_is_done_at_once() -> None:
    """When `submit` returns, the job has run and its end was told, with its OSError if any."""
    background: Background = InlineBackground()
    told: list[object] = []
    error = OSError(errno.EIO, "broken")

    def failing() -> None:
        raise error

    background.submit(lambda: told.append("job"), told.append)
    background.submit(failing, told.append)
    assert told == ["job", None, error]


def test_held_work_waits() -> None:
    """Jobs run in order when told to; the end of one may be held back on its own."""
    held = HeldBackground()
    background: Background = held
    told: list[str] = []
    for name in "abcd":
        background.submit(
            lambda name=name: told.append(f"{name} runs"),  # type: ignore[misc]
            lambda error, name=name: told.append(f"{name} done"),  # type: ignore[misc]
        )
    assert (told, len(held), held.submitted) == ([], 4, 4)
    held.start_one()
    assert told == ["a runs"]
    held.start_one()
    held.run_one()
    assert told == ["a runs", "b runs", "a done"]
    assert held.run_all() == 3
    assert told[3:] == ["b done", "c runs", "c done", "d runs", "d done"]
    assert len(held) == 0
    for call in (held.run_one, held.start_one):
        with pytest.raises(IndexError):
            call()


def test_held_work_tells_errors_and_may_go_on() -> None:
    """An OSError reaches ``done``, which may submit more; work without end is noticed."""
    held = HeldBackground()
    disk = SimulatedDisk()
    disk.fail(errno.EIO, forever=True)
    errors: list[int | None] = []

    def again(error: Exception | None) -> None:
        errors.append(error.errno if isinstance(error, OSError) else None)
        if error:
            held.submit(disk.sync_folder, again)

    held.submit(disk.sync_folder, again)
    held.run_one()
    disk.heal()
    assert held.run_all() == 1
    assert errors == [errno.EIO, None]
    disk.fail(errno.EIO, forever=True)
    held.submit(disk.sync_folder, again)
    with pytest.raises(RuntimeError, match="1 waiting"):
        held.run_all()


@pytest.mark.parametrize("kind", [InlineBackground, HeldBackground])
def test_a_crash_goes_through(kind: type[InlineBackground | HeldBackground]) -> None:
    """What is no Exception comes out at once: after a crash nobody is told that a job is done."""
    background = kind()
    disk = SimulatedDisk()
    disk.crash_at(1)
    told: list[Exception | None] = []
    with pytest.raises(Crashed):
        _submit_and_run(background, disk.sync_folder, told.append)
    assert told == []
    if isinstance(background, HeldBackground):
        assert len(background) == 0


def _submit_and_run(
    background: InlineBackground | HeldBackground,
    job: Callable[[], None],
    done: Callable[[Exception | None], None],
) -> None:
    background.submit(job, done)
    if isinstance(background, HeldBackground):
        background.run_one()
