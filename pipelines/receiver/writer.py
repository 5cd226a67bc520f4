"""The writer: gathers what consumers receive, stores it in segments, and only then finishes it.

A segment is cut when its oldest message has waited for `segment_ms`, when it is large enough, or
when a connection has half of its RDY waiting; while one is being written the next gathers. One
task writes, in a thread; consumers never wait for it, what would be too much is given back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import trio

from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.flow import Flow
from pipelines.receiver.statistics import Statistics
from pipelines.wal import Block, Duplicates, Wal, WalFullError
from pipelines.wal.segments import Stream
from trionsq.client import Batch, Consumer

__all__ = ["Pending", "Writer", "blocks_of"]

log = logging.getLogger("pipelines.receiver")

_FULL: Final = "the log is full"
_BEHIND: Final = "too much waits for the disk"
# What a probe asks for: room for some segments, so that it does not stop again at once.
_PROBE_NBYTES: Final = 4 << 20


class Pending(NamedTuple):
    """A batch that is not stored yet. ``nbytes``: of its bodies."""

    topic: str
    batch: Batch
    nbytes: int


class Writer:
    """Stores what it is given. `take` and the rest are for trio's thread."""

    def __init__(self, config: ReceiverConfig, wal: Wal, flow: Flow, figures: Statistics) -> None:
        self._config = config
        self._wal = wal
        self._flow = flow
        self._figures = figures
        self._duplicates = Duplicates(config.duplicates_max)
        self._pending: deque[Pending] = deque()
        # Messages that wait, by nsqd.
        self._counts: dict[str, int] = {}
        self._first_s = 0.0
        self._is_due = False
        self._is_draining = False
        self._is_full = False
        self._wake = trio.Event()
        self._idle = trio.lowlevel.ParkingLot()
        self._is_writing = False

    def take(self, consumer: Consumer, batch: Batch) -> None:
        """Store it soon, or give it back if there is no room."""
        figures = self._figures
        figures.received += len(batch)
        nbytes = sum(map(len, batch.bodies))
        nsqd = batch.nsqd_address
        is_closed = self._is_full or self._is_draining
        if is_closed or not self._has_room_for(nsqd, len(batch), nbytes):
            self._give_back(batch)
            return
        if not self._pending:
            self._first_s = trio.current_time()
            self._wake.set()
        self._pending.append(Pending(consumer.topic, batch, nbytes))
        self._counts[nsqd] = self._counts.get(nsqd, 0) + len(batch)
        figures.pending += len(batch)
        figures.pending_nbytes += nbytes
        if 2 * figures.pending_nbytes > self._config.pending_nbytes_max:
            self._flow.hold(_BEHIND)
        if not self._is_due and (self._is_large or self._flow.is_waited_for(consumer)):
            self._is_due = True
            self._wake.set()

    @property
    def _is_large(self) -> bool:
        figures, config = self._figures, self._config
        return (
            figures.pending >= config.segment_messages
            or figures.pending_nbytes >= config.segment_nbytes
        )

    def _has_room_for(self, nsqd: str, count: int, nbytes: int) -> bool:
        """More than max_in_flight come when nsqd times out what waits, or keeps to no RDY.

        Counted for each nsqd, so that one such does not take the room of others.
        """
        waiting = self._counts.get(nsqd, 0)
        if waiting and waiting + count > 2 * self._config.max_in_flight:
            return False
        waiting_nbytes = self._figures.pending_nbytes
        return not waiting_nbytes or waiting_nbytes + nbytes <= self._config.pending_nbytes_max

    def _give_back(self, batch: Batch) -> None:
        self._figures.requeued += batch.open_count
        batch.requeue(0 if self._is_draining else self._config.probe_s, backoff=False)

    # The task

    async def run(self) -> NoReturn:
        """Store, for ever.

        Raises:
            WalError: the log failed otherwise than by being full.
        """
        await trio.to_thread.run_sync(self._remember)
        while True:
            await self._wait_until_due()
            cut = self._cut()
            self._is_writing = True
            try:
                stored = await trio.to_thread.run_sync(self._store, cut)
            except WalFullError as error:
                await self._pause(cut, error)
            else:
                self._finish(cut, stored)
            finally:
                self._is_writing = False
            self._settle(cut)

    async def drain(self) -> None:
        """Store what there is, without waiting for more; returns when it is finished."""
        self._is_draining = True
        self._wake.set()
        while self._pending or self._is_writing:
            await self._idle.park()

    async def _wait_until_due(self) -> None:
        """A checkpoint in any case."""
        await trio.lowlevel.checkpoint()
        while not self._pending:
            await self._woken()
        with trio.move_on_at(self._first_s + self._config.segment_ms / 1000):
            while not (self._is_due or self._is_draining):
                await self._woken()

    async def _woken(self) -> None:
        self._wake = trio.Event()
        await self._wake.wait()

    def _cut(self) -> list[Pending]:
        """The batches of the next segment: at least one, and no more than a segment may have."""
        cut: list[Pending] = []
        count = nbytes = 0
        while self._pending:
            following = self._pending[0]
            count += len(following.batch)
            nbytes += following.nbytes
            is_too_much = (
                count > self._config.segment_messages or nbytes > self._config.segment_nbytes
            )
            if cut and is_too_much:
                break
            cut.append(self._pending.popleft())
        self._first_s = trio.current_time()
        # What is left was waiting while there was more than enough.
        self._is_due = bool(self._pending)
        return cut

    def _finish(self, cut: Sequence[Pending], stored: int) -> None:
        figures = self._figures
        figures.stored += stored
        figures.segments += bool(stored)
        figures.duplicates_dropped += sum(len(pending.batch) for pending in cut) - stored
        for pending in cut:
            pending.batch.finish()

    def _settle(self, cut: Sequence[Pending]) -> None:
        figures = self._figures
        for pending in cut:
            nsqd = pending.batch.nsqd_address
            self._counts[nsqd] -= len(pending.batch)
            if not self._counts[nsqd]:
                del self._counts[nsqd]
        figures.pending -= sum(len(pending.batch) for pending in cut)
        figures.pending_nbytes -= sum(pending.nbytes for pending in cut)
        if 4 * figures.pending_nbytes <= self._config.pending_nbytes_max:
            self._flow.release(_BEHIND)
        self._idle.unpark_all()

    # A full log

    async def _pause(self, cut: Sequence[Pending], error: WalFullError) -> None:
        """RDY 0, everything goes back; until there is room again, or at the end."""
        log.warning("messages go back to nsqd until there is room: %s", error)
        self._is_full = True
        self._figures.pauses += 1
        self._figures.is_paused = 1
        self._flow.hold(_FULL)
        for pending in cut:
            self._give_back(pending.batch)
        rest, self._pending = list(self._pending), deque()
        for pending in rest:
            self._give_back(pending.batch)
        self._settle(rest)
        nbytes = max(_PROBE_NBYTES, 2 * sum(pending.nbytes for pending in cut))
        nbytes = min(nbytes, self._wal.limits.max_nbytes // 2)
        while not self._is_draining:
            with trio.move_on_after(self._config.probe_s):
                await self._woken()
            try:
                await trio.to_thread.run_sync(self._wal.probe, nbytes)
            except WalFullError:
                continue
            break
        self._is_full = False
        self._figures.is_paused = 0
        self._flow.release(_FULL)
        log.info("there is room again")

    # In the thread

    def _remember(self) -> None:
        for end, parts in self._wal.recent_ids(self._config.duplicates_max):
            for part in parts:
                fresh = self._duplicates.new_ones(part.stream, part.ids)
                ids = part.ids if fresh is None else [part.ids[index] for index in fresh]
                self._duplicates.remember(part.stream, end, ids)

    def _store(self, cut: Sequence[Pending]) -> int:
        """Append what is new to the log; how many messages that was. Raises WalError."""
        self._duplicates.forget_before(self._wal.first)
        blocks = blocks_of(cut, self._config.channel, self._duplicates)
        if not blocks:
            return 0
        end = self._wal.append(blocks)
        for block in blocks:
            self._duplicates.remember(Stream(block.topic, block.nsqd), end, block.ids)
        return sum(len(block.ids) for block in blocks)


def blocks_of(cut: Sequence[Pending], channel: str, duplicates: Duplicates) -> list[Block]:
    """The messages of the batches, by topic and nsqd, without those that are known."""
    streams: dict[Stream, list[Batch]] = {}
    for pending in cut:
        stream = Stream(pending.topic, pending.batch.nsqd_address)
        streams.setdefault(stream, []).append(pending.batch)
    blocks = []
    for stream, batches in streams.items():
        block = _joined(stream, channel, batches)
        fresh = duplicates.new_ones(stream, block.ids)
        if fresh is not None:
            block = Block(
                *block[:3],
                *([column[index] for index in fresh] for column in block[3:]),  # type: ignore[arg-type]
            )
        if block.ids:
            blocks.append(block)
    return blocks


def _joined(stream: Stream, channel: str, batches: Sequence[Batch]) -> Block:
    ids: list[bytes] = []
    timestamps_ns: list[int] = []
    attempts: list[int] = []
    bodies: list[bytes] = []
    for batch in batches:
        ids += batch.ids
        timestamps_ns += batch.timestamps_ns
        attempts += batch.attempts
        bodies += batch.bodies
    return Block(stream.topic, channel, stream.nsqd, ids, timestamps_ns, attempts, bodies)
