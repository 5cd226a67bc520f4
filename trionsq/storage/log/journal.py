"""Journals as bytes: copies of what was written to segments, each with the place that it has there.

A piece is written to its segment as well, then or later, so replaying it, however often, changes
nothing but what a crash has torn or held up. The bytes, one by one: docs/log-format.md. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from trionsq.storage.log.format import FormatError, UnsupportedError

__all__ = [
    "JOURNAL_HEADER_BYTES",
    "SPARE_JOURNAL",
    "JournalDamage",
    "JournalPiece",
    "encode_journal_header",
    "encode_piece",
    "journal_name",
    "journal_number",
    "parse_journal",
]

SPARE_JOURNAL: Final = "trionsq.journal.tmp"
"""The name of a journal before it counts."""

_VERSION: Final = 1
_MAGIC: Final = b"TRIONSQJ"
# magic, version, 0, salt, time of creation, 0; the CRC of all this follows.
_HEADER: Final = Struct(">8sHHIqI")
_CRC: Final = Struct(">I")
_PREFIX: Final = Struct(">4sI")
_COPY_BYTES: Final = _HEADER.size + _CRC.size

JOURNAL_HEADER_BYTES: Final = 2 * _COPY_BYTES
"""Bytes of a journal before its first piece: the header stands there twice."""

_MARKER: Final = b"\xf5LJ\x01"
# Behind the marker and the CRC of the head: round, incarnation, first sequence and salt of the
# segment, offset in it, size of the data, CRC of the data.
_HEAD: Final = Struct(">QQQIQII")
_HEAD_BYTES: Final = len(_MARKER) + _CRC.size + _HEAD.size

# Used with fullmatch only.
_NAME: Final = re.compile(r"trionsq\.journal\.([0-9]{8,20})\.dat")


@dataclass(slots=True, init=False)
class JournalPiece:
    """What was written to a segment at once.

    Attributes:
        incarnation, first, salt: of the segment; a file with another salt is not meant.
        offset: where it stands in the segment.
        data: records.
    """

    incarnation: int
    first: int
    salt: int
    offset: int
    data: bytes

    # See `trionsq.wire.events.Publish`.
    def __init__(self, incarnation: int, first: int, salt: int, offset: int, data: bytes) -> None:
        self.incarnation = incarnation
        self.first = first
        self.salt = salt
        self.offset = offset
        self.data = data


@dataclass(frozen=True, slots=True)
class JournalDamage:
    """A stretch of a journal that holds no good piece, and was durable once."""

    offset: int
    end: int


def journal_name(number: int) -> str:
    """Return the name of a journal."""
    return f"trionsq.journal.{number:08d}.dat"


def journal_number(name: str) -> int | None:
    """Return the number of a journal; None if the file is none."""
    match = _NAME.fullmatch(name)
    return None if match is None or journal_name(int(match[1])) != name else int(match[1])


def encode_journal_header(salt: int, created_ns: int) -> bytes:
    """Return the JOURNAL_HEADER_BYTES with which a journal begins."""
    fields = _HEADER.pack(_MAGIC, _VERSION, 0, salt, created_ns, 0)
    return 2 * (fields + _CRC.pack(crc32(fields)))


def _salt_of(data: bytes) -> int:
    for at in (0, _COPY_BYTES):
        fields = data[at : at + _HEADER.size]
        if fields.startswith(_MAGIC) and data[at + _HEADER.size : at + _COPY_BYTES] == _CRC.pack(
            crc32(fields)
        ):
            _, version, _, salt, _, _ = _HEADER.unpack(fields)
            if version != _VERSION:
                raise UnsupportedError(f"the journal has version {version}, not {_VERSION}")
            return int(salt)
    raise FormatError("the file does not begin with the header of a journal")


def encode_piece(piece: JournalPiece, salt: int, round_: int) -> list[bytes]:
    """Return a piece as a journal with this salt has it: to be written one behind the other.

    ``round_`` is a number that rises with each fsync.
    """
    of, data = piece, piece.data
    crc = crc32(data, salt)
    head = _HEAD.pack(round_, of.incarnation, of.first, of.salt, of.offset, len(data), crc)
    return [_PREFIX.pack(_MARKER, crc32(head, salt)), head, data]


def parse_journal(data: bytes) -> Iterator[JournalPiece | JournalDamage]:
    """Yield the good pieces of a journal, in order, and damage when that is sure.

    A bad stretch in the last round is what a crash has torn: nobody was told of that round.

    Raises:
        UnsupportedError: a later release made the file.
        FormatError: the header is damaged.
    """
    salt = _salt_of(data)
    at = good_end = JOURNAL_HEADER_BYTES
    unsure: list[JournalDamage] = []
    last_round = 0
    while (at := data.find(_MARKER, at)) >= 0:
        found = _piece_at(data, at, salt)
        if found is None:
            at += 1
            continue
        round_, piece = found
        if round_ > last_round:
            yield from unsure
            unsure, last_round = [], round_
        if at > good_end:
            unsure.append(JournalDamage(good_end, at))
        yield piece
        at = good_end = at + _HEAD_BYTES + len(piece.data)


def _piece_at(data: bytes, at: int, salt: int) -> tuple[int, JournalPiece] | None:
    """Return the round of a piece, and the piece; None if no good one begins there."""
    begin = at + len(_MARKER) + _CRC.size
    head = data[begin : begin + _HEAD.size]
    # The head comes first: data full of markers must not cost a CRC of the data for each.
    if len(head) < _HEAD.size or data[at + len(_MARKER) : begin] != _CRC.pack(crc32(head, salt)):
        return None
    round_, incarnation, first, segment_salt, offset, nbytes, crc = _HEAD.unpack(head)
    body = data[begin + _HEAD.size : begin + _HEAD.size + nbytes]
    if len(body) < nbytes or crc32(body, salt) != crc:
        return None
    return round_, JournalPiece(incarnation, first, segment_salt, offset, body)
