"""Duplicates recognizes messages that are in the log."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.wal import Duplicates
from pipelines.wal.segments import IdScope
from tests.pipelines.wal.logs import block, open_log
from trionsq.testing.disk import SimulatedDisk

A, B = IdScope("t", "n:1"), IdScope("t", "n:2")


def ids_of(numbers: Sequence[int]) -> list[bytes]:
    return [b"%016x" % number for number in numbers]


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from([A, B]),
            st.lists(st.integers(0, 30), max_size=8),
            st.booleans(),
        ),
        max_size=30,
    )
)
@settings(max_examples=200, deadline=None)
def test_the_same_as_a_plain_set_of_all_retained_ids(
    parts: list[tuple[IdScope, list[int], bool]],
) -> None:
    """For any ids, scopes and trims it finds exactly the new ids, once."""
    duplicates = Duplicates()
    model: list[tuple[int, IdScope, int]] = []
    end = 0
    for stream, numbers, trim in parts:
        known = {number for _, of, number in model if of == stream}
        expected = [number for number in dict.fromkeys(numbers) if number not in known]
        fresh = duplicates.new_indices(stream, ids_of(numbers))
        found = numbers if fresh is None else [numbers[index] for index in fresh]
        assert found == expected
        if found:
            end += len(found)
            duplicates.add(stream, end, ids_of(found))
            model += [(end, stream, number) for number in found]
        if trim:
            duplicates.forget_before(end // 2)
            model = [entry for entry in model if entry[0] > end // 2]
        assert len(duplicates) == len(model)


def test_the_memory_is_bounded_for_each_stream() -> None:
    """Beyond the limit the oldest segment's ids are forgotten, of that scope only."""
    duplicates = Duplicates(max_ids=10)
    duplicates.add(B, 1, ids_of([0]))
    for first in range(0, 100, 4):
        duplicates.add(A, first + 4, ids_of(range(first, first + 4)))
        assert len(duplicates) <= 11
    assert duplicates.new_indices(A, ids_of([90, 95])) == [0]
    assert duplicates.new_indices(B, ids_of([0])) == []


def test_nothing_is_kept_of_streams_that_have_ended() -> None:
    """Nsqds come and go, each with a name of its own; what was trimmed costs no memory."""
    duplicates = Duplicates()
    for number in range(100):
        scope = IdScope("t", f"n:{number}")
        duplicates.add(scope, number + 1, ids_of([number]))
        duplicates.forget_before(number - 2)
        assert len(duplicates._scopes) <= 3
    assert duplicates.new_indices(IdScope("t", "n:99"), ids_of([99])) == []


def test_the_newest_segments_tell_what_is_known_after_a_restart() -> None:
    """After a restart the newest segments give the ids, with their ends, oldest first."""
    log = open_log(SimulatedDisk())
    for first in range(0, 12, 3):
        log.append([block(first, first + 1), block(first + 2, nsqd="n:2")])
    found = list(log.recent_ids(100))
    assert [end for end, _ in found] == [3, 6, 9, 12]
    assert found[0][1] == [(A, ids_of([0, 1])), (B, ids_of([2]))]
    assert [end for end, _ in log.recent_ids(2)] == [9, 12], "two of each stream"
