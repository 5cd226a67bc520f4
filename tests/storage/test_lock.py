"""The lock of the data path, with the texts that operators know from nsqd."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trionsq.disk import FolderLock, FolderLockError
from trionsq.storage.folder import DataPathError, lock_data_path


def refusal(path: str) -> str:
    with pytest.raises(DataPathError) as caught:
        lock_data_path(path)
    return str(caught.value)


def taken(path: object) -> str:
    return (
        f"failed to lock data-path: cannot flock directory {path} - resource temporarily"
        " unavailable (possibly in use by another instance of nsqd)"
    )


def test_a_folder_is_locked_once_until_it_is_released(tmp_path: Path) -> None:
    """A second lock is refused in nsqd's words; after the end of the first it is granted."""
    with lock_data_path(str(tmp_path)):
        assert refusal(str(tmp_path)) == taken(tmp_path)
    with lock_data_path(str(tmp_path)) as lock:
        assert lock.path == str(tmp_path)


def test_releasing_twice_does_no_harm(tmp_path: Path) -> None:
    """A late second release neither fails nor frees the lock of another."""
    first = lock_data_path(str(tmp_path))
    first.release()
    with lock_data_path(str(tmp_path)):
        first.release()
        assert refusal(str(tmp_path)) == taken(tmp_path)


def test_an_empty_path_is_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --data-path the current folder is locked, and named in full."""
    monkeypatch.chdir(tmp_path)
    with lock_data_path("") as lock:
        assert lock.path == str(tmp_path)
        assert refusal("") == taken(tmp_path)
        assert refusal(".") == taken(".")


def test_a_current_folder_that_is_gone_is_named_as_nsqd_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed current folder is an error like any other, not a traceback."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert refusal("") == "failed to lock data-path: open : no such file or directory"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A folder that is not there is not made."""
    path = tmp_path / "none"
    assert refusal(str(path)) == f"failed to lock data-path: open {path}: no such file or directory"
    assert not path.exists()


@pytest.mark.parametrize("below", ["", "/x"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    """A file in place of the folder, or of one above it, is refused."""
    (tmp_path / "file").touch()
    path = f"{tmp_path}/file{below}"
    assert refusal(path) == f"failed to lock data-path: open {path}: not a directory"


def test_a_folder_without_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system refuses is told in its words (simulated: root may open anything)."""

    def refuse(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", refuse)
    assert refusal(str(tmp_path)) == f"failed to lock data-path: open {tmp_path}: permission denied"


def test_a_refused_lock_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without locks is named, and the folder is closed again."""
    opened: list[int] = []

    def refuse(fd: int, operation: int) -> None:
        opened.append(fd)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "no locks available" in refusal(str(tmp_path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_the_lock_holds_between_processes_and_is_not_inherited(tmp_path: Path) -> None:
    """Another process is refused; a program that we started does not keep the folder locked."""
    attempt = (
        "import sys; from trionsq.storage.folder import *\n"
        "try: lock_data_path(sys.argv[1])\n"
        "except DataPathError as error: print(error)"
    )
    with lock_data_path(str(tmp_path)):
        other = subprocess.run(
            [sys.executable, "-c", attempt, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert other.stdout == taken(tmp_path) + "\n"
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    try:
        lock_data_path(str(tmp_path)).release()
    finally:
        child.communicate(timeout=60)


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Releasing frees the folder although another descriptor of the same open file is left."""
    lock = lock_data_path(str(tmp_path))
    copy = os.dup(lock._fd)
    try:
        lock.release()
        lock_data_path(str(tmp_path)).release()
    finally:
        os.close(copy)


def test_a_lock_file_in_the_folder_may_stand_for_it(tmp_path: Path) -> None:
    """It is created if missing, locked once, and independent of the lock of the folder itself."""
    with FolderLock(str(tmp_path), "LOCK"):
        assert (tmp_path / "LOCK").exists()
        with pytest.raises(FolderLockError):
            FolderLock(str(tmp_path), "LOCK")
        FolderLock(str(tmp_path)).release()
    FolderLock(str(tmp_path), "LOCK").release()


def test_a_lock_in_a_missing_folder_is_no_refusal(tmp_path: Path) -> None:
    """A folder that cannot be opened is another error than one that is in use."""
    with pytest.raises(FileNotFoundError):
        FolderLock(str(tmp_path / "missing"), "LOCK")
