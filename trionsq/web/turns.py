"""Long work in the event loop: cut into turns, and not done more often than it has to be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

__all__ = ["PIECE_NBYTES", "Pieces", "SharedDocuments"]

T = TypeVar("T")

PIECE_NBYTES: Final = 64 * 1024
"""A document that is made in turns is kept, and sent, in pieces of about so many bytes."""


class Pieces:
    """A document that grows. Small parts are joined, so that few large pieces are kept."""

    __slots__ = ("_nbytes", "_parts", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._parts: list[bytes] = []
        self._nbytes = 0

    def add(self, part: bytes) -> None:
        """Add the next part."""
        self._parts.append(part)
        self._nbytes += len(part)
        if self._nbytes >= PIECE_NBYTES:
            self._join()

    def end(self) -> list[bytes]:
        """All pieces."""
        self._join()
        return self.pieces

    def _join(self) -> None:
        if self._parts:
            self.pieces.append(b"".join(self._parts))
            self._parts.clear()
            self._nbytes = 0


class _Request(Generic[T]):
    """Somebody wants a document that nobody has begun to make. Others may join."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.made: tuple[T] | None = None


class SharedDocuments(Generic[T]):
    """Makes documents, a few at once. Whoever waits for the same one gets the same one.

    A document is shared only by those who asked before it was begun, so that everybody sees what
    happened before they asked.
    """

    def __init__(self, at_once_max: int) -> None:
        """``at_once_max`` is how many documents are made at the same time."""
        self._limiter = trio.CapacityLimiter(at_once_max)
        self._waiting: dict[Hashable, _Request[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The document of that key, which ``make`` makes.

        If whoever makes it is cancelled or fails, one of those who wait for it makes it.
        """
        while (request := self._waiting.get(key)) is not None:
            await request.ended.wait()
            if request.made is not None:
                return request.made[0]
        request = self._waiting[key] = _Request()
        try:
            async with self._limiter:
                del self._waiting[key]
                made = await make()
            request.made = (made,)
            return made
        finally:
            if self._waiting.get(key) is request:
                del self._waiting[key]
            request.ended.set()
