"""The stream's reader: what Spark asks for each trigger.

The order of its questions: ``latestOffset``, (Spark writes its offset log), ``commit`` of the
batch before, ``partitions``, ``read`` on the executors. After a crash ``partitions`` comes first,
with the offsets of the batch that was not finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pipelines.source.admission import Admission, AvailableNow
from pipelines.source.offsets import Offset, initial_position, offset_of, position_of
from pipelines.source.options import StreamOptions
from pipelines.source.partitions import LogPartition, partitions_of, read_partition
from pipelines.source.running import Running
from pipelines.wal import read_segment

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NsqStreamReader"]

_DRAIN_POLL_S: Final = 0.02


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics through a log; the receiver starts at the first question that needs it.

    A second object of this class is made for planning and goes to the executors, where only `read`
    is used.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options: StreamOptions | None = options
        self._running: Running | None = None
        self._available_now: AvailableNow | None = None
        self._connected_by_s = 0.0
        self._taken = 0
        self._admission = Admission(
            options.max_messages, options.min_messages, options.max_trigger_delay_s
        )

    def __getstate__(self) -> dict[str, Any]:
        """Executors need nothing of it, least of all a secret."""
        return {"_options": None, "_running": None}

    # Spark's questions

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint begins. Raises DataLossError, WalError."""
        wal = self._begun().wal
        wanted = self._told.starting_offsets
        return offset_of(wal, initial_position(wanted, wal.first, wal.committed, wal.end))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark's API takes one limit only, `latestOffset` knows both."""
        if self._told.max_messages is not None:
            return ReadMaxRows(self._told.max_messages)
        if self._told.min_messages is not None:
            return ReadMinRows(self._told.min_messages)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on only what is there is read. Raises WalError."""
        self._begun()
        self._available_now = AvailableNow(self._told.available_now_idle_s, time.time_ns())
        self._connected_by_s = time.monotonic() + self._told.receiver.connect_timeout_s

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; ``start`` as it came if there is nothing to do.

        Raises:
            ReceiverError: the receiver has failed.
            DataLossError, WalError: the log does not fit, or failed.
        """
        running = self._begun()
        running.receiver.check()
        wal = running.wal
        position = position_of(start, wal, fail_on_data_loss=self._told.fail_on_data_loss)
        # Spark asks only when the batch before is complete. Its own `commit` waits for a next
        # batch, for which a full log would have no room; and a last batch never sees it.
        if position > wal.committed:
            wal.commit(position)
        if self._available_now is not None:
            available = self._drain(self._available_now, position)
        else:
            available = wal.end
        self._taken = self._end_of(position, available, limit)
        if self._taken == position and start["wal"] == wal.id:
            return start
        return offset_of(wal, self._taken)

    def reportLatestOffset(self) -> Offset | None:
        """Figures for ``lastProgress``, beside the newest offset; counts since the start."""
        if self._running is None:
            return None
        running = self._running
        figures = running.receiver.statistics()
        end = running.wal.end
        return offset_of(running.wal, end) | {
            # In the log, but in no batch yet
            "backlog": max(0, end - self._taken),
            "inFlight": figures["pending"],
            "received": figures["received"],
            "stored": figures["stored"],
            "duplicatesDropped": figures["duplicates_dropped"],
            "requeued": figures["requeued"],
            "connections": figures["connections"],
            "topics": figures["topics"],
            "paused": bool(figures["is_paused"]),
            "walBytes": figures["wal_nbytes"],
            "walSegments": figures["wal_segments"],
            "walCommitted": figures["wal_committed"],
        }

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        """The tasks of a batch. Raises DataLossError, WalError."""
        wal = self._begun().wal
        fails = self._told.fail_on_data_loss
        low = position_of(start, wal, fail_on_data_loss=fails)
        high = position_of(end, wal, fail_on_data_loss=fails, is_end=True)
        return partitions_of(
            wal.segments(low, high) if low < high else [], low, high, self._told.min_partitions
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What a task does, on an executor. Raises WalError."""
        return read_partition(partition)

    def commit(self, end: Offset) -> None:
        """The log may forget what is before. Raises WalError."""
        running = self._begun()
        # With failOnDataLoss false the offset may still be another log's.
        if end["wal"] == running.wal.id:
            running.wal.commit(int(end["lsn"]))

    def stop(self) -> None:
        """End the receiver: what was received is stored or given back."""
        if self._running is not None:
            self._running.stop()

    # Inside

    @property
    def _told(self) -> StreamOptions:
        assert self._options is not None, "only the driver has the options"
        return self._options

    def _begun(self) -> Running:
        if self._running is None:
            self._running = Running(self._told)
            self._running.stop_at_sigterm()
        return self._running

    def _end_of(self, start: int, available: int, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable):
            return max(start, available)
        running = self._begun()
        # What is not waited for: a full log gets no more, and now means now.
        may_wait = self._available_now is None and not running.receiver.statistics()["is_paused"]
        return self._admission.end(start, available, time.monotonic(), may_wait=may_wait)

    def _drain(self, now: AvailableNow, start: int) -> int:
        """Wait until there is something after ``start``, or for the end of what there is."""
        running = self._begun()
        while now.target is None:
            end = running.wal.end
            if end > start:
                now.saw(end, _oldest_ns(running, end))
                break
            figures = running.receiver.statistics()
            # nsqlookupd may know of no nsqd: then there is nothing.
            is_connected = figures["connections"] > 0 or time.monotonic() >= self._connected_by_s
            is_quiet = is_connected and not figures["pending"]
            if now.is_over(end, time.monotonic(), is_quiet=is_quiet):
                break
            running.receiver.check()
            time.sleep(_DRAIN_POLL_S)
        end = running.wal.end
        return end if now.target is None else min(end, now.target)


def _oldest_ns(running: Running, end: int) -> int:
    """When the oldest message of the segment that ends there was published."""
    import pyarrow.compute as pc

    (ref,) = running.wal.segments(end - 1, end)
    oldest = min(
        pc.min(batch["timestamp"]).value for batch in read_segment(ref, ref.first, ref.end)
    )
    return int(oldest) * 1000
