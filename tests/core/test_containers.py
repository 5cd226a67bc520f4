"""A roster is walked in turns while its members come and go (trionsq.core.containers)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trionsq.core.containers import Roster

acts = st.lists(st.tuples(st.sampled_from(["add", "discard", "walk", "walk", "new"]),
                          st.integers(0, 12)), max_size=60)  # fmt: skip


@given(acts)
def test_a_walk_meets_those_that_were_there_and_still_are(acts: list[tuple[str, int]]) -> None:
    """In the order in which they came; nobody who came later, nobody who has left."""
    roster: Roster[int] = Roster()
    model: dict[int, None] = {}
    walks: list[tuple[list[int], list[int]]] = []
    iterators = []
    for what, number in acts:
        if what == "add" and number not in model:
            roster.add(number)
            model[number] = None
            for expected, _ in walks:
                # Whoever came back came later.
                expected[:] = [one for one in expected if one != number]
        elif what == "discard":
            roster.discard(number)
            model.pop(number, None)
            for expected, _ in walks:
                expected[:] = [one for one in expected if one != number]
        elif what == "new":
            iterator = roster.walk()
            first = next(iterator, None)
            expected = list(model)
            walks.append((expected, []))
            iterators.append(iterator)
            assert first == (expected.pop(0) if expected else None)
        elif what == "walk" and walks:
            expected, _ = walks[number % len(walks)]
            met = next(iterators[number % len(walks)], None)
            assert met == (expected.pop(0) if expected else None)
        assert list(roster) == list(model)
        assert len(roster) == len(model)
        assert (number in roster) == (number in model)


def test_a_walk_outlives_all_whom_it_has_not_met() -> None:
    """It ends, also if everybody left while it stood still, and others came."""
    roster: Roster[int] = Roster()
    for number in range(5):
        roster.add(number)
    walk = roster.walk()
    assert next(walk) == 0
    for number in range(5):
        roster.discard(number)
    roster.add(9)
    assert (list(walk), list(roster)) == ([], [9])
