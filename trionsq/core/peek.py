"""Looking at messages without taking them: what is shown, and the bounds of a look.

A `Page` is offered messages in order, and says which of them it shows. Messages of memory are
looked at on the spot; a backend gives a view of what it holds now, which may be read later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeVar

from trionsq.core.batch import Segment

__all__ = [
    "SEGMENTS_MAX",
    "BackendView",
    "Page",
    "PeekStale",
    "PeekTooFar",
    "Peeked",
    "in_order",
    "show_segments",
]

T = TypeVar("T", bound=tuple[Any, ...])

# So many segments of memory are passed at most: a millisecond or two of the event loop.
SEGMENTS_MAX: Final = 20_000
_ATTEMPTS_MASK: Final = 0xFFFF


class PeekTooFar(Exception):
    """To get to the offset would cost too much."""


class PeekStale(Exception):
    """What the view is of has gone meanwhile; a new one may fare better. The text says what."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message as it is shown.

    Attributes:
        timestamp_ns: time of publishing, nanoseconds since the epoch.
        attempts: deliveries so far, modulo 2**16.
        body: the body, or its beginning.
        body_nbytes: size of the whole body.
        due_ns: if it is deferred, when it is due, nanoseconds since the epoch.
    """

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes
    body_nbytes: int
    due_ns: int | None = None


class Page:
    """Messages that are shown together.

    Attributes:
        messages: those that it has.
        is_full: whether it shows no more.
        more: whether a message was offered that it does not show.
        trouble: why the look ended before the end of the messages, None if it did not.
    """

    __slots__ = ("_count_max", "_nbytes_left", "_nbytes_max", "is_full", "messages", "more",
                 "trouble")  # fmt: skip

    def __init__(self, count_max: int, nbytes_max: int) -> None:
        """``nbytes_max`` is for the bodies together, and above 0."""
        self._count_max = count_max
        self._nbytes_max = self._nbytes_left = nbytes_max
        self.messages: list[Peeked] = []
        self.is_full = count_max <= 0
        self.more = False
        self.trouble: str | None = None

    def fits(self, body_nbytes: int) -> int | None:
        """How many bytes of the next message's body are shown; None if the message is not.

        A body that is longer than all of a page is cut, and the last one of its page.
        """
        if not self.is_full and body_nbytes > self._nbytes_left:
            self.is_full = True
            if self._nbytes_left == self._nbytes_max:
                return self._nbytes_max
        if self.is_full:
            self.more = True
            return None
        return body_nbytes

    def add_message(self, message: Peeked) -> None:
        """Show a message whose body `fits` has measured."""
        self.messages.append(message)
        self._nbytes_left -= len(message.body)
        if len(self.messages) == self._count_max:
            self.is_full = True

    def offer_message(self, segment: Segment, index: int, due_ns: int | None = None) -> bool:
        """Show a message of memory; False if the page is full."""
        batch = segment.batch
        if self.is_full:
            self.more = True
            return False
        body = batch.bodies.body_at(index)
        shown = self.fits(len(body))
        if shown is None:
            return False
        (id_,) = batch.ids.slice(index, index + 1)
        timestamp_ns = int.from_bytes(batch.stamp(index), "big", signed=True)
        attempts = segment.attempts & _ATTEMPTS_MASK
        self.add_message(Peeked(id_, timestamp_ns, attempts, body[:shown], len(body), due_ns))
        return True


class BackendView(Protocol):
    """What a backend held at one moment."""

    def read(self, skip: int, page: Page) -> None:
        """Offer all messages but the first ``skip``; sets `Page.trouble` where it can't go on.

        To be called in a thread; costs bounded time and memory.

        Raises:
            PeekTooFar: too much lies before the messages that were asked for.
            PeekStale: the messages are not where they were.
        """


def show_segments(segments: Iterable[Segment], skip: int, page: Page) -> int:
    """Offer the messages of segments but the first ``skip``; how many are still to be skipped.

    Raises:
        PeekTooFar: too many segments lie before the messages that were asked for.
    """
    for passed, segment in enumerate(segments):
        count = segment.last - segment.first
        if skip >= count:
            if passed == SEGMENTS_MAX:
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
    """The entries of a heap, the smallest first, at a cost that does not depend on its size."""
    if not heap:
        return
    next_ones = [(heap[0], 0)]
    while next_ones:
        entry, place = heappop(next_ones)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(next_ones, (heap[child], child))
