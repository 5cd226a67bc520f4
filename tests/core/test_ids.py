"""Message ids (trionsq.core.ids; tcp-protocol, section 5)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trionsq.core.batch import ListColumn
from trionsq.core.ids import SEQUENCES, IdSource

NOW_NS = 1_700_000_000_000_000_000
TICK_NS = 1 << 20


def id_of(tick: int, node: int, sequence: int) -> bytes:
    """The 64 bits as the protocol has them."""
    return b"%016x" % ((((tick - 1288834974288) << 22) | (node << 12) | sequence) & (2**64 - 1))


@given(st.integers(1_400_000_000, 4_000_000_000), st.integers(0, 1023), st.integers(1, 9000))
@settings(deadline=None, max_examples=40)
def test_layout(second: int, node: int, count: int) -> None:
    """Tick, node and sequence; a burst goes on in the next ticks, ahead of the clock."""
    now_ns = second * 10**9
    tick = now_ns >> 20
    ids = IdSource(node).next_ids(count, now_ns).slice(0, count)
    assert ids == [
        id_of(tick + index // SEQUENCES, node, index % SEQUENCES) for index in range(count)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(-3 * TICK_NS, 3 * TICK_NS)), max_size=30),
)
@settings(deadline=None)
def test_ids_rise_strictly_also_when_the_clock_steps_back(steps: list[tuple[int, int]]) -> None:
    """Whatever the clock does between takes, each id is above all before it."""
    source = IdSource(7)
    now_ns = NOW_NS
    ids: list[bytes] = []
    for count, step_ns in steps:
        now_ns += step_ns
        ids += source.next_ids(count, now_ns).slice(0, count)
    assert all(len(id_) == 16 for id_ in ids)
    assert all(before < after for before, after in pairwise(ids))


def test_the_sequence_begins_anew_at_each_tick() -> None:
    """And goes on within one."""
    source = IdSource(1)
    tick = NOW_NS >> 20
    assert source.next_ids(2, NOW_NS).slice(0, 2) == [id_of(tick, 1, 0), id_of(tick, 1, 1)]
    assert source.next_ids(1, NOW_NS).slice(0, 1) == [id_of(tick, 1, 2)]
    assert source.next_ids(1, NOW_NS + TICK_NS).slice(0, 1) == [id_of(tick + 1, 1, 0)]
    assert source.next_ids(1, NOW_NS).slice(0, 1) == [id_of(tick + 1, 1, 1)]


@pytest.mark.parametrize("now_ns", [0, 10**9, 1_351_000_000_000_000_000])
def test_a_clock_of_long_ago_still_makes_ids(now_ns: int) -> None:
    """A machine that starts in 1970 has ids of the layout too, with a negative tick."""
    assert IdSource(3).next_ids(1, now_ns).slice(0, 1) == [id_of(now_ns >> 20, 3, 0)]


@given(st.integers(0, SEQUENCES), st.integers(1, 10_000), st.data())
@settings(deadline=None)
def test_a_cut_of_a_range_is_a_cut_of_the_list(used: int, count: int, data: st.DataObject) -> None:
    """Also where a batch spans ticks."""
    source = IdSource(5)
    source.next_ids(used, NOW_NS)
    ids = source.next_ids(count, NOW_NS)
    first = data.draw(st.integers(0, count))
    last = data.draw(st.integers(first, count))
    assert ids.slice(first, last) == ids.slice(0, count)[first:last]
    assert len(ids.slice(0, count)) == count


def test_listed_ids() -> None:
    """Ids of any origin are cut like a list."""
    assert ListColumn([b"a", b"b", b"c"]).slice(1, 3) == [b"b", b"c"]
