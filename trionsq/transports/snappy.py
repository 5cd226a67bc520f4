"""The snappy framing format: chunks of at most 64 KiB, each with its checksum.

The library decodes chunks; which of them, and how many at once, is decided here, so that a peer
can't make one read inflate without bound.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

from typing import Final

import snappy

from trionsq.transports.layered import BrokenStreamError

__all__ = ["SnappyLayer"]

_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_HEADER_NBYTES: Final = 4
_CHECKSUM_NBYTES: Final = 4
_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_SKIPPABLE_FROM: Final = 0x80
_STREAM_IDENTIFIER: Final = 0xFF
_PLAIN_NBYTES_MAX: Final = 65_536
# The longest that 64 KiB can become, by the format's own bound.
_COMPRESSED_NBYTES_MAX: Final = 32 + _PLAIN_NBYTES_MAX + _PLAIN_NBYTES_MAX // 6
# Of the length that a compressed chunk begins with, seven bits in each byte.
_VARINT_NBYTES_MAX: Final = 3


class SnappyLayer:
    """See `trionsq.transports.layered.Layer`."""

    __slots__ = ("_begun", "_compressor", "_decompressor", "_skip", "_tail", "at_end", "has_more")

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()
        self._tail = b""
        # Bytes to come of a chunk that means nothing.
        self._skip = 0
        self._begun = False
        self.has_more = False
        self.at_end = False

    def __repr__(self) -> str:
        return "snappy"

    def encode(self, data: bytes | memoryview) -> bytes:
        compressed: bytes = self._compressor.add_chunk(bytes(data))
        return compressed

    def decode(self, data: bytes, nbytes_max: int) -> bytes:
        raw = self._tail + data if self._tail else data
        chunks, done = self._cut(raw, nbytes_max)
        self._tail = raw[done:]
        if not chunks:
            return b""
        try:
            plain: bytes = self._decompressor.decompress(chunks)
        except OSError as error:
            raise BrokenStreamError(str(error)) from error
        return plain

    def _cut(self, raw: bytes, nbytes_max: int) -> tuple[bytes, int]:
        """The chunks to decode now, and how many bytes of ``raw`` are done with them."""
        kept: list[bytes] = []
        at = start = plain_nbytes = 0
        self.has_more = False
        while True:
            if self._skip:
                kept.append(raw[start:at])
                skipped = min(self._skip, len(raw) - at)
                self._skip -= skipped
                at = start = at + skipped
            if len(raw) - at < _HEADER_NBYTES:
                break
            kind = raw[at]
            end = at + _HEADER_NBYTES + int.from_bytes(raw[at + 1 : at + _HEADER_NBYTES], "little")
            self._check(kind, end - at - _HEADER_NBYTES)
            if kind >= _SKIPPABLE_FROM and kind != _STREAM_IDENTIFIER:
                self._skip = end - at
                continue
            if end > len(raw):
                break
            if kind == _STREAM_IDENTIFIER:
                if raw[at:end] != _IDENTIFIER:
                    raise BrokenStreamError("snappy: bad stream identifier")
            else:
                nbytes = _plain_nbytes(kind, raw, at, end)
                if plain_nbytes and plain_nbytes + nbytes > nbytes_max:
                    self.has_more = True
                    break
                plain_nbytes += nbytes
            at = end
        kept.append(raw[start:at])
        return b"".join(kept), at

    def _check(self, kind: int, nbytes: int) -> None:
        if kind == _STREAM_IDENTIFIER:
            if nbytes != len(_IDENTIFIER) - _HEADER_NBYTES:
                raise BrokenStreamError("snappy: bad stream identifier")
            self._begun = True
        elif not self._begun:
            raise BrokenStreamError("snappy: no stream identifier")
        elif kind == _COMPRESSED:
            if nbytes > _CHECKSUM_NBYTES + _COMPRESSED_NBYTES_MAX:
                raise BrokenStreamError("snappy: chunk too long")
        elif kind == _UNCOMPRESSED:
            if nbytes > _CHECKSUM_NBYTES + _PLAIN_NBYTES_MAX:
                raise BrokenStreamError("snappy: chunk too long")
        elif kind < _SKIPPABLE_FROM:
            raise BrokenStreamError(f"snappy: unknown chunk {kind:#x}")

    def answer(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


def _plain_nbytes(kind: int, raw: bytes, at: int, end: int) -> int:
    """The length that a chunk says it has when decoded."""
    at += _HEADER_NBYTES + _CHECKSUM_NBYTES
    if kind == _UNCOMPRESSED:
        return max(end - at, 0)
    nbytes = 0
    for shift, byte in enumerate(raw[at : min(end, at + _VARINT_NBYTES_MAX)]):
        nbytes |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            break
    else:
        raise BrokenStreamError("snappy: chunk without a length")
    if nbytes > _PLAIN_NBYTES_MAX:
        raise BrokenStreamError("snappy: chunk too long")
    return nbytes
