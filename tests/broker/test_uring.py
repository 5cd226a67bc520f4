"""Writes by the kernel (trionsq.broker.uring), with real files."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from trionsq.broker import uring
from trionsq.broker.uring import Ring, open_ring

LIMIT_MS = 60_000


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = open_ring()
    if made is None:
        pytest.skip("the system has no io_uring, or does not let us use it")
    yield made
    made.close()


def end_all(ring: Ring) -> None:
    """Hear of all writes that are under way."""
    poll = select.poll()
    poll.register(ring.fileno(), select.POLLIN)
    while len(ring):
        assert poll.poll(LIMIT_MS), f"{ring!r} has not ended"
        ring.end_writes()


def test_what_was_written_is_in_the_file(ring: Ring, tmp_path: Path) -> None:
    """Each write has its place, and each ``done`` is called once, more often than the ring has
    entries."""
    errors: list[OSError | None] = []
    with open(tmp_path / "file", "wb") as file:
        for at in range(50):
            piece = b"%04d" % at
            assert ring.submit_write(file.fileno(), piece, 4 * at, 0, errors.append)
            end_all(ring)
    assert errors == [None] * 50
    assert (tmp_path / "file").read_bytes() == b"".join(b"%04d" % at for at in range(50))


def test_zeros_stand_behind_what_makes_room(ring: Ring, tmp_path: Path) -> None:
    """As many as are asked for, of whatever number; too many for the ring are left to a thread."""
    errors: list[OSError | None] = []
    with open(tmp_path / "file", "wb+") as file:
        file.write(b"x" * 2_000_000)
        file.flush()
        for at, room in (10, 1), (20, 5_000), (30, (1 << 20) + 4_095):
            assert ring.submit_write(file.fileno(), b"data", at, room, errors.append)
            end_all(ring)
        assert not ring.submit_write(file.fileno(), b"data", 0, 1 << 22, errors.append)
    assert errors == [None] * 3
    content = (tmp_path / "file").read_bytes()
    assert content[:34] == b"x" * 10 + b"data" + b"\0" + b"xxxxx" + b"data" + bytes(6) + b"data"
    end = 34 + (1 << 20) + 4_095
    assert not any(content[34:end])
    assert content[end:] == b"x" * (2_000_000 - end)


def test_several_writes_at_once_and_no_more_than_there_is_room_for(
    ring: Ring, tmp_path: Path
) -> None:
    """A full ring takes no further write; the caller finds another way."""
    errors: list[OSError | None] = []
    with open(tmp_path / "file", "wb") as file:
        taken = [
            ring.submit_write(file.fileno(), b"x" * 10, at, 0, errors.append)
            for at in range(0, 90, 10)
        ]
        assert taken == [True] * 8 + [False]
        end_all(ring)
        assert ring.submit_write(file.fileno(), b"x" * 10, 80, 0, errors.append)
        end_all(ring)
    assert errors == [None] * 9
    assert (tmp_path / "file").read_bytes() == b"x" * 90


def test_an_error_is_that_of_the_system(ring: Ring, tmp_path: Path) -> None:
    """A write that the system refuses ends with its error."""
    errors: list[OSError | None] = []
    (tmp_path / "file").write_bytes(b"")
    with open(tmp_path / "file", "rb") as file:
        assert ring.submit_write(file.fileno(), b"no", 0, 0, errors.append)
        end_all(ring)
    with open("/dev/full", "wb", buffering=0) as full:
        assert ring.submit_write(full.fileno(), b"no", 0, 0, errors.append)
        end_all(ring)
    assert [error and error.errno for error in errors] == [errno.EBADF, errno.ENOSPC]


def test_a_write_that_ends_in_the_middle_is_an_error(ring: Ring) -> None:
    """A pipe without room takes a part: what is durable is not known, so it counts as failed."""
    errors: list[OSError | None] = []
    reading, writing = os.pipe2(os.O_NONBLOCK)
    try:
        assert ring.submit_write(writing, bytes(1 << 20), 0, 0, errors.append)
        end_all(ring)
    finally:
        os.close(reading)
        os.close(writing)
    assert [error and error.errno for error in errors] == [errno.ENOSPC]


def test_a_callback_that_raises_holds_up_nobody(ring: Ring, tmp_path: Path) -> None:
    """The next call goes on behind it."""
    told: list[OSError | None] = []

    def broken(error: OSError | None) -> None:
        raise ValueError("broken")

    with open(tmp_path / "file", "wb") as file:
        ring.submit_write(file.fileno(), b"a", 0, 0, broken)
        with pytest.raises(ValueError, match="broken"):
            end_all(ring)
        ring.submit_write(file.fileno(), b"b", 1, 0, told.append)
        end_all(ring)
    assert told == [None]
    assert (tmp_path / "file").read_bytes() == b"ab"


def test_what_is_under_way_at_the_end_is_written(tmp_path: Path) -> None:
    """The bytes stay in memory until the kernel has written them, though nobody hears of it."""
    ring = open_ring()
    if ring is None:
        pytest.skip("the system has no io_uring, or does not let us use it")
    with open(tmp_path / "file", "wb") as file:
        assert ring.submit_write(file.fileno(), b"x" * 100_000, 0, 0, lambda error: None)
        under_way = ring._under_way
        ring.close()
    assert any(kept[2] is under_way for kept in uring._abandoned)


def test_a_system_without_it_has_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's rules may forbid the call: threads write then."""

    def refused(number: int, *rest: object) -> int:
        return -1

    monkeypatch.setattr(uring, "_syscall", refused)
    assert open_ring() is None
    monkeypatch.undo()
    monkeypatch.setattr("sys.platform", "darwin")
    assert open_ring() is None
