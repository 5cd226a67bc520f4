"""How a task reads its partition: a range of one log, from nsqd's HTTP, on an executor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from itertools import chain
from typing import Final

import pyarrow as pa
import trio
from anyio.from_thread import start_blocking_portal
from pyspark.sql.datasource import InputPartition

from pipelines.errors import DataLossError, NsqdAwayError, TopicLogError
from pipelines.schema import ARROW_SCHEMA, stored_columns
from pipelines.topiclog.nsqds import ACCESS_ADVICE
from pipelines.topiclog.places import LogName
from trionsq.client import Config, LogRefusedError, TopicLogReader
from trionsq.wire.client import Columns
from trionsq.wire.logstream import LogMessages

__all__ = ["RangePartition", "read_range"]

# A record batch has about so much; Spark cuts it as it likes.
_MAX_ROWS: Final = 20_000
_MAX_BYTES: Final = 8 << 20


class RangePartition(InputPartition):
    """A range of a log that one task reads.

    Attributes:
        log: which one.
        token: of the place where it begins.
        end: the first sequence behind it.
        channel: for the column.
        client: how nsqd is reached.
        timeout_s: how long an nsqd that is away is awaited.
        may_lack: messages that the log lacks are passed over.
    """

    def __init__(
        self,
        log: LogName,
        token: str,
        end: int,
        channel: str,
        client: Config,
        timeout_s: float,
        *,
        may_lack: bool,
    ) -> None:
        super().__init__(None)
        self.log = log
        self.token = token
        self.end = end
        self.channel = channel
        self.client = client
        self.timeout_s = timeout_s
        self.may_lack = may_lack

    def __repr__(self) -> str:
        return f"<RangePartition {self.log} to {self.end}>"


def read_range(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages in their order, in record batches.

    Over broken connections and restarts of nsqd each message comes once.

    Raises:
        DataLossError: the log lacks messages, and ``may_lack`` is false.
        NsqdAwayError: nsqd sent nothing for ``nsqdTimeout``.
        TopicLogError: nsqd does not know ``client.auth_secret`` any more, or its user lost a right.
    """
    # Spark passes an empty partition of its own where a batch read has none.
    if not isinstance(partition, RangePartition):
        return
    topic, nsqd = partition.log
    reader = TopicLogReader(
        topic, nsqd, after=partition.token, to=str(partition.end), config=partition.client
    )
    # A thread reads with trio; this one makes Arrow of what it has.
    with start_blocking_portal("trio") as portal:
        messages = reader.batches()
        try:
            while rows := portal.call(_gather, partition, reader, messages):
                yield _record_batch(partition, rows)
        finally:
            portal.call(messages.aclose)


async def _gather(
    partition: RangePartition,
    reader: TopicLogReader,
    messages: AsyncGenerator[LogMessages, None],
) -> list[Columns]:
    """The next messages, as many as a record batch should have; none at the end."""
    gathered: list[Columns] = []
    rows = nbytes = 0
    while rows < _MAX_ROWS and nbytes < _MAX_BYTES:
        with trio.move_on_after(partition.timeout_s) as scope:
            try:
                batch = await anext(messages, None)
            except LogRefusedError as error:
                if error.is_access:
                    raise TopicLogError(f"{error}; {ACCESS_ADVICE}") from error
                if not partition.may_lack:
                    raise DataLossError(f"{partition.log} can't be read: {error}") from error
                batch = None
        if scope.cancelled_caught:
            raise NsqdAwayError(
                f"{partition.log}: no answer within {partition.timeout_s:g} s (nsqdTimeout)"
            )
        if reader.skipped and not partition.may_lack:
            raise DataLossError(
                f"{partition.log} lacks {reader.skipped} messages before {reader.sequence}: they "
                "were removed or are damaged (or set failOnDataLoss to false to continue with the "
                "rest)"
            )
        if batch is None:
            break
        gathered.append(batch.columns)
        rows += len(batch.columns.ids)
        nbytes += sum(map(len, batch.columns.bodies))
    return gathered


def _record_batch(partition: RangePartition, parts: list[Columns]) -> pa.RecordBatch:
    rows = Columns(*([*chain.from_iterable(column)] for column in zip(*parts, strict=True)))
    names = (partition.log.topic, partition.channel, partition.log.nsqd)
    columns = [pa.repeat(pa.scalar(name, pa.string()), len(rows.ids)) for name in names]
    columns += stored_columns(rows.ids, rows.timestamps_ns, rows.attempts, rows.bodies)
    return pa.record_batch(columns, schema=ARROW_SCHEMA)
