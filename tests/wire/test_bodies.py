"""Message bodies, strided and listed, are the same sequence (trionsq.wire.bodies)."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies, StridedBodies

strided = st.integers(1, 9).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)
varied = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=12)


def agrees(bodies: Bodies, plain: list[bytes]) -> None:
    """``bodies`` is ``plain`` in every way one may ask."""
    sizes = {len(body) for body in plain}
    assert bodies.count == len(plain)
    assert bodies.nbytes == sum(map(len, plain))
    assert bodies.size == 0 or {bodies.size} == sizes
    assert [bodies.body_at(index) for index in range(len(plain))] == plain
    assert bodies.joined() == b"".join(plain)
    for first in range(len(plain) + 1):
        for last in range(first, len(plain) + 1):
            assert list(bodies.slice(first, last)) == plain[first:last]


@given(strided, st.integers(0, 20), st.data())
def test_strided_bodies_are_a_list(plain: list[bytes], gap: int, data: st.DataObject) -> None:
    """What stands between the bodies is of no interest; a part is a sequence of its own."""
    bodies = StridedBodies(b"".join(b"-" * gap + body for body in plain), gap, len(plain[0]))
    agrees(bodies, plain)
    assert bodies.size == len(plain[0])
    first = data.draw(st.integers(0, len(plain) - 1))
    last = data.draw(st.integers(first + 1, len(plain)))
    agrees(bodies.copy_range(first, last), plain[first:last])


@given(st.one_of(strided, varied), st.integers(0, 20), st.binary(max_size=9), st.data())
def test_packed_bodies_are_a_list(
    plain: list[bytes], gap: int, before: bytes, data: st.DataObject
) -> None:
    """Whatever their sizes, and whatever stands before and between them."""
    ends = list(accumulate((gap + len(body) for body in plain), initial=len(before)))
    bodies = PackedBodies(before + b"".join(b"-" * gap + body for body in plain), ends, gap)
    agrees(bodies, plain)
    first = data.draw(st.integers(0, len(plain) - 1))
    last = data.draw(st.integers(first + 1, len(plain)))
    agrees(bodies.copy_range(first, last), plain[first:last])


@given(st.one_of(strided, varied), st.data())
def test_list_bodies_are_a_list(plain: list[bytes], data: st.DataObject) -> None:
    """A sequence of objects of their own."""
    bodies = ListBodies(list(plain))
    agrees(bodies, plain)
    first = data.draw(st.integers(0, len(plain) - 1))
    last = data.draw(st.integers(first + 1, len(plain)))
    agrees(bodies.copy_range(first, last), plain[first:last])


def test_a_part_pins_nothing_of_the_whole() -> None:
    """The memory of a part is its own size."""
    bodies = StridedBodies(b"x" * 100_000, 4, 96)
    assert len(bodies.copy_range(3, 5)._buffer) == 200
