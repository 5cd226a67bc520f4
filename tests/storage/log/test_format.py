"""The bytes of the log's segments and records (trionsq.storage.log.format, batches)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.log.log_samples import (
    HEADER,
    NS,
    batches,
    bodies_of,
    plain,
    plain_bulk,
    plain_record,
    segment_bytes,
    simple_batch,
)
from trionsq.core.batch import ListColumn, MessageBatch
from trionsq.core.ids import IdSource, RangeIds
from trionsq.core.keys import PublishKey
from trionsq.storage.log.batches import encode_record, join_batches, parse_batch
from trionsq.storage.log.format import (
    EQUAL_SIZES,
    IDS_IN_SECTION,
    MAX_HEAD_BYTES,
    MAX_RANGES,
    SEGMENT_HEADER_BYTES,
    FormatError,
    Incomplete,
    Origin,
    RecordHead,
    SegmentHeader,
    UnsupportedError,
    encode_extra,
    encode_head,
    parse_head,
)
from trionsq.storage.log.origins import origin_key
from trionsq.wire.bodies import ListBodies, PackedBodies, StridedBodies

numbers = st.integers(0, 2**64 - 2)


def read_record(data: bytes, header: SegmentHeader = HEADER) -> tuple[RecordHead, MessageBatch]:
    """Parse the record at the beginning of the data."""
    head = parse_head(data, 0, header, 0)
    return head, parse_batch(head, data[head.nbytes : head.end], header)


def encoded(
    batch: MessageBatch, sequence: int = 1000, *, key: bytes = b"", origin: Origin | None = None
) -> bytes:
    if key:
        batch.key = PublishKey(key, b"")
    if origin is not None:
        batch.key = origin_key(origin)
    return b"".join(encode_record(batch, sequence, HEADER))


# Segments


@given(numbers, numbers, st.integers(0, 2**32 - 1), st.none() | numbers, st.none() | numbers)
def test_the_header_of_a_segment_comes_back(
    number: int, first: int, salt: int, previous_first: int | None, previous_end: int | None
) -> None:
    """For any values; also with more of the file behind it."""
    header = SegmentHeader(number, first, salt, NS, previous_first, previous_end)
    data = header.to_bytes()
    assert len(data) == SEGMENT_HEADER_BYTES
    assert SegmentHeader.parse(data + b"\xff" * 9) == header
    assert SegmentHeader.good_copies(data) == [0, 64]


def test_damage_to_one_copy_of_a_segments_header_loses_nothing() -> None:
    """Any flipped bit of the header leaves the other copy; the damage is seen nevertheless."""
    data = HEADER.to_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert SegmentHeader.parse(bytes(damaged)) == HEADER
        assert len(SegmentHeader.good_copies(bytes(damaged))) == 1


@given(st.binary(max_size=2 * SEGMENT_HEADER_BYTES))
def test_other_files_are_no_segments(data: bytes) -> None:
    """Neither any bytes, nor a header that is cut before its first copy ends."""
    with pytest.raises(FormatError):
        SegmentHeader.parse(data)
    with pytest.raises(FormatError):
        SegmentHeader.parse(HEADER.to_bytes()[: len(data) % 64])


def test_a_segment_of_a_later_version_is_refused() -> None:
    """By its number, and not as damage."""
    fields = bytearray(HEADER.to_bytes()[:60])
    fields[8:10] = pack(">H", 2)
    with pytest.raises(UnsupportedError, match="version 2, not 1"):
        SegmentHeader.parse(bytes(fields) + pack(">I", crc32(fields)))


# Records


@given(batches(), st.integers(0, 2**63), st.data())
@settings(deadline=None)
def test_a_record_gives_its_batch_back(
    batch: MessageBatch, sequence: int, data: st.DataObject
) -> None:
    """Any batch with any extra items; a reader made from the documentation agrees."""
    keys = st.builds(PublishKey, st.binary(max_size=255), st.binary(max_size=16))
    key = data.draw(st.none() | keys)
    origin = data.draw(st.none() | st.tuples(st.text(max_size=50), st.integers(0, 2**64 - 1)))
    key = None if origin is not None else key
    batch.key = key if origin is None else origin_key(origin)
    raw = b"".join(encode_record(batch, sequence, HEADER))
    head, back = read_record(raw + b"behind")
    assert head.end == len(raw)
    assert (head.sequence, head.next_sequence) == (sequence, sequence + batch.count)
    assert (head.count, head.timestamp_ns) == (batch.count, batch.timestamp_ns)
    assert (head.defer_ms, head.origin) == (batch.defer_ms, origin)
    assert (head.key, head.digest) == ((None, None) if key is None else (key[0], key[1] or None))
    assert (back.timestamp_ns, back.defer_ms) == (batch.timestamp_ns, batch.defer_ms)
    assert back.sequences == range(sequence, sequence + batch.count)
    assert back.bodies.nbytes == batch.bodies.nbytes
    assert plain(back) == plain_bulk(back) == plain(batch) == plain_record(raw, 0, HEADER.salt)


@pytest.mark.parametrize("equal", [True, False], ids=["one size", "several sizes"])
def test_a_large_batch_comes_back(equal: bool) -> None:
    """5,000 messages whose ids lie in two ticks, with stamps and without."""
    values = [b"%05d" % index if equal else b"x" * (index % 7) for index in range(5000)]
    ids = IdSource(5).next_ids(5000, NS)
    for stamps in None, ListColumn([pack(">q", NS + index) for index in range(5000)]):
        batch = MessageBatch(bodies_of("packed", values), ids, NS, stamps=stamps)
        head, back = read_record(encoded(batch))
        assert head.ids is not None
        assert len(head.ids) == 2
        assert plain_bulk(back) == plain_bulk(batch)
        assert back.ids.slice(4000, 4200) == ids.slice(4000, 4200)


def test_bodies_of_one_size_are_not_copied() -> None:
    """A batch without columns of its own uses the bytes that were read."""
    batch = simple_batch([b"%04d" % index for index in range(100)])
    pieces = encode_record(batch, 1000, HEADER)
    assert len(pieces) == 2
    assert pieces[1] is batch.bodies.joined()
    raw = b"".join(pieces)
    head = parse_head(raw, 0, HEADER, 0)
    section = raw[head.nbytes :]
    assert head.flags == EQUAL_SIZES
    assert parse_batch(head, section, HEADER).bodies.joined() is section


@pytest.mark.parametrize("count", [MAX_RANGES, MAX_RANGES + 1])
def test_many_ranges_of_ids_stand_in_the_section(count: int) -> None:
    """A head stays short: only so many ranges are in it, whatever column they come from."""
    for ids in (
        RangeIds([(b"%013x" % index, 1, 2) for index in range(count)]),
        ListColumn([b"%013x001" % index for index in range(count)]),
    ):
        batch = MessageBatch(ListBodies([b"x"] * count), ids, NS)
        head, back = read_record(encoded(batch))
        assert bool(head.flags & IDS_IN_SECTION) == (count > MAX_RANGES)
        assert head.nbytes <= MAX_HEAD_BYTES
        assert plain(back) == plain(batch)


def test_what_does_not_fit_into_a_record_is_refused() -> None:
    """Before anything is written: too long a key or origin, 4 GiB of messages."""
    batch = simple_batch([b"x"])
    for key in (b"k" * 4085, b"k" * 5000, b"k" * 70_000):
        with pytest.raises(FormatError, match=r"too (many|long) for a record"):
            encoded(batch, key=key)
    with pytest.raises(FormatError, match=r"too (many|long) for a record"):
        encoded(simple_batch([b"x"]), origin=("n" * 5000, 1))
    head = RecordHead(0, 0, 2**32, 0, 1, 1, NS, 0, EQUAL_SIZES, ids=((1, 1),))
    with pytest.raises(FormatError, match="4294967296 bytes are too many"):
        head_bytes(head)


@given(batches(max_count=4), st.data())
@settings(deadline=None)
def test_a_flipped_bit_is_found(batch: MessageBatch, data: st.DataObject) -> None:
    """Wherever in the record it is."""
    raw = bytearray(encoded(batch))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError):
        read_record(bytes(raw))


@given(batches(max_count=4), st.data())
@settings(deadline=None)
def test_a_cut_record_is_incomplete_or_damaged(batch: MessageBatch, data: st.DataObject) -> None:
    """Within the head it says that bytes are missing, behind it the CRC says so."""
    raw = encoded(batch, key=b"key")
    nbytes = parse_head(raw, 0, HEADER, 0).nbytes
    cut = data.draw(st.integers(0, len(raw) - 1))
    if cut < nbytes:
        with pytest.raises(Incomplete):
            parse_head(raw[:cut], 0, HEADER, 0)
    else:
        head = parse_head(raw[:cut], 0, HEADER, 0)
        with pytest.raises(FormatError, match="CRC"):
            parse_batch(head, raw[nbytes:cut], HEADER)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(HEADER, salt=HEADER.salt + 1),
        dataclasses.replace(HEADER, incarnation=HEADER.incarnation + 1),
    ],
    ids=["salt", "incarnation"],
)
def test_a_record_of_another_segment_is_none(other: SegmentHeader) -> None:
    """A whole record of another salt, or of another incarnation of the topic."""
    raw = b"".join(encode_record(simple_batch([b"x"]), 1000, other))
    read_record(raw, other)
    with pytest.raises(FormatError):
        parse_head(raw, 0, HEADER, 0)


def head_bytes(head: RecordHead) -> bytes:
    """Return the head as a record of HEADER's segment has it."""
    extra = encode_extra(head.ids, head.key, head.digest, head.round_offset, head.origin)
    return encode_head(
        HEADER, head.body_nbytes, head.body_crc, head.sequence, head.count, head.flags,
        head.timestamp_ns, head.defer_ms, extra,
    )  # fmt: skip


def with_valid_crc(head: RecordHead, extra: bytes = b"") -> bytes:
    """Return the head with these bytes as further extra items, its CRC being right."""
    raw = head_bytes(head)[8:]
    size = int.from_bytes(raw[30:32]) + len(extra)
    raw = raw[:30] + pack(">H", size) + raw[32:] + extra
    return b"\xf5LR\x01" + pack(">I", crc32(raw, HEADER.salt)) + raw


GOOD = RecordHead(0, 0, 8, 0, 1000, 2, NS, 0, EQUAL_SIZES, ids=((1, 2),))


def test_unknown_flags_are_refused_and_unknown_items_skipped() -> None:
    """A later release may add items; a flag that is not known could change all that follows."""
    head = parse_head(with_valid_crc(GOOD, b"\x63\x00\x03abc"), 0, HEADER, 0)
    assert (head.ids, head.key) == (((1, 2),), None)
    later = with_valid_crc(dataclasses.replace(GOOD, flags=EQUAL_SIZES | 0x40))
    with pytest.raises(UnsupportedError, match="offset 77 has unknown flags: 0x44"):
        parse_head(later, 0, HEADER, 77)


@pytest.mark.parametrize(
    "raw",
    [
        with_valid_crc(dataclasses.replace(GOOD, count=0, ids=((1, 0),))),
        with_valid_crc(dataclasses.replace(GOOD, count=9, ids=((1, 9),))),
        with_valid_crc(dataclasses.replace(GOOD, ids=((1, 3),))),
        with_valid_crc(dataclasses.replace(GOOD, ids=((2**64 - 1, 2),))),
        with_valid_crc(dataclasses.replace(GOOD, ids=None)),
        with_valid_crc(dataclasses.replace(GOOD, flags=EQUAL_SIZES | IDS_IN_SECTION)),
        with_valid_crc(GOOD, b"\x63"),
        with_valid_crc(GOOD, b"\x63\x10\x00" + bytes(4096)),
        with_valid_crc(GOOD, b"\x63\x00\x03ab"),
        with_valid_crc(GOOD, b"\x01\x00\x03abc"),
        with_valid_crc(GOOD, b"\x03\x00\x03abc"),
        with_valid_crc(GOOD, b"\x03\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff"),
    ],
)
def test_a_head_that_contradicts_itself_is_damage(raw: bytes) -> None:
    """Even if its CRC is right; no memory is taken for what it says."""
    with pytest.raises(FormatError) as found:
        parse_head(raw, 0, HEADER, 0)
    assert not isinstance(found.value, Incomplete | UnsupportedError)


@given(st.integers(0, 7), st.integers(1, 6), st.binary(min_size=6, max_size=60))
def test_a_section_that_contradicts_its_head_is_damage(
    flags: int, count: int, section: bytes
) -> None:
    """Its CRC being right, only FormatError is raised, or there are as many messages as it says."""
    ids = None if flags & IDS_IN_SECTION else ((5, count),)
    crc = crc32(section, HEADER.salt)
    head = RecordHead(0, 0, len(section), crc, 1000, count, NS, 0, flags, ids=ids)
    try:
        batch = parse_batch(head, section, HEADER)
    except FormatError:
        return
    assert len(plain(batch)) == count


def test_sizes_that_are_not_those_of_the_messages_are_damage() -> None:
    """Bytes behind the last message, or messages behind the last byte, are no message."""
    for sizes in (1, 1), (1, 3), (2**32 - 1, 2**32 - 1):
        section = pack(">II", *sizes) + b"abc"
        crc = crc32(section, HEADER.salt)
        head = RecordHead(0, 0, len(section), crc, 1000, 2, NS, 0, 0, ids=((5, 2),))
        with pytest.raises(FormatError, match="sizes of the messages"):
            parse_batch(head, section, HEADER)


@given(st.binary(max_size=200))
def test_garbage_is_no_record(data: bytes) -> None:
    """Any bytes, also behind a marker, raise FormatError and nothing else."""
    for raw in data, b"\xf5LR\x01" + data:
        with pytest.raises(FormatError):
            parse_head(raw, 0, HEADER, 0)


def test_the_bytes_never_change() -> None:
    """A segment of the first release is still written, and read, byte for byte."""
    stamps = ListColumn([pack(">q", NS + 5), pack(">q", NS + 6)])
    found = [
        simple_batch([b"one", b"two"]),
        MessageBatch(ListBodies([b"", b"longer"]), ListColumn([b"A" * 16] * 2), NS, 90, stamps),
    ]
    data, _, _ = segment_bytes(found)
    moved = encoded(simple_batch([b"moved"]), 1004)
    head = parse_head(moved, 0, HEADER, 1004)
    head.key, head.digest, head.origin = b"key", b"", ("t.dat", 77)
    data += head_bytes(head) + moved[head.nbytes :]
    stored = (Path(__file__).parent / "data" / "segment.hex").read_text()
    assert data == bytes.fromhex(stored)


# Several batches as one


@given(st.lists(batches(defer=False), min_size=1, max_size=5), st.none() | st.just(1234))
@settings(deadline=None)
def test_joined_batches_have_all_messages(found: list[MessageBatch], sequence: int | None) -> None:
    """In order, with the id and the time of each; as a record they come back."""
    joined = join_batches(found, sequence)
    assert plain_bulk(joined) == [message for batch in found for message in plain(batch)]
    assert plain(joined) == plain_bulk(joined)
    assert joined.timestamp_ns == found[0].timestamp_ns
    count = sum(batch.count for batch in found)
    assert joined.sequences == (None if sequence is None else range(1234, 1234 + count))
    _, back = read_record(encoded(joined))
    assert plain(back) == plain(joined)


def test_ids_keep_their_ticks() -> None:
    """Ranges that lie beside each other by chance stay apart; a range may cross a tick's end."""
    ids = [RangeIds([(b"%013x" % 1, 0, 5)]), RangeIds([(b"%013x" % 2, 5, 7)])]
    found = [
        MessageBatch(ListBodies([b"x"] * count), one, NS)
        for count, one in zip((5, 2), ids, strict=True)
    ]
    assert plain(join_batches(found)) == plain(found[0]) + plain(found[1])
    crossing = ListColumn([b"%016x" % (0x5FFE + index) for index in range(5000)])
    batch = MessageBatch(ListBodies([b"x"] * 5000), crossing, NS)
    head, back = read_record(encoded(batch))
    assert head.ids == ((0x5FFE, 5000),)
    assert plain(back) == plain_bulk(back) == plain(batch)


def test_single_publishes_make_one_short_record() -> None:
    """Bodies of one size and ids of one tick cost no more than their stamps."""
    source = IdSource(1)
    found = [
        MessageBatch(ListBodies([b"12345678"]), source.next_ids(1, NS), NS + index)
        for index in range(200)
    ]
    joined = join_batches(found)
    assert isinstance(joined.bodies, StridedBodies)
    head, back = read_record(encoded(joined))
    assert head.ids is not None
    assert len(head.ids) == 1
    assert head.body_nbytes == 200 * (8 + 8)
    assert plain(back) == plain(joined)


def test_batches_of_one_moment_have_no_stamps() -> None:
    """Batches of one timestamp, of several sizes: one timestamp, and a table of sizes."""
    joined = join_batches([simple_batch([b"a", b"b"]), simple_batch([b"long"])])
    assert joined.stamps is None
    assert isinstance(joined.bodies, PackedBodies)
    alone = simple_batch([b"alone"])
    assert join_batches([alone]).bodies is alone.bodies
