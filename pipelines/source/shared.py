"""The stream reader of logs that receivers elsewhere write: ``walPath=.../*``.

The driver lists the logs and plans; it has no receiver, and no message goes through it. While it is
away, the receivers go on. `pipelines.source.stream` describes the calls by Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from pipelines.errors import WalFullError
from pipelines.source.batch import LogPartition, partitions_of, read_partition, slices_of
from pipelines.source.logs import Positions, added_logs, offset_of_logs, positions_of, shares
from pipelines.source.logset import LogSet
from pipelines.source.offsets import BatchLimits, Offset
from pipelines.source.options import LogsOptions
from pipelines.source.times import measure_lag

__all__ = ["NsqLogsReader"]

log = logging.getLogger("pipelines.source")


class NsqLogsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads all logs below one folder. Executors get the partitions alone."""

    def __init__(self, options: LogsOptions) -> None:
        self._logs_options: LogsOptions | None = options
        self._log_set: LogSet | None = None
        # The ends that Trigger.AvailableNow reads to
        self._targets: Positions | None = None
        self._batch_end: Positions = {}
        self._limits = BatchLimits(
            options.max_messages,
            options.min_messages,
            options.max_trigger_delay_s,
            options.max_bytes,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: executors need no options."""
        return {"_logs_options": None, "_log_set": None}

    # Called by Spark

    def initialOffset(self) -> Offset:
        """The start of a query without a checkpoint. Raises WalError."""
        logs = self._logs.refresh()
        if not logs:
            log.warning("%s has no logs yet: no receiver has started", self._logs.root)
        options = self._options
        return offset_of_logs(
            logs, added_logs(logs, {}, options.starting_offsets, options.starting_time)
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limit. Spark's API has room for one; `latestOffset` applies both."""
        return self._limits.read_limit()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what the logs have now, then end the query. Raises WalError.

        What is still in nsqd comes with a later run, when its receiver has stored it.
        """
        self._targets = {name: item.end for name, item in self._logs.refresh().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next microbatch; ``start`` itself, unchanged, if there is none.

        Raises:
            DataLossError, WalError: a log does not match the checkpoint, or can't be read.
        """
        logs = self._logs.refresh()
        positions = self._positions_of(start)
        # Spark's own `commit` comes with the next microbatch, and never for the last one.
        self._commit(positions)
        ends = {name: self._end_of(name) for name in positions}
        backlogs = {name: max(0, ends[name] - lsn) for name, lsn in positions.items()}
        count = sum(backlogs.values())
        if not isinstance(limit, ReadAllAvailable) or self._options.max_bytes is not None:
            count = self._limits.batch_end(
                0,
                count,
                time.monotonic(),
                may_wait=self._targets is None and not self._logs.is_any_full,
                message_bytes=self._message_bytes(),
            )
        parts = shares(backlogs, count)
        batch_end = {name: lsn + parts[name] for name, lsn in positions.items()}
        # Logs that appear while available messages are read are for the next run.
        known = logs if self._targets is None else logs.keys() & self._targets.keys()
        batch_end |= added_logs({name: logs[name] for name in known}, positions)
        self._batch_end = batch_end
        if not count and batch_end.keys() == _names_of(start, positions):
            return start
        return offset_of_logs(logs, batch_end)

    def reportLatestOffset(self) -> Offset | None:
        """The newest offset and metrics for ``lastProgress``."""
        if self._log_set is None:
            return None
        logs = self._log_set.logs
        ends = {name: item.end for name, item in logs.items()}
        metrics = self._log_set.metrics()
        backlog = sum(max(0, end - self._batch_end.get(name, end)) for name, end in ends.items())
        starts = [(logs[name], self._batch_end.get(name, end)) for name, end in ends.items()]
        return offset_of_logs(logs, ends) | {
            "backlog": backlog,
            "backlogBytes": round(backlog * self._message_bytes()),
            **measure_lag(starts, time.time()),
            **metrics,
        }

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        """The tasks of a microbatch. Raises DataLossError, WalError."""
        logs = self._logs.refresh()
        low, high = self._positions_of(start), self._positions_of(end, is_end=True)
        slices = []
        # A log that the start lacks has only just been found: its messages come next.
        for name in sorted(low.keys() & high.keys()):
            if low[name] < high[name]:
                refs = logs[name].segments(low[name], high[name])
                slices += slices_of(refs, low[name], high[name])
        return partitions_of(slices, self._options.min_partitions, self._options.max_records)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by a task, on an executor. Raises WalError."""
        return read_partition(partition)

    def commit(self, end: Offset) -> None:
        """Let the receivers remove the messages before ``end``. Raises DataLossError, WalError."""
        self._logs.refresh()
        self._commit(self._positions_of(end, is_end=True))

    def stop(self) -> None:
        """Let another query read the logs. The receivers go on."""
        if self._log_set is not None:
            self._log_set.close()

    # Inside

    @property
    def _options(self) -> LogsOptions:
        assert self._logs_options is not None, "only the driver has the options"
        return self._logs_options

    @property
    def _logs(self) -> LogSet:
        if self._log_set is None:
            self._log_set = LogSet(self._options.root, lock_timeout_s=self._options.lock_timeout_s)
        return self._log_set

    def _positions_of(self, offset: Offset, *, is_end: bool = False) -> Positions:
        return positions_of(
            offset,
            self._logs.logs,
            fail_on_data_loss=self._options.fail_on_data_loss,
            is_end=is_end,
        )

    def _end_of(self, name: str) -> int:
        end = self._logs.logs[name].end
        return end if self._targets is None else min(end, self._targets.get(name, 0))

    def _message_bytes(self) -> float:
        """The mean size of a message; 0 if it is not known."""
        messages = sum(item.end - item.first for item in self._logs.logs.values())
        nbytes: int = self._logs.metrics()["walBytes"]
        return nbytes / messages if messages else 0.0

    def _commit(self, positions: Mapping[str, int]) -> None:
        for name, lsn in positions.items():
            if lsn > self._logs.logs[name].committed:
                try:
                    self._logs.logs[name].commit(lsn)
                except WalFullError as error:
                    # Spark has the position, too; it is committed here with a later microbatch.
                    log.warning("%s", error)


def _names_of(offset: Offset, positions: Positions) -> set[str]:
    """The names in the offset; an offset of one log has the name of that log."""
    return set(offset.get("logs", positions))
