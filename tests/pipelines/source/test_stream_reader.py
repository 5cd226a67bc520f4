"""The stream reader, called as Spark calls it: a real nsqd and a real log, no Spark."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipelines.errors import DataLossError, ReceiverError, WalLockedError
from pipelines.schema import ARROW_SCHEMA
from pipelines.source.batch import NsqBatchReader
from pipelines.source.offsets import Offset
from pipelines.source.options import BatchOptions, StreamOptions
from pipelines.source.stream import NsqStreamReader
from pipelines.wal import Wal
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.pipelines.wal.logs import block
from tests.processes import free_address
from trionsq.testing import OpenBroker

ALL = ReadAllAvailable()


@contextmanager
def reading(nsqd: OpenBroker, wal_path: Path, **more: str) -> Iterator[NsqStreamReader]:
    """A reader, stopped at the end. ``wal_`` in an option's name means ``wal.``."""
    options = {
        "topic": "t",
        "channel": "c",
        "nsqd.tcp.addresses": nsqd.tcp_address,
        "walPath": str(wal_path),
        "availableNowIdle": "1s",
    }
    given = options | {name.replace("wal_", "wal."): text for name, text in more.items()}
    reader = NsqStreamReader(StreamOptions.read(given))
    try:
        yield reader
    finally:
        reader.stop()


def bodies_of(reader: NsqStreamReader, start: Offset, end: Offset) -> list[bytes]:
    """The bodies that the tasks of a microbatch read, with a pickled reader."""
    remote = pickle.loads(pickle.dumps(reader))
    found: list[bytes] = []
    for partition in reader.partitions(start, end):
        for batch in remote.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.equals(ARROW_SCHEMA)
            found += batch["body"].to_pylist()
    return found


def latest(reader: NsqStreamReader, start: Offset, messages: int) -> Offset:
    """The offset, once this many messages are available."""
    found: list[Offset] = []

    def has_come() -> bool:
        found.append(reader.latestOffset(start, ALL))
        return int(found[-1]["lsn"]) >= int(start["lsn"]) + messages

    wait_until(has_come)
    return found[-1]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_a_batch_has_what_was_published(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Published messages are stored, visible, finished, and read by a task in another process."""
    publish(nsqd.http_address, "t", numbered(3000))
    with reading(nsqd, tmp_path) as reader:
        start = reader.initialOffset()
        end = latest(reader, start, 3000)
        assert sorted(bodies_of(reader, start, end)) == sorted(numbered(3000))
        assert reader.latestOffset(end, ALL) is end
        assert reader.partitions(end, end) == []
    channel = channel_at_rest(nsqd.http_address, "t", "c")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)


def test_the_limit_of_a_trigger_holds(nsqd: OpenBroker, tmp_path: Path) -> None:
    """maxMessagesPerTrigger limits a microbatch, unless Spark asks for all messages."""
    publish(nsqd.http_address, "t", numbered(1000))
    with reading(nsqd, tmp_path, maxMessagesPerTrigger="300") as reader:
        start = reader.initialOffset()
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(300)
        latest(reader, start, 1000)
        assert reader.latestOffset(start, limit)["lsn"] == 300
        assert reader.latestOffset(start, ALL)["lsn"] == 1000


def test_a_batch_that_was_not_finished_is_the_same_after_a_restart(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """After a restart the same offsets give the same messages."""
    publish(nsqd.http_address, "t", numbered(500))
    with reading(nsqd, tmp_path) as reader:
        start = reader.initialOffset()
        end = latest(reader, start, 500)
        before = bodies_of(reader, start, end)
    publish(nsqd.http_address, "t", numbered(10, first=500))
    with reading(nsqd, tmp_path) as reader:
        assert bodies_of(reader, start, end) == before
        more = latest(reader, end, 10)
        assert sorted(bodies_of(reader, end, more)) == sorted(numbered(10, first=500))


def test_a_question_about_the_next_batch_commits_the_one_before(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """latestOffset commits the previous microbatch, which Spark does later or never."""
    publish(nsqd.http_address, "t", numbered(100))
    with reading(nsqd, tmp_path) as reader:
        end = latest(reader, reader.initialOffset(), 100)
    with Wal.open(tmp_path) as wal:
        assert wal.committed == 0
    with reading(nsqd, tmp_path) as reader:
        reader.latestOffset(end, ALL)
    with Wal.open(tmp_path) as wal:
        assert wal.committed == 100


def test_a_full_log_goes_on_when_spark_has_read_it(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Twice the log's limit passes through, each message once."""
    bodies = [b"%08d" % number + bytes(100_000) for number in range(330)]
    publish(nsqd.http_address, "t", bodies)
    limits = {"wal_maxBytes": "16m", "wal_segmentBytes": "1m", "wal_retention": "0"}
    found: list[bytes] = []
    with reading(nsqd, tmp_path, **limits) as reader:
        start = reader.initialOffset()
        wait_until(lambda: bool((reader.reportLatestOffset() or {})["paused"]))

        def is_complete() -> bool:
            nonlocal start
            end = reader.latestOffset(start, ALL)
            found.extend(body[:8] for body in bodies_of(reader, start, end))
            start = end
            return len(found) >= len(bodies)

        wait_until(is_complete)
        assert reader.latestOffset(start, ALL) is start
        nbytes = (reader.reportLatestOffset() or {})["walBytes"]
    assert sorted(found) == [body[:8] for body in bodies]
    assert nbytes <= 16 << 20


def test_available_now_drains_and_ends(nsqd: OpenBroker, tmp_path: Path) -> None:
    """All earlier messages arrive in microbatches within the limit, then the offset repeats."""
    publish(nsqd.http_address, "t", numbered(1000))
    with reading(nsqd, tmp_path, maxMessagesPerTrigger="400") as reader:
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        ends = []
        while (end := reader.latestOffset(start, ReadMaxRows(400))) is not start:
            ends.append(end["lsn"])
            start = end
        publish(nsqd.http_address, "t", numbered(5))
        assert reader.latestOffset(start, ReadMaxRows(400)) is start
    assert ends[-1] == 1000
    assert all(later - earlier <= 400 for earlier, later in zip([0, *ends], ends, strict=False))


def test_available_now_goes_on_when_a_full_log_has_room_again(tmp_path: Path) -> None:
    """That nothing comes while the log is full does not end the query."""
    options = {"topic": "t", "channel": "c", "nsqd.tcp.addresses": "n:1", "walPath": str(tmp_path)}
    reader = NsqStreamReader(StreamOptions.read({**options, "availableNowIdle": "1ms"}))
    with Wal.open(tmp_path) as wal:
        looks = 0

        class FullReceiver:
            def check(self) -> None:
                """It has not failed."""

            def statistics(self) -> dict[str, int]:
                nonlocal looks
                looks += 1
                if looks == 5:
                    wal.append([block(0)])
                return {"connections": 1, "pending": 0, "is_paused": 1, "wal_bytes": 1}

        reader._session = SimpleNamespace(wal=wal, receiver=FullReceiver())  # type: ignore[assignment]
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(start, ALL)["lsn"] == 1


def test_available_now_ends_where_there_is_no_nsqd(tmp_path: Path) -> None:
    """Without an nsqd for the topic AvailableNow ends."""
    options = {
        "topic": "t",
        "channel": "c",
        "lookupd.http.addresses": free_address(),
        "walPath": str(tmp_path),
        "availableNowIdle": "100ms",
        "connectTimeout": "200ms",
    }
    reader = NsqStreamReader(StreamOptions.read(options))
    try:
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(start, ALL) is start
    finally:
        reader.stop()


def test_a_failed_receiver_is_told_at_the_next_question(nsqd: OpenBroker, tmp_path: Path) -> None:
    """The query fails with the receiver's reason."""
    nobody = {"nsqd.tcp.addresses": free_address(), "connectTimeout": "200ms"}
    with reading(nsqd, tmp_path, **nobody) as reader:
        start = reader.initialOffset()

        def fails() -> bool:
            try:
                reader.latestOffset(start, ALL)
            except ReceiverError:
                return True
            return False

        wait_until(fails)
        with pytest.raises(ReceiverError, match=r"the receiver failed: ."):
            reader.latestOffset(start, ALL)


def test_a_log_of_another_checkpoint_is_refused(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Each method that gets an offset of another log raises DataLossError."""
    other = {"lsn": 5, "wal": "other"}
    with reading(nsqd, tmp_path) as reader:
        with pytest.raises(DataLossError, match="belongs to the log other"):
            reader.latestOffset(other, ALL)
        with pytest.raises(DataLossError, match="belongs to the log other"):
            reader.partitions(other, other)


def test_with_loss_accepted_another_log_is_read_from_its_begin(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """With failOnDataLoss false the old microbatch is empty, the next has all messages."""
    publish(nsqd.http_address, "t", numbered(20))
    other = {"lsn": 5, "wal": "other"}
    with reading(nsqd, tmp_path, failOnDataLoss="false") as reader:
        assert reader.partitions(other, other) == []
        wait_until(lambda: int(reader.latestOffset(other, ALL)["lsn"]) == 20)
        end = reader.latestOffset(other, ALL)
        reader.commit(other)
        assert sorted(bodies_of(reader, other, end)) == sorted(numbered(20))


def test_a_log_in_use_is_refused_after_a_time(nsqd: OpenBroker, tmp_path: Path) -> None:
    """A second query with the same walPath fails with that reason."""
    with reading(nsqd, tmp_path) as first:
        first.initialOffset()
        with (
            reading(nsqd, tmp_path, wal_lockTimeout="200ms") as second,
            pytest.raises(WalLockedError, match="in use by another query"),
        ):
            second.initialOffset()


def test_a_log_is_waited_for_while_its_process_ends(nsqd: OpenBroker, tmp_path: Path) -> None:
    """A restarted query waits for its previous process to release the log."""
    with reading(nsqd, tmp_path) as first, reading(nsqd, tmp_path) as second:
        wal_id = first.initialOffset()["wal"]
        ending = threading.Timer(0.3, first.stop)
        ending.start()
        assert second.initialOffset()["wal"] == wal_id
        ending.join()


def test_executors_get_no_secret(nsqd: OpenBroker, tmp_path: Path) -> None:
    """The pickled reader has none of the options."""
    options = {
        "topic": "t",
        "channel": "c",
        "nsqd.tcp.addresses": nsqd.tcp_address,
        "walPath": str(tmp_path),
        "client.auth_secret": "hush-hush",
    }
    reader = NsqStreamReader(StreamOptions.read(options))
    assert b"hush" not in pickle.dumps(reader)


def test_progress_has_the_figures(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Progress has backlog, in flight, log size and duplicates, but nothing before the start."""
    publish(nsqd.http_address, "t", numbered(50))
    with reading(nsqd, tmp_path, maxMessagesPerTrigger="20") as reader:
        assert reader.reportLatestOffset() is None
        start = reader.initialOffset()
        latest(reader, start, 50)
        end = reader.latestOffset(start, ReadMaxRows(20))
        wait_until(lambda: (reader.reportLatestOffset() or {})["stored"] == 50)
        figures = reader.reportLatestOffset() or {}
    assert end["lsn"] == 20
    assert figures["backlog"] == 30
    assert (figures["received"], figures["lsn"]) == (50, 50)
    assert figures["walBytes"] > 0
    assert (figures["duplicatesDropped"], figures["inFlight"], figures["paused"]) == (0, 0, False)


def test_the_log_can_be_read_by_batch_while_a_query_writes_it(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """A batch read returns the retained messages, or a range, without taking the lock."""
    publish(nsqd.http_address, "t", numbered(100))
    with reading(nsqd, tmp_path) as reader:
        end = latest(reader, reader.initialOffset(), 100)
        reader.commit(end | {"lsn": 40})

        def batch(**given: str) -> int:
            told = BatchOptions.read({"walPath": str(tmp_path)} | given)
            by_batch = NsqBatchReader(told)
            return sum(len(rows) for part in by_batch.partitions() for rows in by_batch.read(part))

        assert batch() == 100
        assert batch(startingOffsets="committed") == 60
        assert batch(endingOffsets="committed", minPartitions="3") == 40
        assert batch(startingOffsets="7", endingOffsets="9") == 2


def test_times_bytes_and_lag_of_the_log(nsqd: OpenBroker, tmp_path: Path) -> None:
    """A query and a batch read begin at a time; what is left is told in bytes and seconds."""
    with reading(nsqd, tmp_path) as reader:
        publish(nsqd.http_address, "t", numbered(100))
        latest(reader, reader.initialOffset(), 100)
        time.sleep(0.01)
        since = str(time.time_ns() // 1_000_000)
        time.sleep(0.01)
        publish(nsqd.http_address, "t", numbered(50, first=100))
        latest(reader, reader.initialOffset(), 150)
        history = NsqBatchReader(
            BatchOptions.read({"walPath": str(tmp_path), "startingTimestamp": since})
        )
        assert bodies_in(history) == sorted(numbered(50, first=100))
        until = BatchOptions.read({"walPath": str(tmp_path), "endingTimestamp": since})
        assert bodies_in(NsqBatchReader(until)) == sorted(numbered(100))
    with reading(nsqd, tmp_path, startingTimestamp=since, maxBytesPerTrigger="1") as reader:
        start = reader.initialOffset()
        assert start["lsn"] == 100
        assert reader.latestOffset(start, ALL)["lsn"] == 101
        report = reader.reportLatestOffset()
        assert report is not None
        assert report["backlog"] == 49
        assert report["backlogBytes"] > 49
        assert report["lagSeconds"] > 0


def bodies_in(reader: NsqBatchReader) -> list[bytes]:
    parts = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(body for batch in parts for body in batch["body"].to_pylist())
