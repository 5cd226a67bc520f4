"""The stream reader of ``mode=log``: the methods that Spark calls for each microbatch.

The driver asks nsqds for the ends of their logs, and plans. No message goes through it. It keeps
nothing but Spark's checkpoint, so a process may die at any time.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from pipelines.errors import DataLossError, NsqdAwayError, TopicLogError
from pipelines.source.offsets import BatchLimits
from pipelines.topiclog.batch import Range, check_positions, partitions_of
from pipelines.topiclog.channels import FollowingChannel
from pipelines.topiclog.nsqds import Nsqds
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.places import (
    BEGINNING,
    END,
    LogName,
    Place,
    Places,
    offset_of,
    places_of,
    share_messages,
)
from pipelines.topiclog.tasks import RangePartition, read_range

__all__ = ["TopicLogStreamReader"]

log = logging.getLogger("pipelines.topiclog")

T = TypeVar("T")
_Arguments = TypeVarTuple("_Arguments")

# Spark asks every 10 ms while there is nothing new.
_POLL_S: Final = 0.1


class TopicLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from the logs of nsqds.

    Spark makes a second object for planning and sends it to the executors, which call only `read`.
    """

    def __init__(self, options: TopicLogOptions) -> None:
        self._options = options
        self._nsqds = Nsqds(options)
        self._channel = FollowingChannel(options.channel, self._nsqds)
        self._limits = BatchLimits(
            options.max_messages,
            options.min_messages,
            options.max_trigger_delay_s,
            options.max_bytes,
        )
        # With Trigger.AvailableNow: where each log ended at the start.
        self._targets: Places | None = None
        self._batch_end: Places | None = None
        self._next_poll_s = 0.0
        self._away: dict[LogName, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: a partition has all that its task needs."""
        return {}

    # Called by Spark

    def initialOffset(self) -> dict[str, Any]:
        """The start of a query without a checkpoint.

        Raises:
            NsqdAwayError: an nsqd does not answer within ``nsqdTimeout``. Without it the query
                could not know where its log ends.
            TopicLogError: a topic has no log, or the channel has consumers.
            DataLossError: ``startingOffsets`` names messages that there are not.
        """
        return offset_of(_run(self._find_start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limit. Spark's API has room for one; `latestOffset` applies them all."""
        return self._limits.read_limit()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the messages available now, then end the query.

        Raises NsqdAwayError: with ``whenNsqdIsAway`` ``wait``, after ``nsqdTimeout``.
        """
        self._targets = _run(self._find_targets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next microbatch; ``start`` itself, unchanged, if there is none.

        A log that is new gets its place, and messages from the next microbatch on: so a repeated
        microbatch begins where it began.

        Raises:
            TopicLogError: a topic has no log, or nsqd refuses.
            DataLossError: a log is another one, or lacks messages; not with failOnDataLoss false.
        """
        places = places_of(start)
        end = _run(self._find_end, places, limit)
        self._batch_end = end
        if end == places:
            # Nothing new: the next call may come in 10 ms.
            time.sleep(max(0.0, self._next_poll_s - time.monotonic()))
            self._next_poll_s = time.monotonic() + _POLL_S
            return start
        return offset_of(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs and metrics for ``lastProgress``."""
        if self._batch_end is None:
            return None
        return _run(self._report, self._batch_end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The tasks of a microbatch.

        Raises:
            NsqdAwayError: an nsqd does not answer within ``nsqdTimeout``.
            DataLossError: a log is gone.
        """
        starts, ends = places_of(start), places_of(end)
        ranges = [Range(name, starts[name], ends[name].sequence) for name in starts if name in ends]
        return _run(partitions_of, ranges, self._options, self._nsqds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by a task, on an executor. Raises NsqdAwayError, DataLossError."""
        return read_range(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the channel to the end of a complete microbatch. Raises TopicLogError."""
        _run(self._channel.follow, places_of(end))

    # In trio

    async def _find_start(self) -> Places:
        options = self._options

        async def find(name: LogName) -> Place | None:
            return await self._nsqds.find_place(name, options.starting.of(name))

        places = await self._nsqds.wait_for_all(await self._find_logs(), find)
        if options.fail_on_data_loss:
            check_positions(places, options)
        await self._channel.follow(places)
        return places

    async def _find_logs(self) -> list[LogName]:
        """The logs at the start, when one does without nsqlookupds for a while only."""
        deadline_s = trio.current_time() + self._options.nsqd_timeout_s
        while True:
            try:
                return await self._nsqds.find_logs()
            except NsqdAwayError:
                if trio.current_time() >= deadline_s:
                    raise
            await trio.sleep(_POLL_S)

    async def _find_targets(self) -> Places:
        logs = await self._find_logs()
        ask = self._nsqds.wait_for_all if self._options.waits else self._nsqds.ask_all
        return await ask(logs, self._find_log_end)

    async def _find_log_end(self, name: LogName) -> Place | None:
        return await self._nsqds.find_place(name, END)

    async def _find_end(self, starts: Places, limit: ReadLimit) -> Places:
        # Spark calls this when the previous microbatch is complete. Its `commit` comes with the
        # next one, and never for the last one.
        await self._channel.follow(
            {name: place for name, place in starts.items() if name not in self._away}
        )
        ends = await self._find_ends(starts)
        self._note_away(self._nsqds.away)
        if self._away and self._options.waits:
            return starts
        known = {name: end for name, end in ends.items() if name in starts}
        advanced = [name for name, end in known.items() if end.sequence != starts[name].sequence]
        places = starts | await self._nsqds.ask_all(ends.keys() - starts.keys(), self._find_first)
        moved = await self._check_places({name: starts[name] for name in advanced}, ends)
        places |= moved
        # Messages behind a place that has moved come with the next microbatch, which begins there.
        backlogs = {
            name: ends[name].sequence - starts[name].sequence
            for name in advanced
            if name not in moved
        }
        count = await self._count_messages(backlogs, limit)
        shares = share_messages(backlogs, count)

        async def find(name: LogName) -> Place | None:
            if shares[name] == backlogs[name]:
                return ends[name]
            sequence = places[name].sequence + shares[name]
            return await self._nsqds.find_place(name, str(sequence))

        return places | await self._nsqds.ask_all([name for name in shares if shares[name]], find)

    def _note_away(self, away: Mapping[LogName, str]) -> None:
        what = "waiting for" if self._options.waits else "continuing without"
        for name in away.keys() - self._away.keys():
            log.warning("%s %s: %s", what, name, away[name])
        for name in self._away.keys() - away.keys():
            log.warning("%s is back", name)
        self._away = dict(away)

    async def _find_ends(self, starts: Places) -> Places:
        """Where all logs end, or where they ended when Trigger.AvailableNow began."""
        if self._targets is not None:
            return {
                name: max(end, starts.get(name, end), key=lambda place: place.sequence)
                for name, end in self._targets.items()
            }
        logs = {*await self._find_logs(), *starts}
        return await self._nsqds.ask_all(logs, self._find_log_end)

    async def _find_first(self, name: LogName) -> Place | None:
        return await self._nsqds.find_place(name, BEGINNING)

    async def _check_places(self, starts: Places, ends: Places) -> Places:
        """Other places for logs that are not those of the checkpoint any more.

        Raises:
            DataLossError: there is one, or messages behind a place are lost.
        """

        async def check(name: LogName) -> Place | None:
            try:
                lost = await self._nsqds.find_lost(name, starts[name])
                lost = min(lost, max(0, ends[name].sequence - starts[name].sequence))
                if not lost:
                    return None
                raise DataLossError(f"{name} lacks {lost} messages that retention has removed")
            except DataLossError as error:
                if self._options.fail_on_data_loss:
                    raise DataLossError(
                        f"{error} (or set failOnDataLoss to false to continue with the rest)"
                    ) from error
                log.warning("%s; continuing, because failOnDataLoss is false", error)
            return await self._find_first(name)

        return await self._nsqds.ask_all(starts, check)

    async def _count_messages(self, backlogs: Mapping[LogName, int], limit: ReadLimit) -> int:
        """How many messages the next microbatch has."""
        total = sum(backlogs.values())
        if isinstance(limit, ReadAllAvailable) and self._options.max_bytes is None:
            return total
        is_measured = total and self._options.max_bytes is not None
        nbytes = await self._estimate_bytes(backlogs) if is_measured else 0.0
        return self._limits.batch_end(
            0,
            total,
            time.monotonic(),
            may_wait=self._targets is None,
            message_bytes=nbytes / max(total, 1),
        )

    async def _estimate_bytes(self, backlogs: Mapping[LogName, int]) -> float:
        sizes = await self._nsqds.ask_all(backlogs, self._nsqds.measure)
        return sum(size.message_bytes * backlogs[name] for name, size in sizes.items())

    async def _report(self, places: Places) -> dict[str, Any]:
        try:
            ends = await self._nsqds.ask_all(places, self._find_log_end)
            backlogs = {
                name: end.sequence - places[name].sequence
                for name, end in ends.items()
                if end.sequence > places[name].sequence
            }
            nbytes = await self._estimate_bytes(backlogs)

            async def find_time_ns(name: LogName) -> int | None:
                return await self._nsqds.find_time_ns(name, places[name])

            times_ns = await self._nsqds.ask_all(backlogs, find_time_ns)
        except (TopicLogError, DataLossError) as error:
            # The next microbatch says what is wrong.
            log.warning("no metrics: %s", error)
            return offset_of(places)
        oldest_ns = min(times_ns.values(), default=None)
        lag_s = 0.0 if oldest_ns is None else max(0.0, (time.time_ns() - oldest_ns) / 1e9)
        return offset_of(places | ends) | {
            # In the logs, but in no microbatch yet
            "backlog": sum(backlogs.values()),
            "backlogBytes": round(nbytes),
            "lagSeconds": round(lag_s, 3),
            "nsqds": len({name.nsqd for name in places}),
            "nsqdsAway": len({name.nsqd for name in self._away}),
        }


def _run(work: Callable[[Unpack[_Arguments]], Awaitable[T]], *arguments: *_Arguments) -> T:
    """Run a coroutine in trio. From then on SIGINT is ignored: it is for the user's program."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return trio.run(work, *arguments)
