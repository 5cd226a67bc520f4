"""The log engine's state when the process or the machine stops, or the disk fails, at any moment.

SQLite's own files are on the simulated disk. `MemoryState` has to keep the same promises.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from tests.soak import by_level, more_in_soak, swept
from tests.storage.log.sqlite_disk import open_state
from tests.storage.log.state_model import KINDS, Candidates, StateModel, history
from trionsq.storage.log.rows import PutMeta, State, StateContent, StateError
from trionsq.storage.log.state import STATE_FILE
from trionsq.testing.disk import OPERATIONS, Crashed, SimulatedDisk

Open = Callable[[SimulatedDisk], State]

# SQLite ignores that the size of a file cannot be read where it does not matter; apsw does not.
FAILING = OPERATIONS - {"size"}
SEEDS = range(by_level(test=1, short=2, full=24))

each_kind = pytest.mark.parametrize("open_it", KINDS.values(), ids=KINDS)
each_stop = pytest.mark.parametrize(
    "after", [SimulatedDisk.after_kill, SimulatedDisk.after_power_loss]
)


class _Run:
    """A history on a disk: transactions, checkpoints, and once a restart."""

    def __init__(self, disk: SimulatedDisk, open_it: Open, seed: int) -> None:
        self.disk = disk
        self.seed = seed
        self.open_it = open_it
        self.state: State | None = None
        self.candidates: Candidates | None = None

    def run(self) -> Candidates:
        """Run it to its end, whatever fails."""
        candidates = self._open(None)
        for place, changes in enumerate(history(Random(self.seed), 9)):
            if not candidates.apply(changes):
                assert self._load() == candidates.model.content()
            if place in (2, 3, 7):
                try:
                    candidates.state.checkpoint()
                except StateError:
                    assert self.disk.faults
            if place == 5 and not candidates.failed:
                candidates.state.close()
                candidates = self._open(candidates.model)
        return candidates

    def run_to_crash(self) -> None:
        with suppress(StateError):
            self.run().state.close()
        self.disk.names()  # if SQLite hid the crash behind an error, or while it closed

    def _open(self, model: StateModel | None) -> Candidates:
        try:
            self.state = self.open_it(self.disk)
        except StateError:
            assert self.disk.faults
            self.state = self.open_it(self.disk)
        self.candidates = Candidates(self.state, model)
        assert self._load() == self.candidates.model.content()
        return self.candidates

    def _load(self) -> StateContent:
        assert self.state
        try:
            return self.state.load()
        except StateError:
            if not self.disk.faults:
                raise
            return self.state.load()

    def go_on(self, disk: SimulatedDisk) -> None:
        """After a crash: what is left is right, and what is committed now stays."""
        before = self.candidates or Candidates(None)  # type: ignore[arg-type]  # never opened
        state = self.open_it(disk)
        candidates = before.reopened(state)
        assert candidates.apply([PutMeta("crash", b"1")])
        after = disk.after_power_loss()
        disk.crash_at(1)
        state = self.open_it(after)
        assert state.load() == candidates.model.content()
        state.close()
        assert after.open_files == 0


def _operations(open_it: Open, seed: int) -> int:
    disk = SimulatedDisk(random=Random(seed))
    run = _Run(disk, open_it, seed)
    candidates = run.run()
    assert not candidates.failed
    candidates.state.close()
    return disk.operations


@more_in_soak
@each_kind
@each_stop
def test_a_crash_at_any_operation_keeps_what_was_committed(
    open_it: Open, after: Callable[[SimulatedDisk], SimulatedDisk]
) -> None:
    """After SIGKILL or a power failure the state is that of the last commit that returned, or of
    the one under way; and so it is again after the next crash."""
    for seed in SEEDS:
        for at in swept(_operations(open_it, seed), one_in=2):
            disk = SimulatedDisk(random=Random(f"{seed} {at}"))
            run = _Run(disk, open_it, seed)
            disk.crash_at(at)
            with pytest.raises(Crashed):
                run.run_to_crash()
            run.go_on(after(disk))


@more_in_soak
@each_kind
@each_stop
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_an_error_at_any_operation_loses_no_commit(
    open_it: Open, after: Callable[[SimulatedDisk], SimulatedDisk], error: int
) -> None:
    """A commit that fails changes nothing, the same changes work later, and a crash at once after
    the error, or at the end, leaves what was committed."""
    for seed in SEEDS:
        for at in swept(_operations(open_it, seed), one_in=5):
            disk = SimulatedDisk(random=Random(f"{seed} {at} {error}"))
            disk.fail(error, at, only=FAILING)
            run = _Run(disk, open_it, seed)
            candidates = run.run()
            disk.heal()
            assert candidates.apply([PutMeta("end", b"")])
            assert candidates.state.load() == candidates.model.content()
            run.go_on(after(disk))


@more_in_soak
@each_kind
@each_stop
def test_a_crash_after_a_failed_commit_leaves_it_or_not(
    open_it: Open, after: Callable[[SimulatedDisk], SimulatedDisk]
) -> None:
    """If commits fail until the machine stops, the state is with or without each failed one."""
    for seed in SEEDS:
        for at in swept(_operations(open_it, seed), one_in=5):
            disk = SimulatedDisk(random=Random(f"{seed} {at}"))
            run = _Run(disk, open_it, seed)
            disk.fail(errno.EIO, at, forever=True, only={"write", "sync", "truncate"})
            with suppress(StateError):  # it could not be opened
                run.run()
            if not disk.faults:
                break  # there are fewer of these operations than of all
            run.go_on(after(disk))


@each_stop
def test_the_file_of_a_new_state_is_durable(
    after: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """The first commit survives: the names of the database and of its WAL are durable before."""
    for seed in range(40):
        disk = SimulatedDisk(random=Random(seed))
        state = open_state(disk)
        state.apply([PutMeta("key", b"value")])
        disk = after(disk)
        assert open_state(disk).load().meta == {"key": b"value"}


@each_kind
def test_a_start_writes_again_what_a_failed_sync_left_in_memory(open_it: Open) -> None:
    """A commit behind one whose sync failed in an earlier process is durable all the same."""
    for seed in range(60):
        disk = SimulatedDisk(random=Random(seed))
        state = open_it(disk)
        state.apply([PutMeta("first", b"1")])
        disk.fail(errno.EIO, forever=True, only={"sync"})
        with pytest.raises(StateError, match=STATE_FILE):
            state.apply([PutMeta("failed", b"2")])
        disk = disk.after_kill()
        state = open_it(disk)
        found = state.load().meta
        assert found in ({"first": b"1"}, {"first": b"1", "failed": b"2"})
        state.apply([PutMeta("last", b"3")])
        after = open_it(disk.after_power_loss())
        assert after.load().meta == {**found, "last": b"3"}


@each_kind
@pytest.mark.parametrize("at", [1, 2])
def test_a_folder_that_could_not_be_synced_costs_no_commit(open_it: Open, at: int) -> None:
    """After a start that failed for the folder, the next one makes names that last."""
    for seed in range(40):
        disk = SimulatedDisk(random=Random(seed))
        disk.fail(errno.EIO, at, only={"sync_folder"})
        with suppress(StateError):
            open_it(disk)
        disk.heal()
        open_it(disk).apply([PutMeta("key", b"value")])
        assert open_it(disk.after_power_loss()).load().meta == {"key": b"value"}
