"""Peeking at messages without removing them, within limits.

A `Page` is offered messages in order and keeps those that fit. Messages in memory are offered at
once; a backend returns a view of its present messages, which may be read later in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeVar

from trionsq.core.batch import Segment

__all__ = [
    "MAX_SEGMENTS",
    "BackendView",
    "Page",
    "PeekStale",
    "PeekTooFar",
    "Peeked",
    "in_order",
    "show_segments",
]

T = TypeVar("T", bound=tuple[Any, ...])

# Segments in memory that may be skipped: one or two milliseconds of the event loop.
MAX_SEGMENTS: Final = 20_000
_ATTEMPTS_MASK: Final = 0xFFFF


class PeekTooFar(Exception):
    """Too many messages lie before the offset."""


class PeekStale(Exception):
    """The messages of a view are gone; a new view may succeed. The text says which."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """One message of a page.

    Attributes:
        timestamp_ns: when it was published, in nanoseconds since the epoch.
        attempts: deliveries so far, modulo 2**16.
        body: the body, or its beginning.
        body_nbytes: size of the whole body.
        due_ns: when a deferred message is due, in nanoseconds since the epoch; else None.
        on_disk: whether only the disk has it.
    """

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes
    body_nbytes: int
    due_ns: int | None = None
    on_disk: bool = False


class Page:
    """Messages that are shown together.

    Attributes:
        messages: the messages of the page.
        is_full: whether the page takes no more messages.
        more: whether a message was offered that the page did not take.
        trouble: why not all messages could be offered, None if they could.
    """

    __slots__ = ("_max_bytes", "_max_count", "_nbytes_left", "is_full", "messages", "more",
                 "trouble")  # fmt: skip

    def __init__(self, max_count: int, max_bytes: int) -> None:
        """``max_bytes`` limits all bodies together, and is above 0."""
        self._max_count = max_count
        self._max_bytes = self._nbytes_left = max_bytes
        self.messages: list[Peeked] = []
        self.is_full = max_count <= 0
        self.more = False
        self.trouble: str | None = None

    def fits(self, body_nbytes: int) -> int | None:
        """Return how many bytes of the next body fit; None if the page does not take the message.

        A body that is longer than a whole page is cut short, and the last one of its page.
        """
        if not self.is_full and body_nbytes > self._nbytes_left:
            self.is_full = True
            if self._nbytes_left == self._max_bytes:
                return self._max_bytes
        if self.is_full:
            self.more = True
            return None
        return body_nbytes

    def add_message(self, message: Peeked) -> None:
        """Add a message whose body `fits` has measured."""
        self.messages.append(message)
        self._nbytes_left -= len(message.body)
        if len(self.messages) == self._max_count:
            self.is_full = True

    def offer_message(
        self, segment: Segment, index: int, due_ns: int | None = None, *, on_disk: bool = False
    ) -> bool:
        """Add a message that was read; False if the page is full."""
        batch = segment.batch
        if self.is_full:
            self.more = True
            return False
        body = batch.bodies.body_at(index)
        length = self.fits(len(body))
        if length is None:
            return False
        (id_,) = batch.ids.slice(index, index + 1)
        timestamp_ns = int.from_bytes(batch.stamp(index), "big", signed=True)
        attempts = segment.attempts & _ATTEMPTS_MASK
        peeked = Peeked(id_, timestamp_ns, attempts, body[:length], len(body), due_ns, on_disk)
        self.add_message(peeked)
        return True


class BackendView(Protocol):
    """The messages of a backend at one moment."""

    def read(self, skip: int, page: Page) -> None:
        """Offer all messages after the first ``skip``; sets `Page.trouble` where reading fails.

        Called in a thread; costs bounded time and memory.

        Raises:
            PeekTooFar: too many messages lie before the offset.
            PeekStale: the messages are no longer there.
        """


def show_segments(segments: Iterable[Segment], skip: int, page: Page) -> int:
    """Offer all messages after the first ``skip``; returns how many are still to be skipped.

    Raises:
        PeekTooFar: too many segments lie before the offset.
    """
    for passed, segment in enumerate(segments):
        count = segment.last - segment.first
        if skip >= count:
            if passed == MAX_SEGMENTS:
                raise PeekTooFar
            skip -= count
            continue
        batch = segment.batch
        due_ns = batch.timestamp_ns + batch.defer_ms * 1_000_000 if batch.defer_ms else None
        for index in range(segment.first + skip, segment.last):
            if not page.offer_message(segment, index, due_ns):
                return 0
        skip = 0
    return skip


def in_order(heap: list[T]) -> Iterator[T]:
    """Yield the entries of a heap, the smallest first; the size of the heap costs nothing."""
    if not heap:
        return
    candidates = [(heap[0], 0)]
    while candidates:
        entry, place = heappop(candidates)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(candidates, (heap[child], child))
