"""Segment files: names, scans, reads, damage (trionsq.storage.log.segments)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from struct import pack, pack_into
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.log.log_samples import (
    HEADER,
    PlainMessage,
    batches,
    plain_bulk,
    segment_bytes,
    simple_batch,
)
from trionsq.core.batch import MessageBatch
from trionsq.disk import DiskFile
from trionsq.storage.log import format as log_format
from trionsq.storage.log import segments
from trionsq.storage.log.batches import encode_record
from trionsq.storage.log.format import (
    MARKER,
    MAX_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordHead,
    SegmentHeader,
    UnsupportedError,
)
from trionsq.storage.log.names import parse_segment_name, segment_name
from trionsq.storage.log.segments import (
    Damage,
    Scan,
    SparseIndex,
    read_header,
    read_records,
    scan_segment,
)
from trionsq.testing.disk import SimulatedDisk

RANDOM = Random(18)
# Ten records of different sizes; some are longer than the blocks that `small_blocks` sets.
SIZES = [10, 3000, 1, 200, 9000, 40, 40, 5000, 700, 5]
BATCHES = [
    simple_batch([RANDOM.randbytes(size) for _ in range(1 + size % 3)], 4096 * index)
    for index, size in enumerate(SIZES)
]
DATA, OFFSETS, SEQUENCES = segment_bytes(BATCHES)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so short that records, heads and markers lie across their edges."""
    monkeypatch.setattr(segments, "_BLOCK_BYTES", MAX_HEAD_BYTES)
    monkeypatch.setattr(segments, "_LEAST_BLOCK_BYTES", MAX_HEAD_BYTES)


class CountingFile:
    """A file of these bytes that counts what is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.nbytes = 0
        self.reads = 0

    def read(self, max_bytes: int, offset: int) -> bytes:
        piece = self.data[offset : offset + max_bytes]
        self.nbytes += len(piece)
        self.reads += 1
        return piece

    def size(self) -> int:
        return len(self.data)


def file_of(data: bytes) -> DiskFile:
    return CountingFile(data)  # type: ignore[return-value]


def scanned(data: bytes, **options: object) -> tuple[Scan, list[RecordHead]]:
    """Scan a segment to its end."""
    scan = scan_segment(file_of(data), HEADER, **options)  # type: ignore[arg-type]
    return scan, list(scan.records)


def all_read(
    data: bytes, max_bytes: int, offset: int = SEGMENT_HEADER_BYTES, end: int | None = None
) -> list[tuple[RecordHead, MessageBatch] | Damage]:
    """Read a segment block by block."""
    file = file_of(data)
    found: list[tuple[RecordHead, MessageBatch] | Damage] = []
    while block := read_records(file, HEADER, offset, max_bytes, end=end):
        found += block
        last = block[-1]
        offset = last.end if isinstance(last, Damage) else last[0].end
    return found


def messages_in(
    found: list[tuple[RecordHead, MessageBatch] | Damage],
) -> Iterator[PlainMessage]:
    for one in found:
        if not isinstance(one, Damage):
            yield from plain_bulk(one[1])


# Names


@given(
    st.from_regex(r"[.a-zA-Z0-9_-]{1,64}", fullmatch=True),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_the_name_of_a_segment_comes_back(topic: str, incarnation: int, first: int) -> None:
    """For any topic, also one that is named like a segment."""
    name = segment_name(topic, incarnation, first)
    assert parse_segment_name(name) == (topic, incarnation, first)
    assert parse_segment_name(segment_name(name[:20], 1, 2)) == (name[:20], 1, 2)


@pytest.mark.parametrize(
    "name",
    [
        "t.log.1.0000000000000001.dat",
        "t.log.00000001.1.dat",
        "t.log.000000001.0000000000000001.dat",
        "t.log.00000001.0000000000000001.dat.bad",
        "t.log.00000001.0000000000000001.dat\n",
        "t.log.0000000\u0661.0000000000000001.dat",
        ".log.00000001.0000000000000001.dat",
        "t#ephemeral.log.00000001.0000000000000001.dat",
        "a b.log.00000001.0000000000000001.dat",
        "t.diskqueue.000001.dat",
        "t.log.00000001.0000000000000000.diskqueue.000001.dat",
        "nsqd.dat",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    """Names that are not spelled as ours, and the files of the default engine."""
    assert parse_segment_name(name) is None


# Whole segments


@given(st.lists(batches(), max_size=6), st.integers(1, 2000))
@settings(deadline=None)
def test_a_segment_gives_its_batches_back(found: list[MessageBatch], max_bytes: int) -> None:
    """A scan its heads, reads of any size its messages."""
    data, offsets, sequences = segment_bytes(found)
    assert read_header(file_of(data)) == HEADER
    for check in False, True:
        scan, heads = scanned(data, check_bodies=check)
        assert [head.offset for head in heads] == offsets[:-1]
        assert [head.sequence for head in heads] == sequences[:-1]
        assert (scan.end, scan.next_sequence) == (offsets[-1], sequences[-1])
        assert (scan.damage, scan.torn) == ([], None)
    messages = [message for batch in found for message in plain_bulk(batch)]
    assert list(messages_in(all_read(data, max_bytes))) == messages


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shift", range(0, 60, 3))
def test_heads_may_lie_across_the_edges_of_blocks(shift: int) -> None:
    """Wherever a block ends, a scan and a read find the same as in one piece."""
    found = [simple_batch([b"s" * (shift + 1)]), *BATCHES]
    data, offsets, _ = segment_bytes(found)
    for check in False, True:
        _, heads = scanned(data, check_bodies=check)
        assert [head.offset for head in heads] == offsets[:-1]
    messages = [message for batch in found for message in plain_bulk(batch)]
    assert list(messages_in(all_read(data, MAX_HEAD_BYTES))) == messages


def test_reading_takes_blocks_of_the_size_asked_for() -> None:
    """Small records fill a block; a record longer than it comes alone and whole."""
    small = [simple_batch([b"x" * 100]) for _ in range(500)]
    data, offsets, _ = segment_bytes([*small, simple_batch([b"y" * 100_000])])
    for max_bytes in range(20_000, 20_200, 10):
        file = CountingFile(data)
        block = read_records(file, HEADER, SEGMENT_HEADER_BYTES, max_bytes)  # type: ignore[arg-type]
        assert (file.reads, file.nbytes) == (1, max_bytes)
        assert 90 < len(block) <= max_bytes / 160
    assert len(read_records(file_of(data), HEADER, offsets[490], 20_000)) == 10
    (alone,) = read_records(file_of(data), HEADER, offsets[-2], 20_000)
    assert not isinstance(alone, Damage)
    assert alone[0].body_nbytes == 100_000
    assert read_records(file_of(data), HEADER, offsets[-1], 20_000) == []


def test_a_scan_of_heads_steps_over_long_bodies() -> None:
    """It reads little of them; of short ones it reads long blocks."""
    data, _, _ = segment_bytes([simple_batch([b"x" * 300_000]) for _ in range(20)])
    file = CountingFile(data)
    assert len(list(scan_segment(file, HEADER).records)) == 20  # type: ignore[arg-type]
    assert file.nbytes < len(data) / 4
    data, _, _ = segment_bytes([simple_batch([b"x" * 1000])] * 2500)
    file = CountingFile(data)
    assert len(list(scan_segment(file, HEADER).records)) == 2500  # type: ignore[arg-type]
    assert file.reads <= 5
    found = [simple_batch([b"x" * size]) for size in [300_000] * 5 + [1000] * 2500]
    data, _, _ = segment_bytes(found)
    file = CountingFile(data)
    assert len(list(scan_segment(file, HEADER).records)) == 2505  # type: ignore[arg-type]
    assert file.reads <= 20


def test_a_segment_ends_where_the_next_one_says() -> None:
    """What stands behind that is neither scanned, nor read, nor damage."""
    end = OFFSETS[4]
    scan, heads = scanned(DATA, end=end, check_bodies=True)
    assert [head.end for head in heads] == OFFSETS[1:5]
    assert (scan.end, scan.torn, scan.damage) == (end, None, [])
    found = all_read(DATA, 500, end=end)
    assert list(messages_in(found)) == [one for batch in BATCHES[:4] for one in plain_bulk(batch)]


def test_sequences_may_have_gaps() -> None:
    """A record may begin above the end of the one before it: sequences are refused at times."""
    data = HEADER.to_bytes()
    for sequence in HEADER.first_sequence + 5, HEADER.first_sequence + 90:
        data += b"".join(encode_record(simple_batch([b"x"]), sequence, HEADER))
    scan, heads = scanned(data)
    assert [head.sequence - HEADER.first_sequence for head in heads] == [5, 90]
    assert (scan.damage, scan.torn) == ([], None)


# Damage


def without(index: int) -> list[PlainMessage]:
    """Return the messages of all batches but one."""
    rest = BATCHES[:index] + BATCHES[index + 1 :]
    return [message for batch in rest for message in plain_bulk(batch)]


def check_lost(damaged: bytes, index: int) -> None:
    """Only the record ``index`` is lost, and it is named."""
    scan, heads = scanned(damaged, check_bodies=True)
    assert [head.offset for head in heads] == OFFSETS[:index] + OFFSETS[index + 1 : -1]
    at, end = OFFSETS[index], OFFSETS[index + 1]
    if index == len(BATCHES) - 1:
        assert scan.damage == []
        assert scan.torn is not None
        assert (scan.torn.offset, scan.torn.end) == (scan.end, scan.limit) == (at, end)
        assert scan.torn.sequence == scan.next_sequence == SEQUENCES[index]
    else:
        assert scan.damage == [Damage(at, end, SEQUENCES[index], SEQUENCES[index + 1])]
        assert scan.torn is None
    found = all_read(damaged, 5000)
    lost = [one for one in found if isinstance(one, Damage)]
    assert [(one.offset, one.end) for one in lost] == [(at, end)]
    assert list(messages_in(found)) == without(index)


@pytest.mark.usefixtures("small_blocks")
@given(st.integers(0, 9), st.data())
@settings(deadline=None)
def test_a_flipped_bit_costs_its_record_alone(index: int, data: st.DataObject) -> None:
    """Be it in the head, in the extra items or in the messages; the rest is read on."""
    at = data.draw(st.integers(OFFSETS[index], OFFSETS[index + 1] - 1))
    if data.draw(st.booleans()):
        at = OFFSETS[index] + at % 70 % (OFFSETS[index + 1] - OFFSETS[index])
    damaged = bytearray(DATA)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    check_lost(bytes(damaged), index)


@pytest.mark.usefixtures("small_blocks")
@given(st.integers(SEGMENT_HEADER_BYTES, len(DATA)))
@settings(deadline=None)
def test_a_cut_segment_has_the_records_before_the_cut(cut: int) -> None:
    """Each prefix of the file: the whole records of it; what is left is torn, not damaged."""
    for check in False, True:
        scan, heads = scanned(DATA[:cut], check_bodies=check)
        whole = [end for end in OFFSETS[1:] if end <= cut]
        assert [head.end for head in heads] == whole
        assert scan.damage == []
        assert scan.end == (whole[-1] if whole else SEGMENT_HEADER_BYTES)
        assert (scan.torn is not None) == (cut > scan.end)
    found = all_read(DATA[:cut], 5000)
    expected = [message for batch in BATCHES[: len(whole)] for message in plain_bulk(batch)]
    assert list(messages_in(found)) == expected


@pytest.mark.usefixtures("small_blocks")
@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from([b"\0", b"\xff", MARKER, b"ab"]))
@settings(deadline=None)
def test_a_damaged_stretch_costs_the_records_in_it(one: int, other: int, noise: bytes) -> None:
    """Zeros, ones or markers over several records: the reader goes on behind them."""
    first, last = sorted((one, other))
    at, end = OFFSETS[first], OFFSETS[last + 1]
    damaged = DATA[:at] + (noise * (end - at))[: end - at] + DATA[end:]
    scan, heads = scanned(damaged)
    assert [head.offset for head in heads] == OFFSETS[:first] + OFFSETS[last + 1 : -1]
    if last == len(BATCHES) - 1:
        is_room = noise == b"\0"
        assert scan.torn == (None if is_room else Damage(at, end, SEQUENCES[first], None))
    else:
        assert scan.damage == [Damage(at, end, SEQUENCES[first], SEQUENCES[last + 1])]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", [*range(1, 6), 30, *range(54, 74)])
def test_the_search_finds_a_record_across_the_edge_of_a_block(before: int) -> None:
    """The marker, the head or its extra items may begin in one block and end in the next."""
    first = simple_batch([b"x" * (MAX_HEAD_BYTES - 71 - before)])
    data, offsets, sequences = segment_bytes([first, *BATCHES])
    assert offsets[1] + before == SEGMENT_HEADER_BYTES + MAX_HEAD_BYTES
    damaged = data[: offsets[0]] + b"\0" + data[offsets[0] + 1 :]
    scan, heads = scanned(damaged)
    assert [head.offset for head in heads] == offsets[1:-1]
    assert scan.damage == [Damage(offsets[0], offsets[1], sequences[0], sequences[1])]


def with_bad_body(data: bytes, index: int) -> bytes:
    """Return the segment with a flipped bit in the last message of a record."""
    at = OFFSETS[index + 1] - 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_bad_messages_are_a_torn_end_unless_a_good_record_follows() -> None:
    """A power cut may keep the head of a record and lose its messages."""
    scan, heads = scanned(with_bad_body(with_bad_body(DATA, 8), 9), check_bodies=True)
    assert len(heads) == 8
    assert scan.damage == []
    assert scan.torn == Damage(OFFSETS[8], OFFSETS[10], SEQUENCES[8], SEQUENCES[10])
    scan, heads = scanned(with_bad_body(with_bad_body(DATA, 7), 8), check_bodies=True)
    assert len(heads) == 8
    assert scan.damage == [
        Damage(OFFSETS[7], OFFSETS[8], SEQUENCES[7], SEQUENCES[8]),
        Damage(OFFSETS[8], OFFSETS[9], SEQUENCES[8], SEQUENCES[9]),
    ]
    assert (scan.torn, scan.end) == (None, len(DATA))


@pytest.mark.parametrize("bad", [0, 1])
def test_a_round_is_torn_as_a_whole(bad: int) -> None:
    """A power cut may keep its last record and lose one before; only a later round shows damage."""
    pieces, offsets = [HEADER.to_bytes()], [SEGMENT_HEADER_BYTES]
    first = HEADER.first_sequence
    for number, began in enumerate((None, offsets[0], offsets[0], None)):
        record = encode_record(simple_batch([b"x"]), first + number, HEADER, round_offset=began)
        pieces.append(b"".join(record))
        offsets.append(offsets[-1] + len(pieces[-1]))
    at = offsets[bad + 1] - 1
    data = bytearray(b"".join(pieces))
    data[at] ^= 1
    scan, heads = scanned(bytes(data[: offsets[3]]), check_bodies=True)
    assert (len(heads), scan.damage) == (bad, [])
    assert scan.torn == Damage(offsets[bad], offsets[3], first + bad, first + bad + 1)
    scan, heads = scanned(bytes(data), check_bodies=True)
    assert [head.offset for head in heads] == [at for at in offsets[:-1] if at != offsets[bad]]
    assert scan.torn is None
    assert scan.damage == [Damage(offsets[bad], offsets[bad + 1], first + bad, first + bad + 1)]


def test_a_scan_from_the_middle_does_not_guess_sequences() -> None:
    """Damage before its first record has no first sequence; the file's first one still counts."""
    damaged = bytearray(DATA)
    damaged[OFFSETS[3]] ^= 1
    scan, heads = scanned(bytes(damaged), start_offset=OFFSETS[3])
    assert heads[0].offset == OFFSETS[4]
    assert scan.damage == [Damage(OFFSETS[3], OFFSETS[4], None, SEQUENCES[4])]
    scan, heads = scanned(DATA, start_offset=OFFSETS[10])
    assert (heads, scan.end, scan.next_sequence) == ([], OFFSETS[10], None)
    block = read_records(file_of(bytes(damaged)), HEADER, OFFSETS[3], 100, sequence=SEQUENCES[3])
    assert block[0] == Damage(OFFSETS[3], OFFSETS[4], SEQUENCES[3], SEQUENCES[4])


def foreign_record(**changes: int) -> bytes:
    """Return a record that would follow in a segment with another salt or incarnation."""
    header = dataclasses.replace(HEADER, **changes)  # type: ignore[arg-type]
    return b"".join(encode_record(simple_batch([b"old"]), SEQUENCES[-1] + 50, header))


def test_records_in_messages_fool_nobody() -> None:
    """Markers and whole records in a body, of other segments or earlier ones of this very one."""
    bait = MARKER * 9 + foreign_record(salt=1) + DATA[OFFSETS[0] : OFFSETS[4]] + MARKER
    data, offsets, sequences = segment_bytes([*BATCHES[:4], simple_batch([bait]), BATCHES[5]])
    scan, heads = scanned(data[: offsets[4]] + b"\0" + data[offsets[4] + 1 :])
    assert [head.offset for head in heads] == [*offsets[:4], offsets[5]]
    assert scan.damage == [Damage(offsets[4], offsets[5], sequences[4], sequences[5])]


@pytest.mark.parametrize("changes", [{"salt": 1}, {"incarnation": 8}])
def test_blocks_of_a_deleted_file_are_no_records(changes: dict[str, int]) -> None:
    """Behind the end, or behind damage: a record of another file is a torn end."""
    for before in DATA, DATA + b"damage":
        scan, heads = scanned(before + foreign_record(**changes))
        assert len(heads) == len(BATCHES)
        assert scan.end == len(DATA)
        assert scan.torn == Damage(len(DATA), scan.limit, SEQUENCES[-1], None)


def test_a_repeated_sequence_is_damage() -> None:
    """A record whose sequences the segment has already is not delivered twice."""
    again = DATA[OFFSETS[8] : OFFSETS[9]]
    last = b"".join(encode_record(simple_batch([b"x"]), SEQUENCES[-1], HEADER))
    scan, heads = scanned(DATA + again + last)
    assert len(heads) == len(BATCHES) + 1
    end = len(DATA) + len(again)
    assert scan.damage == [Damage(len(DATA), end, SEQUENCES[-1], SEQUENCES[-1])]


def unknown_record() -> bytes:
    """Return a record with a flag of a later release."""
    raw = bytearray(b"".join(encode_record(simple_batch([b"x"]), SEQUENCES[-1], HEADER)))
    pack_into(">H", raw, 36, 0x8004)
    raw[4:8] = pack(">I", crc32(raw[8 : 56 + 15], HEADER.salt))
    return bytes(raw)


@pytest.mark.parametrize("before", [DATA, DATA + b"damage"], ids=["in order", "behind damage"])
def test_a_record_of_a_later_release_is_refused(before: bytes) -> None:
    """It is neither skipped nor cut: scans and reads say what they cannot read."""
    data = before + unknown_record()
    for check in False, True:
        with pytest.raises(UnsupportedError, match="unknown flags: 0x8004"):
            scanned(data, check_bodies=check)
    with pytest.raises(UnsupportedError, match="unknown flags: 0x8004"):
        all_read(data, 1 << 20)


@given(st.lists(st.sampled_from([b"\0", b"\xf5", b"L", b"R", b"\1", MARKER, DATA[128:190]])))
@settings(deadline=None)
def test_garbage_ends_a_scan_without_an_error(pieces: list[bytes]) -> None:
    """Whatever stands behind the records: they are found, and what is left is torn, but zeros."""
    data = DATA + b"".join(pieces)
    scan, heads = scanned(data, check_bodies=True)
    assert len(heads) == len(BATCHES)
    assert (scan.torn is not None) == bool(b"".join(pieces).strip(b"\0"))
    all_read(data, 700)


def forged_head() -> bytes:
    """Return what passes for a head until its CRC is made, with the longest extra items."""
    return MARKER + pack(">IIIQQIHHqQ", 0, 1, 0, HEADER.incarnation, 2**60, 1, 4, 4096, 0, 0)


@pytest.mark.parametrize("piece", [MARKER, forged_head()], ids=["markers", "forged heads"])
def test_the_search_for_a_record_is_linear(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of markers costs twice as much if it is twice as long, not four times."""
    checked = 0

    def counting_crc(data: bytes, start: int = 0) -> int:
        nonlocal checked
        checked += len(data)
        return crc32(data, start)

    monkeypatch.setattr(log_format, "crc32", counting_crc)
    costs = []
    for nbytes in 500_000, 1_000_000:
        checked = 0
        file = CountingFile(HEADER.to_bytes() + piece * (nbytes // len(piece)))
        scan = scan_segment(file, HEADER)  # type: ignore[arg-type]
        assert list(scan.records) == []
        assert file.nbytes < 1.1 * nbytes + 10_000
        costs.append(checked)
    assert costs[1] <= 2.1 * costs[0] + 1000
    assert costs[1] <= 75 * 1_000_000


def test_alternating_damage_is_linear() -> None:
    """Each search reads on in the block that the last one left."""
    data, offsets, _ = segment_bytes([simple_batch([b"x" * 100]) for _ in range(4000)])
    damaged = bytearray(data)
    for offset in offsets[:-1:2]:
        damaged[offset] = 0
    file = CountingFile(bytes(damaged))
    scan = scan_segment(file, HEADER, check_bodies=True)  # type: ignore[arg-type]
    assert len(list(scan.records)) == len(scan.damage) == 2000
    assert file.nbytes <= 1.1 * len(data)


def test_a_file_that_becomes_shorter_ends_the_scan() -> None:
    """Somebody cuts the file while it is read: what is gone is no endless loop."""
    disk = SimulatedDisk()
    disk.write_file("segment", DATA)
    file = disk.open("segment")
    for check in False, True:
        scan = scan_segment(file, HEADER, check_bodies=check)
        file.truncate(OFFSETS[5] + 3)
        heads = list(scan.records)
        assert [head.end for head in heads] == OFFSETS[1:6]
        assert (scan.end, scan.limit) == (OFFSETS[5], OFFSETS[5] + 3)
        assert scan.torn is not None
        file.write(DATA, 0)


# The index


def test_the_index_finds_a_place_near_each_sequence() -> None:
    """At the record or before it, by no more than 64 KiB and one record."""
    data, offsets, sequences = segment_bytes(
        [simple_batch([b"x" * (100 + index % 50)] * 20) for index in range(200)]
    )
    index = SparseIndex(HEADER)
    for head in scan_segment(file_of(data), HEADER).records:
        index.add(head.sequence, head.offset)
    places = dict(zip(sequences, offsets, strict=True))
    for place, sequence in enumerate(sequences[:-1]):
        for wanted in sequence, sequence + 19:
            found, offset = index.find(wanted)
            assert places[found] == offset <= offsets[place]
            assert offsets[place] - offset < 64 * 1024
    assert index.find(0) == (HEADER.first_sequence, SEGMENT_HEADER_BYTES)
    assert (
        len({index.find(sequence) for sequence in sequences}) == len(data) // (64 * 1024 + 3000) + 1
    )


def test_other_headers_read_nothing_of_a_segment() -> None:
    """With the header of another file, no record of this one is found."""
    other = SegmentHeader(HEADER.incarnation, HEADER.first_sequence, 1, 0)
    scan = scan_segment(file_of(DATA), other)
    assert list(scan.records) == []
    assert scan.torn == Damage(SEGMENT_HEADER_BYTES, len(DATA), HEADER.first_sequence, None)
