"""How much of the logs all topics of a node together may have in memory."""

from __future__ import annotations

from collections import deque
from typing import Final

from trionsq.storage.log.tailcache import TailCache

__all__ = ["CacheBudget", "ReadBudget"]

_CACHE_BYTES: Final = 40 * 1024 * 1024
# What a consumer behind reads at once; less when all of them together have read much ahead.
_BLOCK_BYTES: Final = 256 * 1024
_SMALL_BLOCK_BYTES: Final = 16 * 1024
_READ_AHEAD_BYTES: Final = 64 * 1024 * 1024


class CacheBudget:
    """The newest batches of all topics: the oldest leave, of whatever topic."""

    def __init__(self) -> None:
        self._batches: deque[tuple[TailCache, int]] = deque()
        self._nbytes = 0

    def __repr__(self) -> str:
        return f"<CacheBudget {self._nbytes} bytes in {len(self._batches)} batches>"

    def count_batch(self, cache: TailCache, nbytes: int) -> None:
        """Count a batch that a cache has got."""
        self._batches.append((cache, nbytes))
        self._nbytes += nbytes
        while self._nbytes > _CACHE_BYTES:
            oldest, size = self._batches.popleft()
            self._nbytes -= size
            oldest.evict_batch()


class ReadBudget:
    """What is read ahead for consumers that are behind."""

    def __init__(self) -> None:
        self._nbytes = 0

    def __repr__(self) -> str:
        return f"<ReadBudget {self._nbytes} bytes>"

    def take_block(self) -> int:
        """Return how much the next read should bring, which counts from now on."""
        nbytes = _BLOCK_BYTES if self._nbytes < _READ_AHEAD_BYTES else _SMALL_BLOCK_BYTES
        self._nbytes += nbytes
        return nbytes

    def release(self, nbytes: int) -> None:
        """So much of what was read is let go."""
        self._nbytes -= nbytes
