"""The disk (trionsq.disk): what real and simulated ones share, the real one, replacing a file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.storage.disks import content, put
from trionsq.disk import Disk, RealDisk, read_file, replace_file
from trionsq.testing.disk import Crashed, SimulatedDisk

SEEDS = range(200)


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


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
    [
        ("os.pwrite", "write"),
        ("os.pread", "read"),
        ("os.ftruncate", "truncate"),
        ("trionsq.disk._sync_content", "sync"),
    ],
)
def test_real_errors_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, operation: str
) -> None:
    """An error of an open file carries its number, its text and the path."""

    def failing(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = RealDisk(tmp_path).create("a")
    monkeypatch.setattr(function, failing)
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


def test_a_draft_with_a_fixed_name_is_replaced() -> None:
    """A draft that a crash left is removed first; only the new content remains."""
    disk = SimulatedDisk()
    disk.write_file("a", b"old")
    disk.write_file("a.tmp", b"a longer draft of a former process")
    replace_file(disk, "a", b"new", draft="a.tmp")
    assert disk.after_power_loss().files() == {"a": b"new"}


def test_a_real_disk_opens_and_creates_as_its_owner_asks(tmp_path: Path) -> None:
    """New files have the given mode; existing ones are opened with the given flags."""
    disk = RealDisk(tmp_path, mode=0o644, open_flags=os.O_RDONLY)
    file = disk.create("a")
    file.write(b"x", 0)
    file.close()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644 & ~umask
    file = disk.open("a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"y", 0)
    file.close()
    assert read_file(disk, "a") == b"x"
