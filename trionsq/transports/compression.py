"""Compression as a layer: raw DEFLATE and the snappy framing format.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

import zlib
from typing import Final

import snappy

from trionsq.transports.transport import BrokenStreamError

__all__ = ["DeflateLayer", "SnappyLayer"]

# Raw DEFLATE: without a header, with the largest window.
_RAW: Final = -zlib.MAX_WBITS

# The snappy framing format: chunks of at most 64 KiB, each with its checksum.
_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_HEADER_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 4
_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_SKIPPABLE_FROM: Final = 0x80
_STREAM_IDENTIFIER: Final = 0xFF
_MAX_PLAIN_BYTES: Final = 65_536
# The largest compressed size of 64 KiB, by the bound that the format states.
_MAX_COMPRESSED_BYTES: Final = 32 + _MAX_PLAIN_BYTES + _MAX_PLAIN_BYTES // 6
# Of the length at the start of a compressed chunk, which has seven bits in each byte.
_MAX_VARINT_BYTES: Final = 3


class DeflateLayer:
    """One raw DEFLATE stream in each direction; see `trionsq.transports.transport.Layer`.

    The stream is flushed after each write.
    """

    __slots__ = ("_compressor", "_decompressor", "_finished", "_tail", "at_end", "has_more")

    def __init__(self, level: int) -> None:
        """``level``: 1 (fast) to 9 (small)."""
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._decompressor = zlib.decompressobj(_RAW)
        self._tail = b""
        self._finished = False
        self.has_more = False
        self.at_end = False

    def __repr__(self) -> str:
        return "deflate"

    def encode(self, data: bytes | memoryview) -> bytes:
        compressed = self._compressor.compress(data)
        return compressed + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        decompressor = self._decompressor
        try:
            plain = decompressor.decompress(self._tail + data, max_bytes)
        except zlib.error as error:
            raise BrokenStreamError(f"deflate: {error}") from error
        self._tail = decompressor.unconsumed_tail
        self.at_end = decompressor.eof
        # At the limit the decompressor may hold more output, even if it took all input.
        self.has_more = len(plain) >= max_bytes and not self.at_end
        return plain

    def take_reply(self) -> bytes:
        return b""

    def end_stream(self) -> bytes:
        if self._finished:
            return b""
        self._finished = True
        return self._compressor.flush(zlib.Z_FINISH)


class SnappyLayer:
    """The snappy framing format; see `trionsq.transports.transport.Layer`.

    The library decodes chunks. This class decides how many it decodes at once, so that one read
    does not inflate without bound.
    """

    __slots__ = ("_begun", "_compressor", "_decompressor", "_skip", "_tail", "at_end", "has_more")

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()
        self._tail = b""
        # Bytes still to come of a chunk that is skipped.
        self._skip = 0
        self._begun = False
        self.has_more = False
        self.at_end = False

    def __repr__(self) -> str:
        return "snappy"

    def encode(self, data: bytes | memoryview) -> bytes:
        compressed: bytes = self._compressor.add_chunk(bytes(data))
        return compressed

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        raw = self._tail + data if self._tail else data
        chunks, done = self._split_chunks(raw, max_bytes)
        self._tail = raw[done:]
        if not chunks:
            return b""
        try:
            plain: bytes = self._decompressor.decompress(chunks)
        except OSError as error:
            raise BrokenStreamError(str(error)) from error
        return plain

    def _split_chunks(self, raw: bytes, max_bytes: int) -> tuple[bytes, int]:
        """Return the chunks to decode now, and how many bytes of ``raw`` they take up."""
        kept: list[bytes] = []
        at = start = plain_bytes = 0
        self.has_more = False
        while True:
            if self._skip:
                kept.append(raw[start:at])
                skipped = min(self._skip, len(raw) - at)
                self._skip -= skipped
                at = start = at + skipped
            if len(raw) - at < _HEADER_BYTES:
                break
            kind = raw[at]
            end = at + _HEADER_BYTES + int.from_bytes(raw[at + 1 : at + _HEADER_BYTES], "little")
            self._check(kind, end - at - _HEADER_BYTES)
            if kind >= _SKIPPABLE_FROM and kind != _STREAM_IDENTIFIER:
                self._skip = end - at
                continue
            if end > len(raw):
                break
            if kind == _STREAM_IDENTIFIER:
                if raw[at:end] != _IDENTIFIER:
                    raise BrokenStreamError("snappy: bad stream identifier")
            else:
                nbytes = _plain_size(kind, raw, at, end)
                if plain_bytes and plain_bytes + nbytes > max_bytes:
                    self.has_more = True
                    break
                plain_bytes += nbytes
            at = end
        kept.append(raw[start:at])
        return b"".join(kept), at

    def _check(self, kind: int, nbytes: int) -> None:
        if kind == _STREAM_IDENTIFIER:
            if nbytes != len(_IDENTIFIER) - _HEADER_BYTES:
                raise BrokenStreamError("snappy: bad stream identifier")
            self._begun = True
        elif not self._begun:
            raise BrokenStreamError("snappy: no stream identifier")
        elif kind == _COMPRESSED:
            if nbytes > _CHECKSUM_BYTES + _MAX_COMPRESSED_BYTES:
                raise BrokenStreamError("snappy: chunk too long")
        elif kind == _UNCOMPRESSED:
            if nbytes > _CHECKSUM_BYTES + _MAX_PLAIN_BYTES:
                raise BrokenStreamError("snappy: chunk too long")
        elif kind < _SKIPPABLE_FROM:
            raise BrokenStreamError(f"snappy: unknown chunk {kind:#x}")

    def take_reply(self) -> bytes:
        return b""

    def end_stream(self) -> bytes:
        return b""


def _plain_size(kind: int, raw: bytes, at: int, end: int) -> int:
    """The decoded length that a chunk states."""
    at += _HEADER_BYTES + _CHECKSUM_BYTES
    if kind == _UNCOMPRESSED:
        return max(end - at, 0)
    nbytes = 0
    for shift, byte in enumerate(raw[at : min(end, at + _MAX_VARINT_BYTES)]):
        nbytes |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            break
    else:
        raise BrokenStreamError("snappy: chunk without a length")
    if nbytes > _MAX_PLAIN_BYTES:
        raise BrokenStreamError("snappy: chunk too long")
    return nbytes
