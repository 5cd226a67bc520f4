"""Batches for tests of the log: made at random, and as plain values to compare."""

from __future__ import annotations

from struct import pack, unpack_from
from zlib import crc32

from hypothesis import strategies as st

from trionsq.core.batch import Column, ListColumn, MessageBatch
from trionsq.core.ids import RangeIds
from trionsq.storage.log.batches import encode_record
from trionsq.storage.log.format import SegmentHeader
from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies, StridedBodies

NS = 1_795_263_063_880_871_234
HEADER = SegmentHeader(7, 1000, 0x5EED5A17, NS)

PlainMessage = tuple[bytes, int, bytes]
"""Id, time of publishing, body."""


def plain(batch: MessageBatch) -> list[PlainMessage]:
    """Return the messages of a batch, read one by one."""
    return [
        (
            batch.ids.slice(index, index + 1)[0],
            int.from_bytes(batch.stamp(index), signed=True),
            batch.bodies.body_at(index),
        )
        for index in range(batch.count)
    ]


def plain_bulk(batch: MessageBatch) -> list[PlainMessage]:
    """Return the messages of a batch, read at once."""
    count = batch.count
    stamps = [batch.timestamp_ns] * count
    if batch.stamps is not None:
        stamps = [int.from_bytes(one, signed=True) for one in batch.stamps.slice(0, count)]
    bodies = batch.bodies.slice(0, count)
    return list(zip(batch.ids.slice(0, count), stamps, bodies, strict=True))


def plain_record(data: bytes, at: int, salt: int) -> list[PlainMessage]:
    """Read the record at ``at`` as docs/log-format.md has it, without the code of the engine."""
    marker, head_crc, nbytes, crc, _, _, count, flags, extra_nbytes, first_ns, _ = unpack_from(
        ">4sIIIQQIHHqQ", data, at
    )
    assert marker == b"\xf5LR\x01"
    extra_at = at + 56
    body_at = extra_at + extra_nbytes
    assert head_crc == crc32(data[at + 8 : body_at], salt)
    section = data[body_at : body_at + nbytes]
    assert crc == crc32(section, salt)
    ids: list[bytes] = []
    while extra_at < body_at:
        kind, size = unpack_from(">BH", data, extra_at)
        if kind == 1:
            for place in range(extra_at + 3, extra_at + 3 + size, 12):
                first, ids_count = unpack_from(">QI", data, place)
                ids += [b"%016x" % number for number in range(first, first + ids_count)]
        extra_at += 3 + size
    at = 0
    if flags & 1:
        ids = [section[16 * index : 16 * index + 16] for index in range(count)]
        at += 16 * count
    stamps = [first_ns] * count
    if flags & 2:
        stamps = list(unpack_from(f">{count}q", section, at))
        at += 8 * count
    if flags & 4:
        sizes = [(len(section) - at) // count] * count
    else:
        sizes = list(unpack_from(f">{count}I", section, at))
        at += 4 * count
    bodies = []
    for size in sizes:
        bodies.append(section[at : at + size])
        at += size
    assert at == len(section)
    return list(zip(ids, stamps, bodies, strict=True))


def bodies_of(kind: str, values: list[bytes]) -> Bodies:
    """Return the bodies as the class that ``kind`` names, if it can hold them."""
    sizes = set(map(len, values))
    if kind == "strided" and len(sizes) == 1 and sizes != {0}:
        return StridedBodies(b"".join(b"gap:" + body for body in values), 4, len(values[0]))
    if kind == "plain" and len(sizes) == 1 and sizes != {0}:
        return StridedBodies(b"".join(values), 0, len(values[0]))
    if kind == "packed":
        ends = [3]
        for body in values:
            ends.append(ends[-1] + 4 + len(body))
        return PackedBodies(b"..." + b"".join(b"gap:" + body for body in values), ends, 4)
    return ListBodies(values)


@st.composite
def id_columns(draw: st.DrawFn, count: int) -> Column:
    """Return ids as a topic makes them, or any others."""
    kind = draw(st.sampled_from(["one range", "ranges", "numbers", "list", "text"]))
    first = draw(st.integers(0, 2**64 - 20_000))
    if kind == "numbers":
        return ListColumn([b"%016x" % (first + 2 * index) for index in range(count)])
    if kind == "list":
        return ListColumn([b"%016x" % (first + index) for index in range(count)])
    if kind == "text":
        return ListColumn([b"%016d" % index for index in range(count - 1)] + [b"ABCDEFABCDEFABCD"])
    ranges = []
    most = 4096 if kind == "one range" else max(1, count // 3)
    tick = first // 4096
    while count:
        taken = min(count, most)
        ranges.append((b"%013x" % tick, 4096 - taken, 4096))
        tick += 1
        count -= taken
    return RangeIds(ranges)


@st.composite
def batches(draw: st.DrawFn, max_count: int = 12, defer: bool = True) -> MessageBatch:
    """Return any batch: one size or several, any ids, with or without stamps and a delay."""
    count = draw(st.integers(1, max_count))
    one_size = st.integers(0, 40).flatmap(lambda size: st.binary(min_size=size, max_size=size))
    body = draw(st.sampled_from([st.binary(max_size=30), st.just(b"same"), st.just(b"")]))
    values = [draw(body) for _ in range(count)]
    if draw(st.booleans()):
        values = [draw(one_size)] * count
    kind = draw(st.sampled_from(["strided", "plain", "packed", "list"]))
    stamps = None
    first_ns = draw(st.sampled_from([NS, 0, -1, 2**63 - 1000]))
    if draw(st.booleans()):
        stamps = ListColumn([pack(">q", first_ns + index) for index in range(count)])
    defer_ms = draw(st.sampled_from([0, 1, 2**32, 2**63])) if defer else 0
    return MessageBatch(
        bodies_of(kind, values), draw(id_columns(count)), first_ns, defer_ms, stamps
    )


def simple_batch(values: list[bytes], first_id: int = 0x1234_5678_9ABC_D000) -> MessageBatch:
    """Return a batch as a publish makes it."""
    prefix, start = b"%013x" % (first_id >> 12), first_id & 0xFFF
    ids = RangeIds([(prefix, start, start + len(values))])
    return MessageBatch(bodies_of("plain", values), ids, NS)


def segment_bytes(
    found: list[MessageBatch], header: SegmentHeader = HEADER
) -> tuple[bytes, list[int], list[int]]:
    """Return the segment that holds these batches, where each record begins, and its sequence.

    Both lists have the end as their last value.
    """
    pieces, sequence = [header.to_bytes()], header.first_sequence
    offsets, sequences = [len(pieces[0])], [sequence]
    for batch in found:
        pieces.append(b"".join(encode_record(batch, sequence, header)))
        sequence += batch.count
        offsets.append(offsets[-1] + len(pieces[-1]))
        sequences.append(sequence)
    return b"".join(pieces), offsets, sequences
