"""What a look shows, and that it takes nothing (trionsq.core.peek)."""

from __future__ import annotations

from heapq import heapify
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.helpers import MemoryBackend, batch, body_of, message_ids, segment
from trionsq.core import peek
from trionsq.core.batch import Segment
from trionsq.core.peek import Page, PeekTooFar, in_order, show_segments
from trionsq.core.queue import MessageQueue
from trionsq.storage.discard import DiscardingBackend


def shown_ids(page: Page) -> list[bytes]:
    return [message.id for message in page.messages]


def queue_of(*counts: int) -> MessageQueue:
    """A queue of segments with so many messages each, their ids in order."""
    queue = MessageQueue()
    numbers = count()
    for size in counts:
        first = next(numbers)
        queue.append(segment(first, size))
        for _ in range(size - 1):
            next(numbers)
    return queue


@given(
    st.lists(st.integers(1, 9), max_size=9), st.integers(0, 90), st.integers(1, 20), st.booleans()
)
def test_a_look_shows_the_messages_from_an_offset_on(
    counts: list[int], offset: int, count_max: int, last_is_begun: bool
) -> None:
    """Whatever segments they lie in; `more` says whether there are others; nothing is taken."""
    queue = queue_of(*counts)
    taken = 0
    if counts and last_is_begun:
        taken = queue.pop_segment(1, 2**30).count
    ids = message_ids(0, sum(counts))[taken:]
    page = Page(count_max, 2**30)
    left = show_segments(queue.peek(), offset, page)
    assert shown_ids(page) == ids[offset : offset + count_max]
    assert page.more == (len(ids) > offset + count_max)
    assert left == max(0, offset - len(ids))
    assert queue.depth == len(ids)


def test_all_of_a_message_is_shown() -> None:
    """Id, time of publishing, attempts as a client would see them, body, and its due time."""
    one = batch(5, 1, sizes=(20,), defer_ms=3)
    page = Page(1, 100)
    show_segments([Segment(one, 0, 1, attempts=2**16 + 7)], 0, page)
    (message,) = page.messages
    (id_,) = message_ids(5, 1)
    assert message == peek.Peeked(
        id_, one.timestamp_ns, 7, body_of(id_, 20), 20, one.timestamp_ns + 3_000_000
    )


def test_bodies_are_bounded_together() -> None:
    """The page ends before a body that does not fit, which is whole on the next one."""
    page = Page(10, 40)
    show_segments([segment(0, 5, sizes=(16,))], 0, page)
    assert [len(message.body) for message in page.messages] == [16, 16]
    assert page.more


def test_a_body_longer_than_all_of_a_page_is_cut() -> None:
    """It is shown as far as the page goes, alone, and with its whole size."""
    page = Page(10, 10)
    show_segments([segment(0, 2, sizes=(16, 16))], 0, page)
    (message,) = page.messages
    assert (message.body, message.body_nbytes) == (body_of(message.id)[:10], 16)
    assert page.more


def test_a_body_of_exactly_the_bound_is_whole() -> None:
    """And the page has no room for another one."""
    page = Page(10, 16)
    show_segments([segment(0, 1, sizes=(16,))], 0, page)
    assert len(page.messages[0].body) == 16
    assert not page.more


def test_a_far_offset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than passed to at any cost; what can be got to is shown."""
    monkeypatch.setattr(peek, "MAX_SEGMENTS", 3)
    queue = queue_of(1, 1, 1, 1, 1)
    page = Page(1, 100)
    show_segments(queue.peek(), 3, page)
    assert shown_ids(page) == message_ids(3, 1)
    with pytest.raises(PeekTooFar):
        show_segments(queue.peek(), 4, Page(1, 100))


@given(st.lists(st.integers(), max_size=50))
def test_a_heap_is_walked_in_order(values: list[int]) -> None:
    """As if sorted, and the heap stays as it is."""
    heap = [(value, place) for place, value in enumerate(values)]
    heapify(heap)
    before = list(heap)
    assert list(in_order(heap)) == sorted(heap)
    assert heap == before


def test_backends_without_messages_have_no_view() -> None:
    """The one that drops, and an empty one."""
    assert DiscardingBackend().peek() is None
    assert MemoryBackend().peek() is None
