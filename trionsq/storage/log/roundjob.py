"""A round of one topic on its way to the disk, and what all topics of a node share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from trionsq.core.batch import MessageBatch
from trionsq.core.round import Round
from trionsq.storage.log.journal import JournalPiece
from trionsq.storage.log.logreader import ReadHost
from trionsq.storage.log.rows import Change
from trionsq.storage.log.segmentfile import DiskWrite, RoundWrite, SegmentFile, end_of
from trionsq.storage.log.segmentwriter import SegmentWriter
from trionsq.storage.log.storedkeys import StoredKeys
from trionsq.storage.log.tailcache import TailCache

__all__ = ["LogHost", "RoundJob", "finish_round"]

_Log = TypeVar("_Log")
_AnyLog = TypeVar("_AnyLog", contravariant=True)


class LogHost(ReadHost, Protocol[_AnyLog]):
    """What all logs of a node share.

    Attributes:
        keys: of idempotent publishes that are in the logs.
    """

    keys: StoredKeys

    @property
    def is_full(self) -> bool:
        """Whether nothing may be published."""

    def add_batch(self, log: _AnyLog, batch: MessageBatch, first: int) -> Round:
        """Have a batch written that begins with the sequence ``first``; return its round."""

    def sync_log(self, log: _AnyLog, *, probe: bool) -> None:
        """Have made durable what was written; with ``probe`` the disk shows that it works again."""

    def note_unsynced(self, log: _AnyLog) -> None:
        """A round has ended: what is not durable of the log is synced within --sync-timeout."""

    def commit(self, changes: Sequence[Change]) -> Round:
        """Have changes of the state committed, before what is published from now on is safe."""

    def count_cached(self, cache: TailCache, nbytes: int) -> None:
        """A batch was put in a cache; old ones go, of whatever log."""

    def segments_left(self, log: _AnyLog) -> None:
        """Segments before `first` of a log are needed no more."""

    def drop_topic(self, log: _AnyLog) -> None:
        """The topic is deleted."""


class RoundJob(Generic[_Log]):
    """One round of one topic on its way to the disk.

    Attributes:
        log: that it belongs to.
        entries: batches with their first sequences.
        count, nbytes: of their messages, and of the bodies.
        round: that publishers wait for; None if there is none.
        written: the messages as the log has them.
        begun: segments that were begun.
        ends: where segments end now.
        unwritten_from: as that of `SegmentWriter`, now.
        error: why it failed.
    """

    # Most rounds change few of these, and many topics have one each: so a new one sets none.
    count = 0
    nbytes = 0
    round: Round | None = None
    written: Sequence[MessageBatch] = ()
    begun: Sequence[SegmentFile] = ()
    ends: Sequence[tuple[SegmentFile, int]] = ()
    unwritten_from: int | None = None
    error: Exception | None = None
    # It has to be durable; alone: in its segment, with all before it.
    _sync = False
    _alone = False
    # The sequence of the next message, if the disk has to show that it works again.
    _probe_at: int | None = None
    _write: RoundWrite | None = None

    def __init__(self, log: _Log, writer: SegmentWriter) -> None:
        self.log = log
        self.entries: list[tuple[MessageBatch, int]] = []
        self._writer = writer

    def add_batch(self, batch: MessageBatch, first: int) -> Round:
        """Take a batch, whose first message has the sequence ``first``; return the round."""
        round_ = self.round
        if round_ is None:
            round_ = self.round = Round()
        self.entries.append((batch, first))
        self.count += batch.count
        self.nbytes += batch.bodies.nbytes
        if self._probe_at is not None:
            self._probe_at = first + batch.count
        return round_

    def sync_alone(self, probe_at: int | None) -> None:
        """Make durable what was written before, too.

        ``probe_at``: the sequence of the next message, if the disk has to show that it works again.
        """
        self._sync = self._alone = True
        self._probe_at = self._probe_at if probe_at is None else probe_at

    def seal(self, durability: str) -> None:
        """Take no more; it is written now."""
        self._sync = self._sync or durability == "always"

    @property
    def may_be_shared(self) -> bool:
        """Whether a journal may make it durable, with rounds of other topics."""
        return self._sync and not self._alone and bool(self.entries)

    @property
    def is_durable(self) -> bool:
        """Whether what was written is durable, unless it failed."""
        return self._sync

    @property
    def end(self) -> int:
        """The sequence behind the last message that was written."""
        return end_of(self.written[-1])

    def write(self) -> None:
        """Write the round. Blocks; the result is in the attributes after `finish`."""
        try:
            self.written = self._writer.write_round(self.entries, sync=self._sync)
            if self._probe_at is not None:
                self._writer.probe(self._probe_at)
        except OSError as error:
            self.error = error

    def encode(self) -> DiskWrite | None:
        """Return the one write that makes the round durable; None if it takes more than that.

        `end_write` follows, or `rescue_write`.
        """
        self._write = self._writer.encode_round(self.entries, sync=True)
        return self._write

    def encode_copy(self) -> JournalPiece | None:
        """Return what a journal needs to make the round durable; None if it takes more than that.

        Nothing is written now. `end_write` follows, or `rescue_write`.
        """
        encoded = self._write = self._writer.encode_round(self.entries, sync=False)
        return None if encoded is None else self._writer.copy_of(encoded.data, encoded.offset)

    def end_write(self, *, sync: bool) -> None:
        """Note that what was encoded is durable; without ``sync``: in a journal."""
        assert self._write is not None
        self._writer.end_write(self._write, sync=sync)
        self.written = self._write.records

    def rescue_write(self, error: Exception) -> None:
        """Make the round durable whose write of `encode` has failed with ``error``. Blocks."""
        assert self._write is not None
        try:
            self._writer.rescue_write(self._write, error)
            self.written = self._write.records
        except OSError as refused:
            self.error = refused

    def append(self) -> list[JournalPiece]:
        """Write the round, and return what a journal or `sync` has to make durable."""
        pieces: list[JournalPiece] = []
        try:
            self.written = self._writer.write_round(self.entries, sync=False, copies=pieces)
        except OSError as error:
            self.error = error
        return pieces

    def sync(self) -> None:
        """Make durable what `append` has written, or what `end_write` was told of."""
        if self.error is None:
            try:
                self._writer.sync_round(self.written)
            except OSError as error:
                self.error = error

    def finish(self) -> None:
        """Note where the segments end now."""
        self.begun, self.ends = self._writer.pop_changes()
        self.unwritten_from = self._writer.unwritten_from


def finish_round(round_: Round, host: ReadHost, error: str | None = None) -> None:
    """End a round. Very many publishers hear of it in several turns of the loop."""

    def soon(function: Callable[[], None]) -> None:
        host.submit_job(lambda: None, lambda failed: function())

    round_.finish(error, soon)
