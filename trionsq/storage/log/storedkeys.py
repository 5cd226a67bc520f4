"""The keys of idempotent publishes that a node has on disk, for the window of the next start.

A record has its key. But a start reads few records, and a segment may go while its keys count. So
each commit of the state takes along the keys of what has become durable since the last one, as one
chunk: a value of the node. The other keys are read from the records at a start, which therefore
begins to scan before the first of them. So nobody hears OK for a key whose messages are lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple, Protocol

from trionsq.core.batch import MessageBatch
from trionsq.core.keys import DIGEST_BYTES, PublishKey, StoredKey
from trionsq.storage.log.origins import origin_of
from trionsq.storage.log.rows import PutMeta

__all__ = ["StoredKeys"]

_NAME: Final = "keys."
_NEVER: Final = 2**63
# A chunk begins with its number, the time of its newest key, and how many there are.
_CHUNK: Final = Struct(">QqI")
# Number of the topic, time of publishing, digest, size of the key, which follows.
_KEY: Final = Struct(f">Qq{DIGEST_BYTES}sB")


class KeyedLog(Protocol):
    """A log, as this sees it."""

    number: int

    def is_synced_to(self, sequence: int) -> bool: ...


class _Written(NamedTuple):
    """The key of a record that is not durable: its sequences, up to ``end``, and its time."""

    first: int
    end: int
    key: PublishKey
    time_ns: int


class _Chunk:
    """A chunk that the state has: ``slot`` is in its name, ``count`` are its keys."""

    __slots__ = ("count", "newest_ns", "slot")

    def __init__(self, slot: int, newest_ns: int, count: int) -> None:
        self.slot = slot
        self.newest_ns = newest_ns
        self.count = count


class StoredKeys:
    """See the module. What the state has is bounded: the oldest chunk goes first.

    Attributes:
        max_keys: about so many keys are kept.
    """

    def __init__(self, window_ns: int = 0, max_keys: int = 0) -> None:
        """Keys are kept for ``window_ns``; 0, of that or of ``max_keys``: none are."""
        self.max_keys = max_keys if window_ns else 0
        self._window_ns = window_ns
        self._chunks: deque[_Chunk] = deque()
        self._count = 0
        self._next = 0
        # Slots whose chunk was given up, to be used again.
        self._free: list[int] = []
        # What the state lacks: keys of durable records, and by log, with sequences, of others.
        self._unsaved: list[bytes] = []
        self._written: dict[int, deque[_Written]] = {}
        self._newest_ns = 0
        # Of a start: chunks, and keys of records.
        self._loaded: deque[bytes] = deque()
        self._scanned: list[tuple[int, StoredKey]] = []

    def __repr__(self) -> str:
        return f"<StoredKeys {self._count} in {len(self._chunks)} chunks>"

    def note_round(
        self, log: KeyedLog, batches: Iterable[MessageBatch], *, is_durable: bool
    ) -> None:
        """Note the keys of what was written to a log. No job may be writing to it."""
        for batch in batches:
            if batch.key is None or origin_of(batch.key) is not None:
                continue
            if is_durable:
                self._add(log.number, batch.key, batch.timestamp_ns)
            else:
                sequences = batch.sequences
                assert sequences is not None
                one = _Written(sequences[0], sequences[-1] + 1, batch.key, batch.timestamp_ns)
                self._written.setdefault(log.number, deque()).append(one)
        written = self._written.get(log.number)
        if written is None:
            return
        while written and log.is_synced_to(written[0].end):
            one = written.popleft()
            self._add(log.number, one.key, one.time_ns)
        if not written:
            del self._written[log.number]

    def first_unsaved(self, topic: int) -> int:
        """Return the sequence from which on the records of a log may have keys that no commit takes
        along: a start has to read them."""
        written = self._written.get(topic)
        return written[0].first if written else _NEVER

    def _add(self, topic: int, key: PublishKey, time_ns: int) -> None:
        if self.max_keys:
            head = _KEY.pack(topic, time_ns, key.digest, len(key.text))
            self._unsaved.append(head + key.text)
            self._newest_ns = time_ns

    def changes(self) -> list[PutMeta]:
        """Return what the state has to know before all else of a commit."""
        if not self._unsaved:
            return []
        unsaved, self._unsaved = self._unsaved[-self.max_keys :], []
        changes: list[PutMeta] = []
        while self._chunks and self._is_unneeded(self._chunks[0], len(unsaved)):
            gone = self._chunks.popleft()
            self._count -= gone.count
            self._free.append(gone.slot)
            changes.append(PutMeta(_name(gone.slot), b""))
        slot = self._free.pop() if self._free else len(self._chunks)
        self._chunks.append(_Chunk(slot, self._newest_ns, len(unsaved)))
        self._count += len(unsaved)
        head = _CHUNK.pack(self._next, self._newest_ns, len(unsaved))
        self._next += 1
        changes.append(PutMeta(_name(slot), head + b"".join(unsaved)))
        return changes

    def _is_unneeded(self, chunk: _Chunk, more: int) -> bool:
        is_old = chunk.newest_ns <= self._newest_ns - self._window_ns
        return is_old or self._count + more - chunk.count >= self.max_keys

    # A start

    def load(self, meta: Mapping[str, bytes]) -> None:
        """Take over what the state has."""
        chunks: list[tuple[int, _Chunk, bytes]] = []
        for name, value in meta.items():
            if not name.startswith(_NAME):
                continue
            slot = int(name.removeprefix(_NAME))
            if len(value) < _CHUNK.size:
                self._free.append(slot)
                continue
            number, newest_ns, count = _CHUNK.unpack_from(value)
            chunks.append((number, _Chunk(slot, newest_ns, count), value))
        for number, chunk, value in sorted(chunks, key=lambda one: one[0]):
            self._chunks.append(chunk)
            self._count += chunk.count
            self._next = number + 1
            self._loaded.append(value)

    def add_found(self, topic: int, stored: StoredKey) -> None:
        """Note the key of a record that the start has read: the state may lack it."""
        text, digest = stored.key
        if 0 < len(text) < 256 and len(digest) == DIGEST_BYTES:
            self._add(topic, stored.key, stored.time_ns)
            self._scanned.append((topic, stored))

    def pop_found(self) -> Iterator[tuple[int, StoredKey]]:
        """Yield what a start has found, with the number of the log, about the oldest first.

        A key may come twice: from the state, and from its record.
        """
        loaded, self._loaded = self._loaded, deque()
        scanned, self._scanned = self._scanned, []
        while loaded:
            yield from _unpack(loaded.popleft())
        yield from scanned


def _name(slot: int) -> str:
    return f"{_NAME}{slot}"


def _unpack(chunk: bytes) -> Iterator[tuple[int, StoredKey]]:
    at, end = _CHUNK.size, len(chunk)
    while at + _KEY.size <= end:
        topic, time_ns, digest, nbytes = _KEY.unpack_from(chunk, at)
        at += _KEY.size + nbytes
        yield topic, StoredKey(PublishKey(chunk[at - nbytes : at], digest), time_ns)
