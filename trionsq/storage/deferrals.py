"""The deferred messages of a disk queue: an index in memory, and what changes in the deferral file.

The index knows when each deferred message is due. The file keeps that over a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from trionsq.core.batch import MessageBatch, Segment
from trionsq.disk import Disk
from trionsq.storage.deferral_file import DeferralFile
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.positions import Generation, QueueFiles

__all__ = ["DeferralChanges", "Deferrals"]

log = logging.getLogger("trionsq")

_MS_NS: Final = 1_000_000
# The due time of a message that was cancelled, which still lies in the queue: the last one that the
# file can have.
_CANCELLED_NS: Final = 10**20 - 1
# The file is rewritten when it has more lines of messages that were read than this, and than of
# messages that are deferred.
_MAX_SPENT_LINES: Final = 1_000
# Ids that are looked up first when searching the next deferred message; the number doubles.
_FIRST_LOOKUPS: Final = 16
# A file up to this size (1,200 messages) is loaded in the event loop, in about 1 ms.
_MAX_BYTES_LOADED_AT_ONCE: Final = 64 * 1024


class DeferralChanges:
    """What one sync changes in the deferral file. For any thread.

    The maps ``due_ns`` and ``read`` are those of the queue, which goes on changing them.
    """

    __slots__ = ("_file", "_needs_rewrite", "_read", "dropped", "due_ns", "new")

    def __init__(
        self,
        file: DeferralFile,
        new: list[tuple[bytes, int]],
        due_ns: dict[bytes, int],
        read: dict[bytes, int],
        dropped: list[dict[bytes, int]],
        *,
        needs_rewrite: bool,
    ) -> None:
        """Times are nanoseconds since the epoch.

        ``new``: ids and due times that the file lacks. ``due_ns``: due times of all deferred
        messages. ``read``: of those read since the sync began; a crash brings them back.
        ``dropped``: maps to be freed. ``needs_rewrite``: the file has too many spent lines.
        """
        self.new = new
        self.due_ns = due_ns
        self.dropped = dropped
        self._file = file
        self._read = read
        self._needs_rewrite = needs_rewrite

    def store_new(self) -> None:
        """Make durable the new messages that the positions of this sync count as unread.

        Raises:
            OSError: they may not be durable.
        """
        due_ns, read = self.due_ns, self._read
        if entries := [entry for entry in self.new if entry[0] in due_ns or entry[0] in read]:
            self._file.append(entries)

    def remove_spent(self) -> None:
        """Rewrite the file without spent lines, if there are too many; after the positions.

        Raises:
            OSError: the file may have its old content.
        """
        if self._needs_rewrite:
            self._file.keep_only(self._is_needed)

    def _is_needed(self, id_: bytes, due_ns: int) -> bool:
        return self.due_ns.get(id_) == due_ns or self._read.get(id_) == due_ns

    def free_dropped(self) -> None:
        """Free the dropped maps entry by entry: freeing a large one at once stops all threads."""
        for dropped in self.dropped:
            while dropped:
                dropped.popitem()


class Deferrals:
    """The deferred messages of a queue; no more than its depth.

    Attributes:
        is_loading: whether a job is loading the file: until then the queue must not be read.
    """

    __slots__ = ("_dropped", "_due_ns", "_file", "_new", "_queue", "_read", "is_loading")

    def __init__(self, disk: Disk, files: QueueFiles) -> None:
        self.is_loading = False
        self._queue = files.queue
        self._file = DeferralFile(disk, files.queue)
        self._due_ns: dict[bytes, int] = {}
        # Ids and due times that the file lacks.
        self._new: list[tuple[bytes, int]] = []
        # Deferred messages that were read since the last `plan_changes`.
        self._read: dict[bytes, int] = {}
        self._dropped: list[dict[bytes, int]] = []

    def __bool__(self) -> bool:
        """Whether any message is deferred."""
        return bool(self._due_ns)

    def __len__(self) -> int:
        return len(self._due_ns)

    @property
    def has_new(self) -> bool:
        """Whether a deferred message is missing in the file."""
        return bool(self._new)

    @property
    def has_only_spent_lines(self) -> bool:
        """Whether the file may have lines, but no message is deferred."""
        return self._file.lines > 0 and not self._due_ns

    def due_ns(self, id_: bytes) -> int | None:
        """Return when a message is due, None if it is not deferred. For any thread."""
        return self._due_ns.get(id_)

    def load(self, folder: DataFolder, generation: Generation, loaded: Callable[[], None]) -> bool:
        """Load the file; return whether there is one.

        A job loads a large file: `is_loading` is true until then, and ``loaded`` is called. If the
        queue is emptied meanwhile, the content is ignored.
        """
        try:
            size = self._file.size()
        except OSError as error:
            self._note_failure(error)
            return False
        if not size:
            return False
        if size > _MAX_BYTES_LOADED_AT_ONCE:
            self._load_in_job(folder, generation, loaded)
            return True
        try:
            self._add_loaded(self._file.load())
        except OSError as error:
            self._note_failure(error)
        return True

    def _load_in_job(
        self, folder: DataFolder, generation: Generation, loaded: Callable[[], None]
    ) -> None:
        self.is_loading = True
        number, content = generation.number, list[dict[bytes, int]]()

        def done(error: Exception | None) -> None:
            self.is_loading = False
            if generation.number == number:
                if error is not None:
                    self._note_failure(error)
                for due_ns in content:
                    self._add_loaded(due_ns)
            loaded()

        folder.submit(self._queue, lambda: content.append(self._file.load()), done)

    def _note_failure(self, error: Exception) -> None:
        log.error("%s: deferred messages lose their delay: %s", self._file.name, error_text(error))

    def _add_loaded(self, due_ns: dict[bytes, int]) -> None:
        due_ns.update(self._due_ns)  # messages stored since then are newer
        self._due_ns = due_ns

    def add(self, ids: list[bytes], due_ns: Sequence[int]) -> None:
        """Add stored messages with their due times, in nanoseconds since the epoch."""
        entries = list(zip(ids, due_ns, strict=True))
        self._due_ns.update(entries)
        self._new += entries

    def set_due(self, id_: bytes, due_ns: int, new_due_ns: int | None) -> bool:
        """Change when a message is due; None cancels it. False: none is due at ``due_ns``."""
        if self._due_ns.get(id_) != due_ns:
            return False
        self.add([id_], [_CANCELLED_NS if new_due_ns is None else new_due_ns])
        return True

    def is_cancelled(self, segment: Segment) -> bool:
        """Return whether the one message that was read last, a deferred one, was cancelled."""
        return self._read.get(segment.ids()[0]) == _CANCELLED_NS

    def limit_segment(self, segment: Segment) -> Segment:
        """Return the first message alone if it is deferred, else those before a deferred one.

        A deferred message gets its delay back and leaves the index.
        """
        batch, first = segment.batch, segment.first
        ids = batch.ids.slice(first, first + 1)
        due_ns = self._due_ns.get(ids[0])
        if due_ns is None:
            segment.last = self._next_deferred(segment)
            return segment
        self._read[ids[0]] = due_ns  # first: a job may look it up now
        del self._due_ns[ids[0]]
        alone = batch.extract([first], ids)
        delay_ms = max(1, -((alone.timestamp_ns - due_ns) // _MS_NS))
        alone = MessageBatch(alone.bodies, alone.ids, alone.timestamp_ns, delay_ms)
        return Segment(alone, 0, 1, segment.attempts)

    def _next_deferred(self, segment: Segment) -> int:
        """Return the index of the first deferred message after the first one, or the end."""
        due_ns, ids = self._due_ns, segment.batch.ids
        first, step = segment.first + 1, _FIRST_LOOKUPS
        while first < segment.last:
            end = min(first + step, segment.last)
            for index, id_ in enumerate(ids.slice(first, end), first):
                if id_ in due_ns:
                    return index
            first, step = end, 2 * step
        return segment.last

    def clear(self) -> None:
        """Forget all messages: the queue has none."""
        if self._due_ns:
            self._dropped.append(self._due_ns)
            self._due_ns = {}
        self._new = []

    def plan_changes(self, *, at_stop: bool = False) -> DeferralChanges:
        """Return what the next sync has to change; at the stop no spent line may remain."""
        due_ns = self._due_ns
        spent = self._file.lines + len(self._new) - len(due_ns)
        needs_rewrite = spent > 0 and (
            at_stop or not due_ns or spent > max(_MAX_SPENT_LINES, len(due_ns))
        )
        self._read = {}
        changes = DeferralChanges(
            self._file, self._new, due_ns, self._read, self._dropped, needs_rewrite=needs_rewrite
        )
        self._new, self._dropped = [], []
        return changes

    def restore_changes(self, changes: DeferralChanges) -> None:
        """Plan the new messages again: a sync failed, perhaps half-way."""
        if changes.due_ns is self._due_ns:
            self._new = changes.new + self._new
