"""The segment writer: gathers received messages, stores them in segments, and then finishes them.

A segment is written when its oldest message has waited for `segment_ms`, when it is large enough,
or when half of a connection's RDY is waiting. One task writes, in a thread, while messages of the
next segment gather. Consumers never wait for the writer: it requeues messages for which it has no
room.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, NoReturn

import trio

from pipelines.errors import WalFullError
from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.flow import FlowControl, ReceiverStatistics
from pipelines.wal import Block, Duplicates, Wal
from pipelines.wal.duplicates import MAX_IDS
from pipelines.wal.segments import IdScope
from trionsq.client import Batch, Consumer

__all__ = ["PendingBatch", "SegmentWriter", "blocks_of"]

log = logging.getLogger("pipelines.receiver")

_FULL: Final = "the log is full"
_BEHIND: Final = "too much waits for the disk"
# Room for several segments, so that the log is not full again at once.
_PROBE_BYTES: Final = 4 << 20
_AWAY_S: Final = 6 * 3600.0


class PendingBatch(NamedTuple):
    """A batch that is not stored yet. ``nbytes``: size of its bodies."""

    topic: str
    batch: Batch
    nbytes: int


class SegmentWriter:
    """Stores batches. Its methods are for trio's thread."""

    def __init__(
        self, config: ReceiverConfig, wal: Wal, flow: FlowControl, statistics: ReceiverStatistics
    ) -> None:
        self._config = config
        self._wal = wal
        self._flow = flow
        self._statistics = statistics
        # nsqd's clock begins at the delivery, ours when the message is stored.
        keep_s = 2 * config.msg_timeout_ms / 1000
        self._duplicates = Duplicates(config.max_duplicates, keep_s=keep_s)
        # When each nsqd, of which there may be messages, was last connected
        self._connected_s: dict[str, float] = {}
        self._pending: deque[PendingBatch] = deque()
        # Pending messages by nsqd
        self._counts: dict[str, int] = {}
        self._first_s = 0.0
        self._is_due = False
        self._is_draining = False
        self._is_full = False
        self._wake = trio.Event()
        self._idle = trio.lowlevel.ParkingLot()
        self._is_writing = False

    def add_batch(self, consumer: Consumer, batch: Batch) -> None:
        """Store a batch soon, or requeue it if there is no room."""
        statistics = self._statistics
        statistics.received += len(batch)
        nbytes = sum(map(len, batch.bodies))
        nsqd = batch.nsqd_address
        is_closed = self._is_full or self._is_draining
        if is_closed or not self._has_room_for(nsqd, len(batch), nbytes):
            self._requeue(batch)
            return
        if not self._pending:
            self._first_s = trio.current_time()
            self._wake.set()
        if nsqd not in self._connected_s:
            # It may be gone before `hold_retention` is called, for the first time.
            self._connected_s[nsqd] = trio.current_time()
        self._pending.append(PendingBatch(consumer.topic, batch, nbytes))
        self._counts[nsqd] = self._counts.get(nsqd, 0) + len(batch)
        statistics.pending += len(batch)
        statistics.pending_bytes += nbytes
        if 2 * statistics.pending_bytes > self._config.max_pending_bytes:
            self._flow.pause(_BEHIND)
        if not self._is_due and (self._is_large or self._flow.is_half_in_flight(consumer)):
            self._is_due = True
            self._wake.set()

    @property
    def _is_large(self) -> bool:
        statistics, config = self._statistics, self._config
        return (
            statistics.pending >= config.segment_messages
            or statistics.pending_bytes >= config.segment_bytes
        )

    def _has_room_for(self, nsqd: str, count: int, nbytes: int) -> bool:
        """More than max_in_flight arrive when nsqd times messages out, or ignores RDY.

        Counted for each nsqd, so that one such nsqd does not take the room of the others.
        """
        pending = self._counts.get(nsqd, 0)
        if pending and pending + count > 2 * self._config.max_in_flight:
            return False
        pending_bytes = self._statistics.pending_bytes
        return not pending_bytes or pending_bytes + nbytes <= self._config.max_pending_bytes

    def _requeue(self, batch: Batch) -> None:
        self._statistics.requeued += batch.open_count
        batch.requeue(0 if self._is_draining else self._config.probe_s, backoff=False)

    def hold_retention(self, connected: Collection[str]) -> None:
        """Let the log's retention stand still while an nsqd is not among the connected ones.

        What it delivers again when it is back must be recognized, even by a new process. An nsqd
        that is away for `_AWAY_S` does not come back.
        """
        now_s = trio.current_time()
        for nsqd in connected:
            self._connected_s[nsqd] = now_s
        gone_s = now_s - _AWAY_S
        self._connected_s = {
            nsqd: last_s for nsqd, last_s in self._connected_s.items() if last_s > gone_s
        }
        self._wal.hold_retention(len(self._connected_s) > len(set(connected)))

    # The task

    async def run(self) -> NoReturn:
        """Store batches until cancelled.

        Raises:
            WalError: the log failed, other than by being full.
        """
        known = await trio.to_thread.run_sync(self._load_duplicates)
        for nsqd in known - self._connected_s.keys():
            self._connected_s[nsqd] = trio.current_time()
        while True:
            await self._wait_until_due()
            batches = self._next_batches()
            self._is_writing = True
            try:
                stored = await trio.to_thread.run_sync(self._store, batches)
            except WalFullError as error:
                await self._wait_for_room(batches, error)
            else:
                self._finish(batches, stored)
            finally:
                self._is_writing = False
            self._remove_pending(batches)

    async def drain(self) -> None:
        """Store all pending messages, without waiting for more; returns when they are finished."""
        self._is_draining = True
        self._wake.set()
        while self._pending or self._is_writing:
            await self._idle.park()

    async def _wait_until_due(self) -> None:
        """Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self._pending:
            await self._wait_for_wake_up()
        with trio.move_on_at(self._first_s + self._config.segment_ms / 1000):
            while not (self._is_due or self._is_draining):
                await self._wait_for_wake_up()

    async def _wait_for_wake_up(self) -> None:
        self._wake = trio.Event()
        await self._wake.wait()

    def _next_batches(self) -> list[PendingBatch]:
        """Remove the batches of the next segment: at least one, within a segment's limits."""
        batches: list[PendingBatch] = []
        count = nbytes = 0
        while self._pending:
            following = self._pending[0]
            count += len(following.batch)
            nbytes += following.nbytes
            is_too_much = (
                count > self._config.segment_messages or nbytes > self._config.segment_bytes
            )
            if batches and is_too_much:
                break
            batches.append(self._pending.popleft())
        self._first_s = trio.current_time()
        # The rest was pending while the segment was large enough already.
        self._is_due = bool(self._pending)
        return batches

    def _finish(self, batches: Sequence[PendingBatch], stored: int) -> None:
        statistics = self._statistics
        statistics.stored += stored
        statistics.segments += bool(stored)
        statistics.duplicates_dropped += sum(len(pending.batch) for pending in batches) - stored
        for pending in batches:
            pending.batch.finish()

    def _remove_pending(self, batches: Sequence[PendingBatch]) -> None:
        statistics = self._statistics
        for pending in batches:
            nsqd = pending.batch.nsqd_address
            self._counts[nsqd] -= len(pending.batch)
            if not self._counts[nsqd]:
                del self._counts[nsqd]
        statistics.pending -= sum(len(pending.batch) for pending in batches)
        statistics.pending_bytes -= sum(pending.nbytes for pending in batches)
        if 4 * statistics.pending_bytes <= self._config.max_pending_bytes:
            self._flow.resume(_BEHIND)
        self._idle.unpark_all()

    # A full log

    async def _wait_for_room(self, batches: Sequence[PendingBatch], error: WalFullError) -> None:
        """Pause and requeue everything, until the log has room or the receiver stops."""
        log.warning("the log is full, requeuing messages until it has room: %s", error)
        self._is_full = True
        self._statistics.pauses += 1
        self._statistics.is_paused = 1
        self._flow.pause(_FULL)
        for pending in batches:
            self._requeue(pending.batch)
        rest, self._pending = list(self._pending), deque()
        for pending in rest:
            self._requeue(pending.batch)
        self._remove_pending(rest)
        nbytes = max(_PROBE_BYTES, 2 * sum(pending.nbytes for pending in batches))
        nbytes = min(nbytes, self._wal.limits.max_bytes // 2)
        while not self._is_draining:
            with trio.move_on_after(self._config.probe_s):
                await self._wait_for_wake_up()
            try:
                await trio.to_thread.run_sync(self._wal.probe, nbytes)
            except WalFullError:
                continue
            break
        self._is_full = False
        self._statistics.is_paused = 0
        self._flow.resume(_FULL)
        log.info("the log has room again")

    # In the writing thread

    def _load_duplicates(self) -> set[str]:
        """Fill the duplicates from the log; the nsqds that it has messages of. Raises WalError."""
        nsqds = set()
        for parts in self._wal.recent_ids(self._config.max_duplicates or MAX_IDS):
            for part in parts:
                nsqds.add(part.scope.nsqd)
                fresh = self._duplicates.new_indices(part.scope, part.ids)
                ids = part.ids if fresh is None else [part.ids[index] for index in fresh]
                self._duplicates.add(part.scope, ids)
        return nsqds

    def _store(self, batches: Sequence[PendingBatch]) -> int:
        """Append the new messages to the log; their number. Raises WalError."""
        blocks = blocks_of(batches, self._config.channel, self._duplicates)
        if not blocks:
            return 0
        self._wal.append(blocks)
        for block in blocks:
            self._duplicates.add(IdScope(block.topic, block.nsqd), block.ids)
        return sum(len(block.ids) for block in blocks)


def blocks_of(batches: Sequence[PendingBatch], channel: str, duplicates: Duplicates) -> list[Block]:
    """The messages of the batches, by topic and nsqd, without those in the log already."""
    scopes: dict[IdScope, list[Batch]] = {}
    for pending in batches:
        scope = IdScope(pending.topic, pending.batch.nsqd_address)
        scopes.setdefault(scope, []).append(pending.batch)
    blocks = []
    for scope, scope_batches in scopes.items():
        block = _joined(scope, channel, scope_batches)
        fresh = duplicates.new_indices(scope, block.ids)
        if fresh is not None:
            block = Block(
                *block[:3],
                *([column[index] for index in fresh] for column in block[3:]),  # type: ignore[arg-type]
            )
        if block.ids:
            blocks.append(block)
    return blocks


def _joined(scope: IdScope, channel: str, batches: Sequence[Batch]) -> Block:
    ids: list[bytes] = []
    timestamps_ns: list[int] = []
    attempts: list[int] = []
    bodies: list[bytes] = []
    for batch in batches:
        ids += batch.ids
        timestamps_ns += batch.timestamps_ns
        attempts += batch.attempts
        bodies += batch.bodies
    return Block(scope.topic, channel, scope.nsqd, ids, timestamps_ns, attempts, bodies)
