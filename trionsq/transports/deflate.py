"""Raw DEFLATE: one stream for each direction, flushed after each write.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

import zlib
from typing import Final

from trionsq.transports.layered import BrokenStreamError

__all__ = ["DeflateLayer"]

# Without a header, with the largest window.
_RAW: Final = -zlib.MAX_WBITS


class DeflateLayer:
    """See `trionsq.transports.layered.Layer`."""

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

    def decode(self, data: bytes, nbytes_max: int) -> bytes:
        decompressor = self._decompressor
        try:
            plain = decompressor.decompress(self._tail + data, nbytes_max)
        except zlib.error as error:
            raise BrokenStreamError(f"deflate: {error}") from error
        self._tail = decompressor.unconsumed_tail
        self.at_end = decompressor.eof
        # At the limit there may be more inside, even if all input was taken.
        self.has_more = len(plain) >= nbytes_max and not self.at_end
        return plain

    def answer(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        if self._finished:
            return b""
        self._finished = True
        return self._compressor.flush(zlib.Z_FINISH)
