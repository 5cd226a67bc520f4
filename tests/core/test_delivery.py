"""Deliveries and their frames (trionsq.core.subscription)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.helpers import WALL_NS, batch, body_of, contents, message_ids, segment
from trionsq.core.batch import Segment, join_segments
from trionsq.core.subscription import Delivery
from trionsq.wire.frames import message_frame

sizes = st.one_of(
    st.integers(1, 40).map(lambda size: [size]),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.lists(st.sampled_from([1, 4094, 4095, 4096, 4097, 70_000]), min_size=1, max_size=3),
)


@pytest.mark.parametrize("body_sizes", [[1, 4095], [1, 4096], [4096], [4097, 2]])
def test_frames_around_the_size_of_the_table(body_sizes: list[int]) -> None:
    """Size fields from the table and packed ones are the same."""
    whole = batch(0, 4, body_sizes)
    assert Delivery(Segment(whole, 0, 4), 1.0, 2.0).frames() == b"".join(
        message_frame(whole.timestamp_ns, 1, id_, body)
        for id_, body, _ in contents(Segment(whole, 0, 4))
    )


@given(sizes, st.integers(1, 30), st.integers(0, 140_000), st.data())
@settings(deadline=None)
def test_frames_are_those_made_one_by_one(
    body_sizes: list[int], count: int, attempts: int, data: st.DataObject
) -> None:
    """Whatever the sizes, the slice of the batch, and however often it was delivered before."""
    whole = batch(0, count, body_sizes)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    delivery = Delivery(Segment(whole, first, last, attempts), 1.0, 2.0)
    ids = message_ids(0, count)
    assert delivery.frames() == b"".join(
        message_frame(
            whole.timestamp_ns,
            (attempts + 1) % 65536,
            ids[index],
            body_of(ids[index], body_sizes[index % len(body_sizes)]),
        )
        for index in range(first, last)
    )


@given(sizes, st.integers(1, 20), st.data())
@settings(deadline=None)
def test_extract_takes_copies_in_the_order_asked_for(
    body_sizes: list[int], count: int, data: st.DataObject
) -> None:
    """Ids, bodies, timestamp and attempts stay together."""
    whole = batch(0, count, body_sizes, defer_ms=5)
    first = data.draw(st.integers(0, count - 1))
    delivery = Delivery(Segment(whole, first, count, 3), 1.0, 2.0)
    wanted = data.draw(st.lists(st.sampled_from(delivery.ids), min_size=1, unique=True))
    taken = delivery.extract(wanted)
    by_id = {id_: body for id_, body, _ in contents(Segment(whole, 0, count))}
    assert contents(taken) == [(id_, by_id[id_], 4) for id_ in wanted]
    assert taken.batch.timestamp_ns == whole.timestamp_ns
    assert taken.batch.defer_ms == 0


@pytest.mark.parametrize("body_sizes", [[20], [20, 30]])
def test_what_is_kept_lets_go_of_the_batch(body_sizes: list[int]) -> None:
    """After `keep_only` the frames are those of the messages kept, and the batch is free."""
    whole = batch(0, 50, body_sizes)
    delivery = Delivery(Segment(whole, 10, 40, 0), 1.0, 2.0)
    kept = [delivery.ids[3], delivery.ids[20]]
    expected = b"".join(
        message_frame(whole.timestamp_ns, 1, id_, body_of(id_, body_sizes[at % len(body_sizes)]))
        for id_, at in zip(kept, [13, 30], strict=True)
    )
    delivery.keep_only(kept)
    assert delivery.frames() == expected
    assert delivery.batch is not whole
    assert delivery.batch.count == 2


def test_each_message_keeps_its_own_time_of_publishing() -> None:
    """A batch of messages with different times, as a disk queue has them, stays so in parts."""
    times_ns = [WALL_NS + number for number in (70, 10, 50, 30)]
    parts = [segment(number, 1) for number in range(4)]
    for part, time_ns in zip(parts, times_ns, strict=True):
        part.batch.timestamp_ns = time_ns
    whole = join_segments(parts)
    delivery = Delivery(Segment(whole, 1, 4, 0), 1.0, 2.0)
    taken = delivery.extract([delivery.ids[2], delivery.ids[1]])
    assert [int.from_bytes(taken.batch.stamp(at)) for at in (0, 1)] == [times_ns[3], times_ns[2]]
    assert (taken.first_ns, taken.batch.timestamp_ns) == (times_ns[3], times_ns[3])
    delivery.keep_only([delivery.ids[0], delivery.ids[2]])
    assert delivery.frames() == b"".join(
        message_frame(times_ns[at], 1, whole.ids.slice(at, at + 1)[0], body_of(b"%016x" % at))
        for at in (1, 3)
    )
