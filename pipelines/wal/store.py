"""A log in an object store: ``s3://``, ``gs://`` or ``az://``, through obstore.

Below the log's URL:

- ``META.json``: as in a folder
- ``segments/<first>.<number>.arrow``: a segment is one object; it has the messages from ``first``
  to before the ``first`` of the next number
- ``committed/<position>``: empty objects; the highest position counts

What fences a writer off: every segment is created by a PUT that the store refuses if the object is
there already (If-None-Match). A new writer first creates an empty segment of the next number. The
former one does not know that, and its next PUT is for the same name. Empty segments are never
removed, because a former writer may wake up at any time. The new writer may be the one that slept:
meanwhile a segment of the next number may have been written, committed and trimmed. Then there is
one of a later number; the new writer sees it and begins again.

Addresses and credentials come from the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``) or from
the machine's role, in the driver as in the executors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import uuid4

from pipelines.errors import (
    WalDamagedError,
    WalError,
    WalFencedError,
    WalMissingError,
    WalRangeError,
)
from pipelines.wal import meta
from pipelines.wal.objects import Objects, reason_of
from pipelines.wal.place import RecoveredLog, Segment
from pipelines.wal.segments import (
    SegmentHead,
    SegmentRef,
    check_segment,
    damaged,
    encode_segment,
    head_of,
    written_ns_of,
)

__all__ = ["StorePlace", "StoreSource", "oldest_ns"]

_OPENINGS: Final = 20
# A gap that is there so often is damage, and not a log that is trimmed amid the requests.
_LISTINGS: Final = 3
_SEGMENTS: Final = "segments"
_COMMITTED: Final = "committed"
_KEY_PATTERN: Final = re.compile(rf"{_SEGMENTS}/([0-9]{{20}})\.([0-9]{{10}})\.arrow")
# An empty segment is smaller; what is larger has messages.
_EMPTY_BYTES: Final = 2048
_HEAD_BYTES: Final = 64 << 10


def _key(first: int, number: int) -> str:
    return f"{_SEGMENTS}/{first:020}.{number:010}.arrow"


class _StoredLog(Objects):
    """What both sides of a log read and write."""

    @property
    def path(self) -> str:
        """The log's URL."""
        return self.url

    def read_id(self) -> str:
        path = f"{self.url}/{meta.META}"
        try:
            return meta.parse_meta(self.read(meta.META), path)
        except FileNotFoundError as error:
            raise WalMissingError(f"{self.url} has no log ({reason_of(error)})") from error

    def read_committed(self) -> int:
        return max(self._committed_positions(), default=0)

    def _committed_positions(self) -> Iterator[int]:
        for key, _ in self.list_keys(_COMMITTED):
            name = key.rpartition("/")[2]
            if name.isdecimal():
                yield int(name)

    def write_committed(self, lsn: int) -> None:
        """Store a position, and remove lower ones: the highest counts. Raises WalError."""
        self.replace(f"{_COMMITTED}/{lsn:020}", b"")
        older = [f"{_COMMITTED}/{old:020}" for old in self._committed_positions() if old < lsn]
        if older:
            self.remove(older)

    def key_of(self, ref: SegmentRef) -> str:
        """The name of a segment's object."""
        return ref.path.removeprefix(f"{self.url}/")

    def read_segment_head(self, key: str) -> SegmentHead:
        """The head of a segment. Raises FileNotFoundError, WalDamagedError, WalError."""
        data = self.read_head(key, _HEAD_BYTES)
        if len(data) == _HEAD_BYTES:
            # With very many streams the head is longer.
            data = self.read(key)
        return head_of(data, f"{self.url}/{key}")

    def refs_of(self, keys: Sequence[tuple[str, int]]) -> list[tuple[SegmentRef, int, int]]:
        """Segments with their numbers and sizes. The end of the last one is read from it.

        Raises FileNotFoundError: it was removed meanwhile. Also raises WalError.
        """
        found = [
            (int(match[1]), int(match[2]), key, nbytes)
            for key, nbytes in keys
            if (match := _KEY_PATTERN.fullmatch(key)) is not None
        ]
        found.sort(key=lambda item: item[1])
        if not found:
            return []
        _, _, last, nbytes = found[-1]
        if not nbytes:
            raise damaged(f"{self.url}/{last}", "it is empty")
        ends = [*(first for first, *_ in found[1:]), self.read_segment_head(last).end]
        return [
            (SegmentRef(f"{self.url}/{key}", first, end), number, nbytes)
            for (first, number, key, nbytes), end in zip(found, ends, strict=True)
        ]

    def contiguous(
        self, found: list[tuple[SegmentRef, int, int]]
    ) -> tuple[list[tuple[SegmentRef, int, int]], list[tuple[SegmentRef, int, int]], int]:
        """The segments with numbers in a row at the end, what an interrupted trim left, and the
        committed position.

        It is read after the segments were listed: what was trimmed before was committed before.

        Raises WalDamagedError: segments that are not committed are missing. Also raises WalError.
        """
        committed = self.read_committed()
        start = len(found) - 1
        while start > 0 and found[start - 1][1] + 1 == found[start][1]:
            start -= 1
        start = max(start, 0)
        if found:
            start = self._after_late_fence(found, start)
            first, end = found[start][0].first, found[-1][0].end
            if first > committed or end < committed:
                low, high = (committed, first) if first > committed else (end, committed)
                raise WalDamagedError(
                    f"{self.url} lacks the segments of {low} to {high}. Nothing was changed. Bring "
                    "them back from a version or a copy; or, to continue without these messages, "
                    "use another walPath and checkpoint"
                )
        return found[start:], found[:start], committed

    def _after_late_fence(self, found: list[tuple[SegmentRef, int, int]], start: int) -> int:
        """Where the segments begin if a new writer that came too late died before it saw that.

        Its empty segment has the name of one that was trimmed, so it is the first of them.
        Raises FileNotFoundError: it was removed meanwhile. Also raises WalError.
        """
        for index in range(start, len(found) - 1):
            ref, _, nbytes = found[index]
            if ref.first < ref.end:
                if nbytes > _EMPTY_BYTES:
                    break
                head = self.read_segment_head(self.key_of(ref))
                return index + 1 if head.end == ref.first else start
        return start


class StorePlace(_StoredLog):
    """The writer's side of a log in an object store; see `pipelines.wal.place.LogPlace`."""

    poll_s: Final = 5.0

    def __init__(self, url: str, store: Any = None, **settings: Any) -> None:
        """``store`` and ``settings`` are for tests. Raises SetupError, WalError."""
        super().__init__(url, store, **settings)
        self.owner = uuid4().hex
        self._number = 0
        # Objects whose removal failed
        self._left: list[str] = []

    @classmethod
    def open(cls, url: str) -> StorePlace:
        """The log at a URL; no request is made yet. Raises SetupError, WalError."""
        return cls(url)

    def close(self) -> None:
        """Nothing: another process may take the log over at any time."""

    def recover(self, *, create: bool, now_s: float) -> RecoveredLog:
        wal_id = self._read_or_create_id(create=create)
        for opening in range(1, _OPENINGS + 1):
            try:
                found = self.refs_of(self.list_keys(_SEGMENTS))
                kept, outdated, committed = self.contiguous(found)
                written_ns = 0
                if kept:
                    ref, self._number, _ = kept[-1]
                    newest = self.read_segment(ref)
                    check_segment(newest, ref, wal_id)
                    written_ns = written_ns_of(newest, ref)
            except (FileNotFoundError, WalRangeError):
                continue  # another process opens or trims the log at this moment
            except WalDamagedError:
                if opening >= _LISTINGS:
                    raise
                continue
            end = kept[-1][0].end if kept else committed
            # Later than whatever the former writer tried to write
            written_ns = max(written_ns + 1, time.time_ns())
            fence = encode_segment(end, wal_id, [], written_ns, self.owner)
            if self._create_next(end, fence) and self._is_in_time(end):
                break
        else:
            raise WalError(f"{self.url}: other processes take the log over again and again")
        empty = SegmentRef(self._url_of(end, self._number), end, end)
        segments = [Segment(ref, nbytes, now_s) for ref, _, nbytes in kept]
        segments.append(Segment(empty, len(fence), now_s))
        self._left = [self.key_of(ref) for ref, _, nbytes in outdated if nbytes > _EMPTY_BYTES]
        return RecoveredLog(wal_id, segments, committed, end, written_ns)

    def _read_or_create_id(self, *, create: bool) -> str:
        try:
            text = self.read(meta.META)
        except FileNotFoundError as error:
            if not create:
                raise WalMissingError(f"{self.url} has no log") from error
            try:
                self.create(meta.META, meta.meta_text(uuid4().hex))
                text = self.read(meta.META)
            except FileNotFoundError as missing:
                raise WalError(f"{self.url}: {reason_of(missing)}") from missing
        wal_id = meta.parse_meta(text, f"{self.url}/{meta.META}")
        # Where the condition has no effect, the same content once more does no harm.
        self.check_conditions(meta.META, text)
        return wal_id

    def _create_next(self, first: int, data: bytes) -> bool:
        """Create the segment of the next number; False if another writer did. Raises WalError."""
        number = self._number + 1
        try:
            is_ours = self.create(_key(first, number), data)
        except FileNotFoundError as error:
            raise WalError(f"{self.url}: {reason_of(error)}") from error
        if is_ours:
            self._number = number
        return is_ours

    def _is_in_time(self, first: int) -> bool:
        """Whether the empty segment, just created, fences the former writer off. Raises WalError.

        Else it is removed: its name was that of a segment with messages.
        """
        own = _key(first, self._number)
        later = [key for key, _ in self.list_keys(_SEGMENTS, after=own)]
        # The next one is another new writer's, which has begun where this one did.
        if not later or _key(first, self._number + 1) in later:
            return True
        self.remove([own])
        return False

    def _url_of(self, first: int, number: int) -> str:
        return f"{self.url}/{_key(first, number)}"

    def write_segment(self, first: int, end: int, data: bytes) -> str:
        if not self._create_next(first, data):
            raise WalFencedError(f"{self.url} was taken over by another process")
        return self._url_of(first, self._number)

    def read_segment(self, ref: SegmentRef) -> bytes:
        try:
            return self.read(self.key_of(ref))
        except FileNotFoundError as error:
            raise WalRangeError(f"{ref.path} is gone: it was committed and trimmed") from error

    def remove_segments(self, refs: Sequence[SegmentRef]) -> None:
        self._left += [self.key_of(ref) for ref in refs if ref.first < ref.end]
        if self._left:
            self.remove(self._left)
            self._left = []

    def committed_by_readers(self) -> int:
        return self.read_committed()

    def probe(self, nbytes: int) -> None:
        """Nothing: an object store has room."""


class StoreSource(_StoredLog):
    """The reader's side of a log in an object store; see `pipelines.wal.place.LogSource`."""

    def __init__(self, url: str, store: Any = None, **settings: Any) -> None:
        """``store`` and ``settings`` are for tests. Raises SetupError, WalError."""
        super().__init__(url, store, **settings)
        # The last segment listed, an empty one, too
        self._last: tuple[str, int] | None = None

    def list_segments(self, known: Sequence[SegmentRef]) -> list[SegmentRef] | None:
        last = self._last if known or self._last is None else None
        for tries_left in reversed(range(_LISTINGS)):
            keys = self.list_keys(_SEGMENTS, after=last[0] if last else "")
            if not keys:
                return None if self._last else []
            try:
                found = self.refs_of(keys)
                if last is None or found[0][1] != last[1] + 1:
                    found, *_ = self.contiguous(found)
            except FileNotFoundError:
                return None  # trimmed between the two requests; the next call sees it all
            except WalDamagedError:
                if not tries_left:
                    raise
            else:
                break
        self._last = (self.key_of(found[-1][0]), found[-1][1])
        return [ref for ref, *_ in found if ref.first < ref.end]

    def commit(self, lsn: int) -> None:
        if lsn > self.read_committed():
            self.write_committed(lsn)


@lru_cache(maxsize=256)
def oldest_ns(ref: SegmentRef, store: Any = None) -> int:
    """When the oldest message of a segment in a store was published. A segment is asked once.

    Args:
        ref: of the segment.
        store: for tests.

    Raises:
        WalRangeError: it was trimmed.
        WalError: it can't be read.
    """
    url, _, name = ref.path.rpartition(f"/{_SEGMENTS}/")
    try:
        return _StoredLog(url, store).read_segment_head(f"{_SEGMENTS}/{name}").oldest_ns
    except FileNotFoundError as error:
        raise WalRangeError(f"{ref.path} is gone: it was committed and trimmed") from error
