"""Partitions of ranges of logs, and the batch read of history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipelines.errors import DataLossError, TopicLogError
from pipelines.topiclog.nsqds import Nsqds
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.places import LogName, Place, cut_range
from pipelines.topiclog.tasks import RangePartition, read_range

__all__ = ["Range", "TopicLogBatchReader", "partitions_of"]


class Range(NamedTuple):
    """A part of a log: from the place ``start`` to before the sequence ``end``."""

    log: LogName
    start: Place
    end: int

    @property
    def messages(self) -> int:
        """Its messages; fewer if some are missing in between."""
        return max(0, self.end - self.start.sequence)


async def partitions_of(
    ranges: list[Range], options: TopicLogOptions, nsqds: Nsqds
) -> list[RangePartition]:
    """Split ranges into partitions of at most ``maxRecordsPerPartition``.

    Raises:
        NsqdAwayError: an nsqd whose range has several parts does not answer in time.
        TopicLogError, DataLossError: nsqd refuses, or the log is another one.
    """
    ranges = [one for one in ranges if one.messages]
    total = sum(one.messages for one in ranges)
    partitions: list[RangePartition] = []

    async def split(name: LogName) -> list[RangePartition]:
        (one,) = (one for one in ranges if one.log == name)
        least = -(-options.min_partitions * one.messages // total)
        bounds = cut_range(
            one.start.sequence, one.end, max(least, -(-one.messages // options.max_records))
        )
        places = [one.start]
        for sequence in bounds[1:-1]:
            place = await nsqds.find_place(name, str(sequence))
            if place is None:
                raise DataLossError(f"{name} is gone: nsqd has no such topic any more")
            places.append(place)
        ends = [place.sequence for place in places[1:]] + [one.end]
        return [
            RangePartition(
                name,
                place.token,
                min(end, one.end),
                options.channel,
                options.client,
                options.nsqd_timeout_s,
                may_lack=not options.fail_on_data_loss,
            )
            for place, end in zip(places, ends, strict=True)
            if place.sequence < end
        ]

    found = await nsqds.wait_for_all([one.log for one in ranges], split)
    for one in ranges:
        partitions += found.get(one.log, ())
    return partitions


class TopicLogBatchReader(DataSourceReader):
    """Reads history: ranges of logs, as they are when the query is planned."""

    def __init__(self, options: TopicLogOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A partition for each task.

        Raises:
            NsqdAwayError: an nsqd does not answer within ``nsqdTimeout``.
            TopicLogError: a topic has no log, or no nsqd has it.
            DataLossError: a log lacks messages from a position of ``startingOffsets`` on.
        """
        return [*trio.run(_plan, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by a task, on an executor. Raises NsqdAwayError, DataLossError."""
        return read_range(partition)


async def _plan(options: TopicLogOptions) -> list[RangePartition]:
    nsqds = Nsqds(options)
    logs = await nsqds.find_logs()

    async def find_range(name: LogName) -> Range | None:
        start = await nsqds.find_place(name, options.starting.of(name))
        end = await nsqds.find_place(name, options.ending.of(name))
        return None if start is None or end is None else Range(name, start, end.sequence)

    ranges = await nsqds.wait_for_all(logs, find_range)
    if not ranges:
        topic = options.topic_pattern or ", ".join(options.topics)
        raise TopicLogError(f"no nsqd has the topic {topic}")
    if options.fail_on_data_loss:
        check_positions({name: one.start for name, one in ranges.items()}, options)
    return await partitions_of([*ranges.values()], options, nsqds)


def check_positions(places: Mapping[LogName, Place], options: TopicLogOptions) -> None:
    """Raise DataLossError if a place is not where ``startingOffsets`` has a number."""
    for name, place in places.items():
        position = options.starting.of(name)
        if position.isdigit() and int(position) != place.sequence:
            raise DataLossError(
                f"{name} has no message {position}: the next one is {place.sequence}; set "
                "failOnDataLoss to false to begin there"
            )
