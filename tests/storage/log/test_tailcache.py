"""What the cache of a log has of publishes with a key."""

from __future__ import annotations

from tests.core.helpers import batch, contents
from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.keys import PublishKey
from trionsq.storage.log.tailcache import joined_keyed


def published(
    first: int, count: int = 1, *, key: bytes = b"k", size: int = 16, defer_ms: int = 0
) -> MessageBatch:
    """Messages of a log, from this sequence on; an empty key is none."""
    made = batch(first, count, (size,), defer_ms)
    made.sequences = range(first, first + count)
    made.key = PublishKey(key, b"d" * 16) if key else None
    return made


def test_small_publishes_with_a_key_go_on_together() -> None:
    """With all that consumers and cursors see of them; what has no key, is large or is not
    adjacent stays apart. So does what is deferred: it may be for one channel alone."""
    given = [
        *(published(number) for number in range(3)),
        published(3, 2),
        published(5, key=b""),
        published(6),
        published(7, size=5_000),
        published(8),
        published(9, defer_ms=7),
        published(10, defer_ms=7),
        published(11),
        published(13),
    ]
    found = list(joined_keyed(given))
    spans = [(one.sequences[0], one.sequences[-1], one.defer_ms) for one in found if one.sequences]
    assert spans == [
        *((0, 4, 0), (5, 5, 0), (6, 6, 0), (7, 7, 0), (8, 8, 0)),
        *((9, 9, 7), (10, 10, 7), (11, 11, 0), (13, 13, 0)),
    ]

    def seen(batches: list[MessageBatch]) -> list[object]:
        return [
            (*message, one.stamp(at), (one.sequences or ())[at])
            for one in batches
            for at, message in enumerate(contents(Segment(one, 0, one.count)))
        ]

    assert seen(found) == seen(given)


def test_what_goes_on_together_is_bounded() -> None:
    """In messages, and in bytes."""
    assert [one.count for one in joined_keyed(map(published, range(1_000)))] == [512, 488]
    large = [published(number, size=4_000) for number in range(20)]
    assert [one.count for one in joined_keyed(large)] == [16, 4]
