"""The memory queue (trionsq.core.queue)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.helpers import contents, segment
from trionsq.core.queue import MessageQueue, count_fitting

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1)),
        st.tuples(st.just("take"), st.integers(1, 12), st.integers(1, 100)),
        st.tuples(st.just("put back"), st.none(), st.none()),
        st.tuples(st.just("clear"), st.none(), st.none()),
    ),
    max_size=40,
)


@given(steps)
@settings(deadline=None)
def test_the_queue_is_a_fifo_of_messages(plan: list[tuple[str, int, object]]) -> None:
    """In order, with ids, bodies and attempts; takes keep both limits but give at least one."""
    queue = MessageQueue()
    model: list[tuple[bytes, bytes, int]] = []
    next_id = 0
    for name, number, extra in plan:
        if name == "append":
            assert isinstance(extra, list)
            one = segment(next_id, number, extra, attempts=number)
            next_id += number
            model += contents(one)
            queue.append(one)
        elif name == "take" and model:
            assert isinstance(extra, int)
            taken = queue.pop_segment(number, extra)
            got = contents(taken)
            assert 0 < len(got) <= number
            assert len(got) == 1 or sum(len(body) for _, body, _ in got) <= extra
            assert got == model[: len(got)]
            del model[: len(got)]
        elif name == "put back" and model:
            taken = queue.pop_segment(3, 1000)
            queue.put_back(taken)
        elif name == "clear":
            while queue.drop(2, 10**6):
                pass
            model.clear()
        assert queue.depth == len(model)
        assert bool(queue) == bool(model)


@pytest.mark.parametrize("sizes", [(100,), (100, 99), (1, 100)])
def test_a_take_is_as_large_as_its_limits_allow(sizes: tuple[int, ...]) -> None:
    """A segment is split only where a limit is met."""
    queue = MessageQueue()
    queue.append(segment(0, 100, sizes))
    taken = queue.pop_segment(50, 1000)
    body_sizes = [sizes[index % len(sizes)] for index in range(100)]
    assert sum(body_sizes[: taken.count]) <= 1000
    assert taken.count == 50 or sum(body_sizes[: taken.count + 1]) > 1000
    assert queue.pop_segment(1000, 10**9).count == 100 - taken.count


def test_one_message_over_the_limit_is_taken_alone() -> None:
    """No message is too large to be taken."""
    queue = MessageQueue()
    queue.append(segment(0, 3, (500,)))
    assert [queue.pop_segment(9, 10).count for _ in range(3)] == [1, 1, 1]


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8) | st.lists(st.just(3), min_size=1),
    max_bytes=st.integers(1, 40),
    data=st.data(),
)
def test_as_many_bodies_fit_as_the_limit_allows(
    sizes: list[int], max_bytes: int, data: st.DataObject
) -> None:
    """Counted from any place; one is always taken, and all of a short batch."""
    one = segment(0, len(sizes), sizes)
    first = data.draw(st.integers(0, len(sizes) - 1))
    count = data.draw(st.integers(1, len(sizes) - first))
    fit = count_fitting(one.batch.bodies, first, count, max_bytes)
    wanted = sizes[first : first + count]
    assert 1 <= fit <= count
    assert fit == 1 or sum(wanted[:fit]) <= max_bytes
    assert fit == count or sum(wanted[: fit + 1]) > max_bytes


def test_taking_from_an_empty_queue() -> None:
    """Is the caller's mistake."""
    with pytest.raises(IndexError):
        MessageQueue().pop_segment(1, 1)
