"""The keys of idempotent publishes on disk (trionsq.storage.log.storedkeys)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.storage.log.log_samples import simple_batch
from trionsq.core.batch import MessageBatch
from trionsq.core.keys import PublishKey
from trionsq.storage.log.rows import PutMeta
from trionsq.storage.log.storedkeys import StoredKeys

S = 10**9
DIGEST = b"0123456789abcdef"


class Log:
    """A log whose records are durable up to a sequence."""

    def __init__(self) -> None:
        self.number = 7
        self.synced = 0

    def is_synced_to(self, sequence: int) -> bool:
        return self.synced >= sequence


def keyed(text: bytes, sequence: int, time_ns: int) -> MessageBatch:
    """One message of a log, published with a key."""
    batch = simple_batch([b"x"])
    batch.key = PublishKey(text, DIGEST)
    batch.sequences = range(sequence, sequence + 1)
    batch.timestamp_ns = time_ns
    return batch


def found(meta: dict[str, bytes], window_ns: int = 10 * S, max_keys: int = 100) -> list[bytes]:
    """The keys that a start finds, in order."""
    keys = StoredKeys(window_ns, max_keys)
    keys.load(meta)
    return [one.key.text for _, one in keys.pop_found()]


def apply(meta: dict[str, bytes], changes: list[PutMeta]) -> None:
    meta.update((change.key, change.value) for change in changes)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans(), st.booleans()), max_size=30
    )
)
def test_a_start_finds_the_newest_keys(steps: list[tuple[int, int, bool, bool]]) -> None:
    """All that are young enough, or the newest of too many, and few others, over restarts; and the
    state does not grow."""
    meta: dict[str, bytes] = {}
    keys, log = StoredKeys(10 * S, 5), Log()
    now_s = 1000
    saved: list[tuple[bytes, int]] = []
    for count, seconds, commits, starts in steps:
        now_s += seconds
        for _ in range(count):
            text = b"%d" % len(saved)
            keys.note_round(log, [keyed(text, len(saved), now_s * S)], is_durable=True)
            saved.append((text, now_s))
        if commits or starts:
            apply(meta, keys.changes())
            assert keys.changes() == []
            there = found(meta)
            newest_s = saved[-1][1] if saved else 0
            wanted = [text for text, at_s in saved if at_s > newest_s - 10]
            assert there[-5:] == [text for text, _ in saved[-len(there) :]][-5:]
            assert set(wanted[-5:]) <= set(there)
            assert len(there) <= 2 * 5
            assert len(meta) <= 7
        if starts:
            keys = StoredKeys(10 * S, 5)
            keys.load(meta)


def test_a_key_is_saved_when_its_record_is_durable() -> None:
    """Until then a start has to read the record, from the first such one on."""
    keys, log = StoredKeys(10 * S, 100), Log()
    meta: dict[str, bytes] = {}
    keys.note_round(log, [keyed(b"a", 5, S), keyed(b"b", 6, S)], is_durable=False)
    apply(meta, keys.changes())
    assert found(meta) == []
    assert keys.first_unsaved(7) == 5
    log.synced = 6
    keys.note_round(log, [simple_batch([b"x"])], is_durable=False)
    apply(meta, keys.changes())
    assert found(meta) == [b"a"]
    assert keys.first_unsaved(7) == 6
    keys.note_round(log, [keyed(b"c", 7, S)], is_durable=True)
    log.synced = 8
    keys.note_round(log, [], is_durable=True)
    apply(meta, keys.changes())
    assert sorted(found(meta)) == [b"a", b"b", b"c"]
    assert keys.first_unsaved(7) > 2**60


def test_a_place_that_is_free_is_used_again() -> None:
    """A start finds the keys of the other chunks; nothing else of the state is touched."""
    keys, log = StoredKeys(10 * S, 100), Log()
    meta: dict[str, bytes] = {"retention": b"{}"}
    for text in (b"a", b"b", b"c"):
        keys.note_round(log, [keyed(text, 1, S)], is_durable=True)
        apply(meta, keys.changes())
    meta["keys.1"] = b""
    assert found(meta) == [b"a", b"c"]
    keys = StoredKeys(10 * S, 100)
    keys.load(meta)
    keys.note_round(log, [keyed(b"d", 1, S)], is_durable=True)
    apply(meta, keys.changes())
    assert found(meta) == [b"a", b"c", b"d"]
    assert set(meta) == {"retention", "keys.0", "keys.1", "keys.2"}


def test_without_a_window_nothing_is_saved() -> None:
    """A node that ignores keys writes none, though records have them."""
    keys, log = StoredKeys(), Log()
    keys.note_round(log, [keyed(b"a", 1, S)], is_durable=True)
    assert keys.changes() == []
