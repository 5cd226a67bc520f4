"""Fields of records of equal size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire.bodies import slice_fields


@given(
    before=st.integers(0, 20),
    size=st.integers(1, 20),
    after=st.integers(0, 20),
    count=st.integers(1, 150),
    data=st.data(),
)
def test_cut_is_what_plain_slices_are(
    before: int, size: int, after: int, count: int, data: st.DataObject
) -> None:
    """Whatever the place of the field and the number of records, it is the slice of each."""
    stride = before + size + after
    buffer = bytes(index % 251 for index in range(stride * count))
    first = data.draw(st.integers(0, count))
    last = data.draw(st.integers(first, count))
    starts = range(first * stride + before, last * stride + before, stride)
    expected = [buffer[start : start + size] for start in starts]
    assert slice_fields(buffer, before, size, after, first, last) == expected
