"""Records of disk queue files (trionsq.storage.records), compared with plain ones."""

from __future__ import annotations

from random import Random
from struct import pack

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.storage.record_samples import (
    BODY_MAX,
    NS,
    Message,
    batch_of,
    check_parse,
    check_records,
    encoded_in_runs,
    make,
    message_lists,
    plain_record,
)
from trionsq.core.batch import Segment
from trionsq.storage.records import (
    encode,
    parse,
)
from trionsq.wire.bodies import PackedBodies, StridedBodies


@given(message_lists, st.booleans(), st.integers(0, 200_000), st.data())
@settings(deadline=None)
def test_encoding_agrees_with_records_made_one_by_one(
    messages: list[Message], stamped: bool, attempts: int, data: st.DataObject
) -> None:
    """For any part of any batch; the attempts are the segment's, modulo 2**16."""
    first = data.draw(st.integers(0, len(messages) - 1))
    last = data.draw(st.integers(first + 1, len(messages)))
    records = encode(Segment(batch_of(messages, stamped), first, last, attempts))
    expected = [
        plain_record(
            Message(
                message.timestamp_ns if stamped else messages[0].timestamp_ns,
                attempts % 2**16,
                message.id,
                message.body,
            )
        )
        for message in messages[first:last]
    ]
    check_records(records, expected)


@given(message_lists, st.data())
@settings(deadline=None)
def test_parsing_agrees_with_a_walk_wherever_the_data_ends(
    messages: list[Message], data: st.DataObject
) -> None:
    """Cut at any byte: the whole records, and how much the next one needs."""
    whole = b"".join(map(plain_record, messages))
    check_parse(whole)
    check_parse(whole[: data.draw(st.integers(0, len(whole)))])


@given(message_lists, st.sampled_from([-(2**31), -1, 0, 25, BODY_MAX + 27, 2**31 - 1]), st.data())
@settings(deadline=None)
def test_a_length_out_of_range_ends_the_records(
    messages: list[Message], length: int, data: st.DataObject
) -> None:
    """Wherever it stands, and whether or not its record would be whole."""
    at = data.draw(st.integers(0, len(messages)))
    before = b"".join(map(plain_record, messages[:at]))
    behind = b"".join(map(plain_record, messages[at:])) + bytes(40)
    damaged = before + pack(">i", length) + behind[4:]
    block = check_parse(damaged)
    assert block.corrupt
    assert (block.count, block.size, block.needed) == (at, len(before), 0)


@pytest.mark.parametrize("bit", range(32))
def test_one_bit_of_a_length_is_enough_to_see(bit: int) -> None:
    """Equal records of which one has a damaged length are not taken for equal ones."""
    messages = make(Random(5), [200] * 5, [0], [NS])
    data = bytearray(b"".join(map(plain_record, messages)))
    data[3 * 230 + 3 - bit // 8] ^= 1 << bit % 8
    assert check_parse(bytes(data)).end(3) == 3 * 230


@pytest.mark.parametrize("bit", range(80))
def test_one_bit_of_a_timestamp_or_of_the_attempts_is_not_lost(bit: int) -> None:
    """Fields that are almost equal are not taken for equal ones."""
    messages = make(Random(6), [200] * 5, [0], [NS])
    data = bytearray(b"".join(map(plain_record, messages)))
    data[3 * 230 + 4 + bit // 8] ^= 1 << bit % 8
    assert encoded_in_runs(check_parse(bytes(data))) == bytes(data)


@pytest.mark.parametrize("sizes", [[50], [50, 50], [49, 50], [50, 49], [0, 50, 50]])
def test_bodies_of_just_the_limit_are_read(sizes: list[int]) -> None:
    """The limit belongs to the valid sizes, whatever the other records have."""
    messages = make(Random(7), sizes, [0], [NS])
    assert check_parse(b"".join(map(plain_record, messages)), 50).count == len(sizes)


@given(message_lists, st.integers(0, BODY_MAX))
@settings(deadline=None)
def test_a_lower_limit_makes_larger_records_corrupt(messages: list[Message], limit: int) -> None:
    """The records before the first one above the limit are still read."""
    block = check_parse(b"".join(map(plain_record, messages)), limit)
    assert block.corrupt == any(len(message.body) > limit for message in messages)


@given(st.binary(max_size=200), st.integers(0, 100))
@example(b"", 0)
@example(b"\x00\x00\x00\x1a", 0)
@example(b"\x80\x00\x00\x1a" + bytes(60), 100)
def test_any_bytes_are_read_as_a_walk_reads_them(data: bytes, limit: int) -> None:
    """Rubbish raises nothing."""
    check_parse(data, limit)


@given(st.lists(st.integers(26, 60), max_size=12), st.integers(0, 40), st.integers(0, 40))
def test_bodies_that_look_like_lengths_deceive_nobody(
    lengths: list[int], size: int, cut: int
) -> None:
    """Equal sizes are seen in the length fields only, at the places where records begin."""
    body = (pack(">i", 26 + size) * 20)[: size or 1]
    records = [pack(">i", length) + (body * 60)[:length] for length in [26 + size, *lengths]]
    check_parse(b"".join(records) + body[:cut], 100)


def test_records_of_equal_size_stay_in_one_object() -> None:
    """Data of equal records is not walked, and is not copied if it holds nothing else."""
    messages = make(Random(1), [200] * 50, [0], [NS])
    data = b"".join(map(plain_record, messages))
    for there in (data, data + data[:100]):
        block = check_parse(there)
        assert block.batch is not None
        assert isinstance(block.batch.bodies, StridedBodies)
        assert block.batch.stamps is None, "equal timestamps need no column"
        assert block.runs == [(0, 50, 0)]
        assert block.batch.raw(0, 50) == data
    assert parse(data, BODY_MAX).batch.raw(0, 50) is data  # type: ignore[union-attr]


def test_equal_records_before_others_are_all_read() -> None:
    """One odd record behind many equal ones does not end the block."""
    messages = make(Random(2), [200] * 50 + [199] + [200] * 3, [3], [NS])
    assert check_parse(b"".join(map(plain_record, messages))).count == 54


@pytest.mark.parametrize("count", [1, 2, 7])
def test_records_without_bodies_are_read(count: int) -> None:
    """The least record is valid, although no command publishes an empty body."""
    messages = make(Random(3), [0] * count, [0, 1], [NS])
    block = check_parse(b"".join(map(plain_record, messages)), 0)
    assert block.batch is not None
    assert block.count == count
    assert isinstance(block.batch.bodies, PackedBodies), "a stride needs bodies"


@pytest.mark.parametrize("sizes", [[5] * 4, [5, 6, 5, 9]])
def test_as_many_records_as_fit_go_into_a_file(sizes: list[int]) -> None:
    """The most whose bytes are not above the room; none into a file that is full or overfull."""
    messages = [Message(NS, 1, b"%016x" % size, b"x" * size) for size in sizes]
    records = encode(Segment(batch_of(messages, stamped=False), 0, len(sizes), 1))
    ends = [records.end(count) for count in range(len(sizes) + 1)]
    assert ends == sorted(set(ends))
    for room in range(-2, records.size + 2):
        assert records.count_within(room) == max(
            (count for count, end in enumerate(ends) if end <= room), default=0
        )
