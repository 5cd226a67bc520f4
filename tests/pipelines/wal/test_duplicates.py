"""Duplicates recognizes messages that are in the log."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.wal import Duplicates
from pipelines.wal.duplicates import ids_in_memory
from pipelines.wal.segments import IdScope
from tests.pipelines.wal.logs import block, open_log
from trionsq.testing.disk import SimulatedDisk, SimulatedFile

A, B = IdScope("t", "n:1"), IdScope("t", "n:2")


def ids_of(numbers: Sequence[int]) -> list[bytes]:
    return [b"%016x" % number for number in numbers]


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from([A, B]),
            st.lists(st.integers(0, 30), max_size=8),
            st.integers(0, 3),
        ),
        max_size=30,
    ),
    max_ids=st.sampled_from([None, 3, 10]),
    max_total=st.sampled_from([5, 20, 1000]),
)
@settings(max_examples=200, deadline=None)
def test_the_same_as_a_plain_list_of_all_segments(
    parts: list[tuple[IdScope, list[int], int]], max_ids: int | None, max_total: int
) -> None:
    """For any ids, scopes, times and limits it finds exactly the new ids, once."""
    now_s = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.wal.duplicates.MAX_IDS", 4)
        duplicates = Duplicates(max_ids, keep_s=2, max_total=max_total, clock=lambda: now_s)
    model: list[tuple[int, IdScope, list[int]]] = []
    for scope, numbers, seconds in parts:
        now_s += seconds
        known = {number for _, of, ids in model if of == scope for number in ids}
        expected = [number for number in dict.fromkeys(numbers) if number not in known]
        fresh = duplicates.new_indices(scope, ids_of(numbers))
        found = numbers if fresh is None else [numbers[index] for index in fresh]
        assert found == expected
        if found:
            duplicates.add(scope, ids_of(found))
            model.append((now_s, scope, found))
            model = forgotten(model, scope, max_ids, now_s - 2)
            while count(model) > max_total and len(model) > 1:
                model.pop(0)
        assert len(duplicates) == count(model)


def count(model: list[tuple[int, IdScope, list[int]]]) -> int:
    return sum(len(ids) for _, _, ids in model)


def forgotten(
    model: list[tuple[int, IdScope, list[int]]], scope: IdScope, max_ids: int | None, before_s: int
) -> list[tuple[int, IdScope, list[int]]]:
    """The model without the scope's oldest segments that are too many."""
    while True:
        ours = [entry for entry in model if entry[1] == scope]
        is_young = max_ids is None and ours[0][0] > before_s
        if count(ours) <= (max_ids or 4) or len(ours) == 1 or is_young:
            return model
        model.remove(ours[0])


def test_the_memory_is_bounded_for_each_stream() -> None:
    """Beyond the limit the oldest segment's ids are forgotten, of that scope only."""
    duplicates = Duplicates(max_ids=10)
    duplicates.add(B, ids_of([0]))
    for first in range(0, 100, 4):
        duplicates.add(A, ids_of(range(first, first + 4)))
        assert len(duplicates) <= 11
    assert duplicates.new_indices(A, ids_of([90, 95])) == [0]
    assert duplicates.new_indices(B, ids_of([0])) == []


def test_nsqds_that_come_and_go_do_not_fill_the_memory() -> None:
    """Nsqds with new names each time share one limit; the oldest ids go first, and leave nothing,
    also while one old nsqd stays."""
    duplicates = Duplicates(max_ids=2, max_total=50)
    duplicates.add(A, ids_of([0]))
    for number in range(1000):
        duplicates.add(B, ids_of([number]))
        assert len(duplicates._segments) < 10
    for number in range(1000):
        duplicates.add(IdScope("t", f"m:{number}"), ids_of([number]))
        assert len(duplicates) <= 50
        assert len(duplicates._scopes) <= 50
        assert len(duplicates._segments) <= 100
    assert duplicates.new_indices(IdScope("t", "m:999"), ids_of([999])) == []
    assert duplicates.new_indices(A, ids_of([0])) is None


def test_the_memory_of_this_machine_sets_a_limit(tmp_path: Path) -> None:
    """An eighth of the machine's memory, or of the container's, for all ids."""
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        limit = tmp_path / "memory.max"
        context.setattr("pipelines.wal.duplicates._CGROUP", limit)
        whole = ids_in_memory()
        assert whole > 100_000
        limit.write_text("max\n")
        assert ids_in_memory() == whole
        limit.write_text(f"{96 << 20}\n")
        assert ids_in_memory() == (96 << 20) // 8 // 120


def test_the_newest_segments_tell_what_is_known_after_a_restart() -> None:
    """After a restart the newest segments give the ids, oldest first."""
    log = open_log(SimulatedDisk())
    for first in range(0, 12, 3):
        log.append([block(first, first + 1), block(first + 2, nsqd="n:2")])
    found = list(log.recent_ids(100))
    assert len(found) == 4
    assert found[0] == [(A, ids_of([0, 1])), (B, ids_of([2]))]
    assert list(log.recent_ids(2)) == found[2:], "two of each stream"


class TrimmedWhileRead(SimulatedDisk):
    """Calls ``then``, once, before a segment is opened."""

    then: Callable[[], None] | None = None

    def open(self, name: str) -> SimulatedFile:
        if self.then is not None and name.endswith(".arrow"):
            then, self.then = self.then, None
            then()
        return super().open(name)


def test_segments_that_are_trimmed_while_they_are_read_are_left_out() -> None:
    """A commit at the start of a query must not end its receiver, which reads the ids then."""
    disk = TrimmedWhileRead()
    log = open_log(disk)
    for number in range(4):
        log.append([block(number)])
    disk.then = partial(log.commit, 3)
    assert list(log.recent_ids(100)) == [[(A, ids_of([3]))]]
    assert log.first == 3
