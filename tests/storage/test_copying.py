"""Large files are read and copied whole, and piece by piece (trionsq.disk)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.storage.queues import QUEUE, drain, folder_on, messages, put, queue_on, records_name
from trionsq.disk import RealDisk, read_pieces, replace_file
from trionsq.storage.diskqueue import DiskQueue
from trionsq.testing.disk import SimulatedDisk, SimulatedFile


def test_a_read_gives_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one call of the system gives less, as with more than 2,147,479,552 bytes."""
    content = bytes(range(256)) * 10
    (tmp_path / "a").write_bytes(content)
    file = RealDisk(tmp_path).open("a")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, at: pread(fd, min(nbytes, 100), at))
    assert file.read(2_000, 0) == content[:2_000]
    assert file.read(5_000, 10) == content[10:]
    assert file.read(5, len(content)) == b""
    assert file.read(0, 0) == b""
    file.close()


def test_a_file_is_copied_in_pieces(tmp_path: Path) -> None:
    """No more than a piece is in memory, and the copy is the whole."""
    disk = RealDisk(tmp_path)
    content = os.urandom(5_000)
    (tmp_path / "a").write_bytes(content)
    file = disk.open("a")
    pieces = list(read_pieces(file, piece_bytes=999))
    assert max(map(len, pieces)) == 999
    assert b"".join(pieces) == content
    assert b"".join(read_pieces(file, 1_234, 100)) == content[:1_234]
    assert b"".join(read_pieces(file, 9_999, 100)) == content
    replace_file(disk, "a", read_pieces(file, 3_000, 100))
    file.close()
    assert (tmp_path / "a").read_bytes() == content[:3_000]
    assert disk.names() == ["a"]


def test_a_copy_that_a_defect_ends_leaves_no_draft() -> None:
    """Whatever is raised where the pieces come from, the old content stands, and nothing else."""
    disk = SimulatedDisk()
    disk.write_file("a", b"old")

    def pieces() -> Any:
        yield b"new"
        raise ValueError("no piece")

    with pytest.raises(ValueError, match="no piece"):
        replace_file(disk, "a", pieces())
    assert disk.files() == {"a": b"old"}
    assert disk.open_files == 0


def test_a_file_whose_sync_failed_is_written_anew_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it is: no read is of more than 1 MiB, and no message is lost."""
    disk = SimulatedDisk()
    folder = folder_on(disk, max_file_bytes=1 << 30, max_body_bytes=1 << 20, sync_every=1 << 30)
    queue = DiskQueue(QUEUE, folder)
    wanted = messages(0, 50, (100_000,))
    put(queue, wanted[:1])
    put(queue, wanted[1:])
    sizes: list[int] = []
    read = SimulatedFile.read

    def noting(file: SimulatedFile, nbytes: int, offset: int) -> bytes:
        sizes.append(nbytes)
        return read(file, nbytes, offset)

    monkeypatch.setattr(SimulatedFile, "read", noting)
    disk.fail(errno.EIO, only={"sync"}, name=records_name(0))
    folder.sync_all()
    assert disk.faults["sync"] == 1
    folder.retry()
    assert folder.fault is None
    assert sum(sizes) > 4 * 1024 * 1024
    assert max(sizes) <= 1024 * 1024
    after = disk.after_power_loss()
    queue = queue_on(after, max_file_bytes=1 << 30, max_body_bytes=1 << 20)
    assert drain(queue) == wanted
