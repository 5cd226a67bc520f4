"""Our pipelines and the original's nsqd and nsqlookupd: into the log, through Spark, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from pipelines.sink.writers import publish as publish_rows
from pipelines.wal import Wal, WalLimits
from pipelines.wal.folder import FolderPlace
from tests.interop.original import binary, needs_original, request
from tests.interop.original import until as answered
from tests.pipelines.receiver.drive import (
    SlowDisk,
    channel_of,
    publish,
    running,
    stored,
    until,
)
from tests.pipelines.settings import MASTER, SETTINGS
from tests.pipelines.sink.rows import numbers, options, taken
from tests.pipelines.wal.logs import numbers_on
from tests.processes import (
    OTHER_BINARY_VARIABLE,
    OTHER_LOOKUPD_VARIABLE,
    DaemonProcess,
    NsqdProcess,
    running_nsqd,
    running_nsqlookupd,
)
from trionsq.client import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = needs_original

COUNT = 20_000
QUERY_LIMIT_S = 60
QUICK = Config(lookupd_poll_interval_s=0.1, lookupd_poll_jitter=0)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `running_nsqd` and `running_nsqlookupd` start."""
    monkeypatch.setenv(OTHER_BINARY_VARIABLE, binary("nsqd"))
    monkeypatch.setenv(OTHER_LOOKUPD_VARIABLE, binary("nsqlookupd"))


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    from pipelines.session import spark_session

    warehouse = {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    session = spark_session("interop", MASTER, **SETTINGS, **warehouse)
    yield session
    session.stop()


@asynccontextmanager
async def nsqd_and_lookupd(tmp_path: Path) -> AsyncIterator[tuple[NsqdProcess, DaemonProcess]]:
    """Both of the original, the one registered at the other."""
    (tmp_path / "nsqd").mkdir()
    async with running_nsqlookupd() as lookupd:
        flags = [
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            f"--mem-queue-size={COUNT}",
        ]
        async with running_nsqd(tmp_path / "nsqd", flags) as nsqd:

            async def registered() -> int:
                answer = await request(f"http://{lookupd.http_address}/nodes")
                return len(answer["producers"])

            await answered(registered, 1)
            yield nsqd, lookupd


async def test_every_message_is_once_in_the_log(tmp_path: Path) -> None:
    """From an nsqd that was found by nsqlookupd; nothing is left there, and nothing came again."""

    def receive(nsqd: NsqdProcess, lookupd: DaemonProcess) -> None:
        publish(nsqd.http_address, range(COUNT))
        found_by = {"lookupd_http_addresses": (lookupd.http_address,), "client": QUICK}
        with Wal.open(tmp_path / "log") as wal:
            with running(wal, **found_by) as receiver:
                until(lambda: receiver.end >= COUNT, receiver)
                until(lambda: not channel_of(nsqd.http_address)["in_flight_count"], receiver)
                figures = receiver.statistics()
            assert sorted(stored(wal)) == list(range(COUNT))
        assert (figures["duplicates_dropped"], figures["requeued"]) == (0, 0)
        channel = channel_of(nsqd.http_address)
        assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
        assert (channel["requeue_count"], channel["timeout_count"]) == (0, 0)
        assert channel["client_count"] == 0

    async with nsqd_and_lookupd(tmp_path) as daemons:
        await trio.to_thread.run_sync(receive, *daemons)


async def test_what_it_delivers_again_is_recognized(tmp_path: Path) -> None:
    """The disk is slower than the time-out: stored once, and finished."""
    disk = SlowDisk()

    def receive(nsqd: NsqdProcess) -> None:
        publish(nsqd.http_address, range(1000))
        wal = Wal(FolderPlace(disk), create=True, limits=WalLimits())
        with running(wal, nsqd.tcp_address, msg_timeout_ms=1000) as receiver:
            until(lambda: receiver.statistics()["pending"], receiver)
            until(lambda: channel_of(nsqd.http_address)["timeout_count"] >= 1000, receiver)
            disk.may_sync.set()
            until(lambda: receiver.end == 1000, receiver)
            until(lambda: not channel_of(nsqd.http_address)["in_flight_count"], receiver)
            assert receiver.statistics()["duplicates_dropped"] > 0
        channel = channel_of(nsqd.http_address)
        assert (channel["depth"], channel["in_flight_count"]) == (0, 0)

    async with running_nsqd(tmp_path) as nsqd:
        await trio.to_thread.run_sync(receive, nsqd)
    assert sorted(numbers_on(disk)) == list(range(1000))


async def test_topics_of_a_pattern_are_found_also_later(tmp_path: Path) -> None:
    """Those that its nsqlookupd lists and that match; others keep their messages."""

    def receive(nsqd: NsqdProcess, lookupd: DaemonProcess) -> None:
        publish(nsqd.http_address, range(10), "a.one")
        publish(nsqd.http_address, range(20), "b.one")
        pattern = {"topics": (), "topic_pattern": r"a\..*", "client": QUICK}
        with (
            Wal.open(tmp_path / "log") as wal,
            running(wal, lookupd_http_addresses=(lookupd.http_address,), **pattern) as receiver,
        ):
            until(lambda: receiver.end == 10, receiver)
            publish(nsqd.http_address, range(10, 25), "a.two")
            until(lambda: receiver.end == 25, receiver)
            assert sorted(stored(wal)) == list(range(25))

    async with nsqd_and_lookupd(tmp_path) as daemons:
        await trio.to_thread.run_sync(receive, *daemons)


async def test_what_the_sink_publishes_is_there(tmp_path: Path) -> None:
    """Confirmed MPUBs to an nsqd that its nsqlookupd names: each row is one message."""

    def write(nsqd: NsqdProcess, lookupd: DaemonProcess) -> list[bytes]:
        # A topic that nobody has yet: all nsqds of the nsqlookupd are meant.
        addresses = {"lookupd__http__addresses": lookupd.http_address}
        assert publish_rows(numbers(0, COUNT), options(**addresses)) == COUNT
        return taken(nsqd.tcp_address, COUNT)

    async with nsqd_and_lookupd(tmp_path) as daemons:
        found = await trio.to_thread.run_sync(write, *daemons)
    assert Counter(found) == Counter(b"%d" % number for number in range(COUNT))


async def test_a_stream_of_spark_from_one_topic_into_another(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Source and sink in one query: each message is once in the other topic."""

    def stream(nsqd: NsqdProcess, lookupd: DaemonProcess) -> None:
        publish(nsqd.http_address, range(COUNT))
        source = spark.readStream.format("nsq").option("topic", "t").option("channel", "c")
        rows = (
            source.option("lookupd.http.addresses", lookupd.http_address)
            .option("walPath", f"{tmp_path}/log")
            .load()
        )
        sink = rows.select("body").writeStream.format("nsq").queryName("t to u")
        query = (
            sink.option("nsqd.tcp.addresses", nsqd.tcp_address)
            .option("topic", "u")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_LIMIT_S)
        finally:
            query.stop()
        assert channel_of(nsqd.http_address)["depth"] == 0

    async with nsqd_and_lookupd(tmp_path) as (nsqd, lookupd):
        # In this thread: Spark finds formats of Python only where the session was made.
        stream(nsqd, lookupd)
        found = await trio.to_thread.run_sync(taken, nsqd.tcp_address, COUNT, "u")
    assert Counter(found) == Counter(b"%d" % number for number in range(COUNT))
