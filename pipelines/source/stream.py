"""The stream reader: the methods that Spark calls for each microbatch, and the receiver below it.

Spark calls ``latestOffset``, writes its offset log, then calls ``commit`` for the previous
microbatch, ``partitions``, and ``read`` on the executors. After a crash it calls ``partitions``
first, with the offsets of the microbatch that was not finished.

Spark runs a stream reader in a Python process of its own on the driver. The process ends when Spark
closes the connection to it (``stop`` is called), by SIGTERM (the query's ``stop``), or by SIGKILL.
In the first two cases every received message is stored and finished, or requeued, before the
process exits.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from pipelines.errors import ReceiverError, WalLockedError
from pipelines.receiver import Receiver
from pipelines.receiver.loglines import limit_repeated_lines
from pipelines.source.batch import LogPartition, partitions_of, read_partition, slices_of
from pipelines.source.offsets import (
    AvailableNow,
    BatchLimits,
    Offset,
    offset_of,
    position_of,
)
from pipelines.source.options import StreamOptions
from pipelines.source.times import first_position, mean_bytes, measure_backlog
from pipelines.wal import Wal, read_segment

__all__ = ["NsqStreamReader", "ReceiverSession"]

log = logging.getLogger("pipelines.source")

_DRAIN_POLL_S: Final = 0.02
_LOCK_RETRY_S: Final = 0.1


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics through a log. The first method that needs the receiver starts it.

    Spark makes a second object for planning and sends it to the executors, which call only `read`.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._stream_options: StreamOptions | None = options
        self._session: ReceiverSession | None = None
        self._available_now: AvailableNow | None = None
        self._connected_by_s = 0.0
        self._batch_end = 0
        self._limits = BatchLimits(
            options.max_messages,
            options.min_messages,
            options.max_trigger_delay_s,
            options.max_bytes,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: executors need no options, and must not get the secrets among them."""
        return {"_stream_options": None, "_session": None}

    # Called by Spark

    def initialOffset(self) -> Offset:
        """The start of a query without a checkpoint. Raises DataLossError, WalError."""
        wal = self._started().wal
        options = self._options
        position = first_position(wal, options.starting_offsets, options.starting_time)
        return offset_of(wal, position)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limit. Spark's API has room for one; `latestOffset` applies both."""
        return self._limits.read_limit()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the messages available now, then end the query. Raises WalError."""
        self._started()
        self._available_now = AvailableNow(self._options.available_now_idle_s, time.time_ns())
        self._connected_by_s = time.monotonic() + self._options.receiver.connect_timeout_s

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next microbatch; ``start`` itself, unchanged, if there is none.

        Raises:
            ReceiverError: the receiver has failed.
            DataLossError, WalError: the log does not match the checkpoint, or has failed.
        """
        session = self._started()
        session.receiver.check()
        wal = session.wal
        position = position_of(start, wal, fail_on_data_loss=self._options.fail_on_data_loss)
        # Spark calls this when the previous microbatch is complete. Its `commit` comes with the
        # next one, for which a full log would have no room, and never for the last one.
        if position > wal.committed:
            wal.commit(position)
        if self._available_now is not None:
            available = self._wait_for_messages(self._available_now, position)
        else:
            available = wal.end
        self._batch_end = self._end_of_batch(position, available, limit)
        if self._batch_end == position and start["wal"] == wal.id:
            return start
        return offset_of(wal, self._batch_end)

    def reportLatestOffset(self) -> Offset | None:
        """The newest offset and metrics for ``lastProgress``; counters since the start."""
        if self._session is None:
            return None
        wal = self._session.wal
        metrics = self._session.receiver.statistics()
        end = wal.end
        backlog = measure_backlog(wal, self._batch_end, metrics["wal_bytes"], time.time())
        # What is in the log, but in no microbatch yet, comes first.
        return offset_of(wal, end) | {
            **backlog,
            "inFlight": metrics["pending"],
            "received": metrics["received"],
            "stored": metrics["stored"],
            "duplicatesDropped": metrics["duplicates_dropped"],
            "requeued": metrics["requeued"],
            "connections": metrics["connections"],
            "topics": metrics["topics"],
            "paused": bool(metrics["is_paused"]),
            "walBytes": metrics["wal_bytes"],
            "walSegments": metrics["wal_segments"],
            "walCommitted": metrics["wal_committed"],
        }

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        """The tasks of a microbatch. Raises DataLossError, WalError."""
        wal = self._started().wal
        fails = self._options.fail_on_data_loss
        low = position_of(start, wal, fail_on_data_loss=fails)
        high = position_of(end, wal, fail_on_data_loss=fails, is_end=True)
        refs = wal.segments(low, high) if low < high else []
        limits = self._options.min_partitions, self._options.max_records
        return partitions_of(slices_of(refs, low, high), *limits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by a task, on an executor. Raises WalError."""
        return read_partition(partition)

    def commit(self, end: Offset) -> None:
        """Allow the log to remove the messages before ``end``. Raises WalError."""
        session = self._started()
        # With failOnDataLoss false the offset may be another log's.
        if end["wal"] == session.wal.id:
            session.wal.commit(int(end["lsn"]))

    def stop(self) -> None:
        """Stop the receiver: received messages are stored or requeued."""
        if self._session is not None:
            self._session.stop()

    # Inside

    @property
    def _options(self) -> StreamOptions:
        assert self._stream_options is not None, "only the driver has the options"
        return self._stream_options

    def _started(self) -> ReceiverSession:
        if self._session is None:
            self._session = ReceiverSession(self._options)
            self._session.stop_at_sigterm()
        return self._session

    def _end_of_batch(self, start: int, available: int, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable) and self._options.max_bytes is None:
            return max(start, available)
        session = self._started()
        metrics = session.receiver.statistics()
        # A full log receives no more, and AvailableNow must not wait.
        may_wait = self._available_now is None and not metrics["is_paused"]
        return self._limits.batch_end(
            start,
            available,
            time.monotonic(),
            may_wait=may_wait,
            message_bytes=mean_bytes(session.wal, metrics["wal_bytes"]),
        )

    def _wait_for_messages(self, available_now: AvailableNow, start: int) -> int:
        """Wait for messages after ``start``, or for the end of the available ones."""
        session = self._started()
        while available_now.target is None:
            end = session.wal.end
            if end > start:
                available_now.add_segment(end, _oldest_ns(session.wal, end))
                break
            metrics = session.receiver.statistics()
            # nsqlookupd may know no nsqd; then no message is available.
            is_connected = metrics["connections"] > 0 or time.monotonic() >= self._connected_by_s
            # A log without room receives nothing for a time; that is not the end.
            is_quiet = is_connected and not metrics["pending"] and not metrics["is_paused"]
            if available_now.is_complete(end, time.monotonic(), is_quiet=is_quiet):
                break
            session.receiver.check()
            time.sleep(_DRAIN_POLL_S)
        end = session.wal.end
        return end if available_now.target is None else min(end, available_now.target)


def _oldest_ns(wal: Wal, end: int) -> int:
    """When the oldest message of the segment that ends at ``end`` was published."""
    (ref,) = wal.segments(end - 1, end)
    oldest = min(
        pc.min(batch["timestamp"]).value for batch in read_segment(ref, ref.first, ref.end)
    )
    return int(oldest) * 1000


class ReceiverSession:
    """An open log with its receiver, from the creation of the object until `stop`."""

    def __init__(self, options: StreamOptions) -> None:
        """Open the log and start the receiver.

        Waits for the previous process of the query, which may still be stopping.

        Raises:
            WalLockedError: another process holds the log for longer than ``wal.lockTimeout``.
            WalError: the log can't be opened.
        """
        self.wal = _open(options)
        self.receiver = Receiver(options.receiver, self.wal)
        self._stopping = threading.Lock()
        self._is_stopped = False
        self._handlers: dict[int, Any] = {}
        self.receiver.start()

    def stop(self) -> None:
        """Store, finish or requeue every received message, and close the log, within a limit.

        A second call, from any thread, waits for the first and does nothing.
        """
        with self._stopping:
            if self._is_stopped:
                return
            self._is_stopped = True
            self._restore_handlers()
            try:
                self.receiver.stop()
            except ReceiverError as error:
                # The log stays locked, because the receiver might still write.
                log.error("%s", error)
            else:
                self.wal.close()

    def stop_at_sigterm(self) -> None:
        """Make SIGTERM call `stop` and exit. SIGINT is ignored: it is for the user's program."""
        if threading.current_thread() is threading.main_thread():
            limit_repeated_lines()
            self._handlers = {
                signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
                signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: self._start_exit()),
            }

    def _restore_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():
            while self._handlers:
                signal.signal(*self._handlers.popitem())

    def _start_exit(self) -> None:
        # In a thread: the signal may have interrupted the main thread while it holds a log's lock.
        threading.Thread(target=self._exit, name="exit of the reader").start()

    def _exit(self) -> NoReturn:
        try:
            self.stop()
        finally:
            os._exit(0)


def _open(options: StreamOptions) -> Wal:
    deadline_s = time.monotonic() + options.lock_timeout_s
    while True:
        try:
            return Wal.open(options.wal_path, create=True, limits=options.limits)
        except WalLockedError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_LOCK_RETRY_S)
