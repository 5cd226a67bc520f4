"""Segments of a log as bytes: the header of a file, and the heads of its records. Pure.

A record is a head, and a section with what belongs to single messages (`batches`). Each has a CRC
that begins with the segment's salt: no publisher can forge a record inside of a body, and a block
of a deleted file is no record of the next one.

The bytes, one by one: docs/log-format.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

__all__ = [
    "EQUAL_SIZES",
    "IDS_IN_SECTION",
    "MARKER",
    "MAX_HEAD_BYTES",
    "MAX_RANGES",
    "SEGMENT_HEADER_BYTES",
    "STAMPS_IN_SECTION",
    "FormatError",
    "Incomplete",
    "Origin",
    "RecordHead",
    "SegmentHeader",
    "UnsupportedError",
    "encode_extra",
    "encode_head",
    "parse_head",
]

_VERSION: Final = 1
_MAGIC: Final = b"TRIONSQL"
_NONE: Final = 2**64 - 1
# magic, version, 0, salt, incarnation, first sequence, first sequence of the previous segment, its
# end, time of creation, 0; the CRC of all this follows.
_SEGMENT: Final = Struct(">8sHHIQQQQqI")
_COPY_BYTES: Final = _SEGMENT.size + 4
_REMAINDER: Final = 1

SEGMENT_HEADER_BYTES: Final = 2 * _COPY_BYTES
"""Bytes of a segment before its first record: the header stands there twice."""

MARKER: Final = b"\xf5LR\x01"
"""How each record begins."""

_CRC: Final = Struct(">I")
_PREFIX: Final = Struct(">4sI")
# Behind the marker and the CRC of the head: size of the section, its CRC, incarnation, sequence,
# count, flags, size of the extra items, timestamp, delay.
_CHECKED: Final = Struct(">IIQQIHHqQ")
_PREFIX_BYTES: Final = _PREFIX.size
_FIXED_BYTES: Final = _PREFIX_BYTES + _CHECKED.size
# A limit on what the CRC of a forged head can cost a reader that looks for the next record.
_MAX_EXTRA_BYTES: Final = 4096

MAX_HEAD_BYTES: Final = _FIXED_BYTES + _MAX_EXTRA_BYTES
"""The longest head of a record."""

# Flags: what the section of a record has.
IDS_IN_SECTION: Final = 1
STAMPS_IN_SECTION: Final = 2
EQUAL_SIZES: Final = 4
_ALL_FLAGS: Final = IDS_IN_SECTION | STAMPS_IN_SECTION | EQUAL_SIZES

# Extra items of a head.
_RANGES: Final = 1
_KEY: Final = 2
_ORIGIN: Final = 3
_DIGEST: Final = 4
_ROUND: Final = 5
_ITEM: Final = Struct(">BH")
_RANGE: Final = Struct(">QI")
_ONE_RANGE: Final = Struct(">BHQI")
_POSITION: Final = Struct(">Q")

MAX_RANGES: Final = 64
"""Ids in more ranges than this stand in the section."""

Origin = tuple[str, int]
"""Name of the file that a moved message was in, and its position there."""


class FormatError(Exception):
    """The bytes are no segment, or no record of this one."""


class Incomplete(FormatError):
    """The bytes end within the head of a record."""


class UnsupportedError(FormatError):
    """A later release wrote this. It is not damaged: nothing of it may be cut or skipped."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says about itself.

    Attributes:
        incarnation: number of the topic that the messages belong to; never given again.
        first_sequence: that the first record has, or a higher one.
        salt: a random number: where the CRCs of the segment begin.
        created_ns: when the file was made, in nanoseconds since the epoch.
        previous_first: first sequence of the segment before this one; None if there is none.
        previous_end: size up to which that segment counts; None if it was not known.
        is_remainder: the segment has what is still needed of older ones, and their place.
    """

    incarnation: int
    first_sequence: int
    salt: int
    created_ns: int
    previous_first: int | None = None
    previous_end: int | None = None
    is_remainder: bool = False

    def to_bytes(self) -> bytes:
        """Return the SEGMENT_HEADER_BYTES with which the file begins."""
        previous = [_NONE if it is None else it for it in (self.previous_first, self.previous_end)]
        fields = _SEGMENT.pack(
            _MAGIC,
            _VERSION,
            0,
            self.salt,
            self.incarnation,
            self.first_sequence,
            *previous,
            self.created_ns,
            _REMAINDER if self.is_remainder else 0,
        )
        return 2 * (fields + _CRC.pack(crc32(fields)))

    @classmethod
    def parse(cls, data: bytes) -> SegmentHeader:
        """Return the header at the beginning of a file. One of its two copies may be damaged.

        Raises:
            UnsupportedError: a later release made the file.
            FormatError: the file is no segment, or its header is damaged.
        """
        for at in cls.good_copies(data):
            _, version, _, salt, number, first, *previous, created_ns, flags = _SEGMENT.unpack_from(
                data, at
            )
            if version != _VERSION:
                raise UnsupportedError(f"the segment has version {version}, not {_VERSION}")
            before, end = (None if it == _NONE else it for it in previous)
            is_remainder = bool(flags & _REMAINDER)
            return cls(number, first, salt, created_ns, before, end, is_remainder)
        raise FormatError("the file does not begin with the header of a segment")

    @staticmethod
    def good_copies(data: bytes) -> list[int]:
        """Return at which offsets a copy of the header stands: of two, damage may leave fewer."""
        good = []
        for at in range(0, min(len(data), SEGMENT_HEADER_BYTES) - _COPY_BYTES + 1, _COPY_BYTES):
            end = at + _SEGMENT.size
            if data.startswith(_MAGIC, at):
                (crc,) = _CRC.unpack_from(data, end)
                if crc == crc32(data[at:end]):
                    good.append(at)
        return good


@dataclass(slots=True)
class RecordHead:
    """The head of a record.

    Attributes:
        offset: where the record begins in its file.
        nbytes: of the head.
        body_nbytes: of the section behind it.
        body_crc: of the section, from the segment's salt on.
        sequence: of the first message.
        count: number of messages.
        timestamp_ns: when the first message was published, in nanoseconds since the epoch.
        defer_ms: delay before the first delivery.
        flags: what the section has.
        ids: the first id and the count of each range of ids; None if the section has the ids.
        key: of an idempotent publish.
        origin: where moved messages came from.
        digest: of an idempotent publish.
        round_offset: where the first record of its round begins; None if that is not said.
    """

    offset: int
    nbytes: int
    body_nbytes: int
    body_crc: int
    sequence: int
    count: int
    timestamp_ns: int
    defer_ms: int
    flags: int
    ids: tuple[tuple[int, int], ...] | None = None
    key: bytes | None = None
    origin: Origin | None = None
    digest: bytes | None = None
    round_offset: int | None = None

    @property
    def body_offset(self) -> int:
        """Where the section begins in the file."""
        return self.offset + self.nbytes

    @property
    def end(self) -> int:
        """Offset behind the record."""
        return self.offset + self.nbytes + self.body_nbytes

    @property
    def next_sequence(self) -> int:
        """The sequence behind the last message."""
        return self.sequence + self.count


def encode_extra(
    ids: Sequence[tuple[int, int]] | None,
    key: bytes | None = None,
    digest: bytes | None = None,
    round_offset: int | None = None,
    origin: Origin | None = None,
) -> bytes:
    """Return the extra items of a head; the arguments are attributes of `RecordHead`.

    Raises:
        FormatError: they are too long for a record.
    """
    if ids is None:
        extra = b""
    elif len(ids) == 1:
        extra = _ONE_RANGE.pack(_RANGES, _RANGE.size, *ids[0])
    else:
        extra = _item(_RANGES, b"".join([_RANGE.pack(*one) for one in ids]))
    if key is not None:
        extra += _item(_KEY, key)
    if digest:
        extra += _item(_DIGEST, digest)
    if round_offset is not None:
        extra += _item(_ROUND, _POSITION.pack(round_offset))
    if origin is not None:
        name, position = origin
        extra += _item(_ORIGIN, _POSITION.pack(position) + name.encode())
    if len(extra) > _MAX_EXTRA_BYTES:
        raise FormatError(f"{len(extra)} bytes of extra items are too many for a record")
    return extra


def encode_head(
    header: SegmentHeader,
    body_nbytes: int,
    body_crc: int,
    sequence: int,
    count: int,
    flags: int,
    timestamp_ns: int,
    defer_ms: int,
    extra: bytes,
) -> bytes:
    """Return a head as bytes; the arguments are attributes of `RecordHead`, and its extra items.

    Raises:
        FormatError: the section is too long for a record.
    """
    if body_nbytes >= 2**32:
        raise FormatError(f"{body_nbytes} bytes are too many for a record")
    checked = (
        _CHECKED.pack(
            body_nbytes,
            body_crc,
            header.incarnation,
            sequence,
            count,
            flags,
            len(extra),
            timestamp_ns,
            defer_ms,
        )
        + extra
    )
    return _PREFIX.pack(MARKER, crc32(checked, header.salt)) + checked


def _item(kind: int, data: bytes) -> bytes:
    if len(data) > _MAX_EXTRA_BYTES:
        raise FormatError(f"an extra item of {len(data)} bytes is too long for a record")
    return _ITEM.pack(kind, len(data)) + data


def parse_head(data: bytes, at: int, header: SegmentHeader, offset: int) -> RecordHead:
    """Return the head of the record at index ``at``, which is ``offset`` in the file.

    Raises:
        Incomplete: the data ends within what may be a head.
        UnsupportedError: a later release wrote the record.
        FormatError: no record of this segment begins here.
    """
    left = len(data) - at
    if not data.startswith(MARKER, at):
        if 0 <= left < len(MARKER) and MARKER.startswith(data[at:]):
            raise Incomplete("the data ends within a record's marker")
        raise FormatError("there is no record's marker")
    if left < _FIXED_BYTES:
        raise Incomplete("the data ends within the head of a record")
    nbytes, crc, incarnation, sequence, count, flags, extra, timestamp_ns, defer_ms = (
        _CHECKED.unpack_from(data, at + _PREFIX_BYTES)
    )
    # What is cheap to see comes first: data full of markers must not cost a CRC for each.
    if incarnation != header.incarnation or extra > _MAX_EXTRA_BYTES:
        raise FormatError("the record does not belong to the segment")
    end = at + _FIXED_BYTES + extra
    if end > len(data):
        raise Incomplete("the data ends within the head of a record")
    (head_crc,) = _CRC.unpack_from(data, at + len(MARKER))
    if head_crc != crc32(data[at + _PREFIX_BYTES : end], header.salt):
        raise FormatError("the CRC of the record's head is wrong")
    if flags & ~_ALL_FLAGS:
        raise UnsupportedError(f"the record at offset {offset} has unknown flags: {flags:#x}")
    if not 0 < count <= nbytes:
        raise FormatError("the record's count of messages is impossible")
    head = RecordHead(offset, end - at, nbytes, crc, sequence, count, timestamp_ns, defer_ms, flags)
    if extra:
        _add_items(head, data[end - extra : end])
    if (head.ids is None) != bool(flags & IDS_IN_SECTION):
        raise FormatError("the ids of the record stand nowhere, or twice")
    return head


def _add_items(head: RecordHead, extra: bytes) -> None:
    at = 0
    while at < len(extra):
        if len(extra) - at < _ITEM.size:
            raise FormatError("the extra items of the record are cut short")
        kind, nbytes = _ITEM.unpack_from(extra, at)
        at += _ITEM.size
        data = extra[at : at + nbytes]
        at += nbytes
        if at > len(extra):
            raise FormatError("the extra items of the record are cut short")
        if kind == _RANGES:
            head.ids = _ranges(data, head.count)
        elif kind == _KEY:
            head.key = data
        elif kind == _DIGEST:
            head.digest = data
        elif kind == _ROUND and nbytes == _POSITION.size:
            (head.round_offset,) = _POSITION.unpack(data)
        elif kind == _ORIGIN:
            head.origin = _origin(data)


def _ranges(data: bytes, count: int) -> tuple[tuple[int, int], ...]:
    if len(data) % _RANGE.size:
        raise FormatError("the ranges of ids are cut short")
    ranges = tuple(_RANGE.iter_unpack(data))
    if sum([size for _, size in ranges]) != count:
        raise FormatError("the record has more or fewer ids than messages")
    if any(first + size > 2**64 for first, size in ranges):
        raise FormatError("a range of ids ends above the highest id")
    return ranges


def _origin(data: bytes) -> Origin:
    if len(data) < _POSITION.size:
        raise FormatError("the origin of the record is cut short")
    try:
        name = data[_POSITION.size :].decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"the origin of the record cannot be read: {error}") from error
    return name, _POSITION.unpack_from(data)[0]
