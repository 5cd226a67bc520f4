"""The log engine's state on the simulated disk, without SQLite's files: what a crash does to it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from trionsq.storage.log.rows import PutMeta, StateError
from trionsq.storage.log.state import STATE_FILE, WAL_FILE
from trionsq.testing.disk import Crashed, SimulatedDisk
from trionsq.testing.logstate import MemoryState

SEEDS = range(30)

each_stop = pytest.mark.parametrize(
    "after", [SimulatedDisk.after_kill, SimulatedDisk.after_power_loss]
)


def put(state: MemoryState, value: bytes) -> None:
    state.apply([PutMeta("key", value)])


def value_of(disk: SimulatedDisk) -> bytes | None:
    return MemoryState(disk).load().meta.get("key")


def test_each_commit_is_one_operation() -> None:
    """A sweep over the operations of the disk meets each commit once, and nothing else of it."""
    disk = SimulatedDisk(logged=True)
    state = MemoryState(disk)
    disk.log.clear()
    put(state, b"1")
    state.apply([])
    put(state, b"2")
    assert disk.log == [("sync", WAL_FILE)] * 2


@each_stop
def test_a_commit_that_crashes_is_done_or_not(
    after: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """By dice; what was committed before it is there, and nothing works after it."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        state = MemoryState(disk)
        put(state, b"old")
        disk.crash_at(1)
        with pytest.raises(Crashed):
            put(state, b"new")
        with pytest.raises(Crashed):
            state.load()
        found.add(value_of(after(disk)))
    assert found == {b"old", b"new"}


@each_stop
def test_a_commit_that_failed_comes_back_by_dice_until_the_next(
    after: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """As with a WAL whose sync failed: it is not there, but a crash may bring it back."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        state = MemoryState(disk)
        put(state, b"old")
        disk.fail(errno.EIO, only={"sync"}, name=f"{STATE_FILE}*")
        with pytest.raises(StateError, match=f"{STATE_FILE}: Input/output error"):
            put(state, b"new")
        assert state.load().meta == {"key": b"old"}
        found.add(value_of(after(disk)))
        state.apply([PutMeta("other", b"")])
        assert value_of(after(disk)) == b"old"
    assert found == {b"old", b"new"}


def test_the_disk_shows_the_committed_content() -> None:
    """The file of the simulated disk is the database of this moment, also after it was closed."""
    disk = SimulatedDisk()
    state = MemoryState(disk)
    for value in (b"1", b"2"):
        put(state, value)
        copy = SimulatedDisk()
        copy.write_file(STATE_FILE, disk.files()[STATE_FILE])
        assert value_of(copy) == value
    state.close()
    assert value_of(disk) == b"2"
    assert disk.open_files == 0
