"""Jobs that write and read Delta tables, in a folder and on an object store."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from pipelines.__main__ import main
from tests.pipelines.jobs.running import QUICK
from tests.pipelines.jobs.stores import S3, s3_server
from tests.pipelines.sink.rows import taken
from tests.pipelines.source.publishing import channel_at_rest, publish
from tests.soak import in_soak
from trionsq.testing import OpenBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "s3://bucket/tables/orders"


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def options_of(s3: S3) -> list[str]:
    return [f"--store-option={name}={value}" for name, value in s3.options.items()]


def bodies_of(location: str, options: dict[str, str] | None = None) -> list[bytes]:
    """What deltalake's own reader sees."""
    table = deltalake.DeltaTable(location, storage_options=options)
    rows = pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT body FROM t"))
    return sorted(rows["body"].to_pylist())


@in_soak
def test_an_archive_on_an_object_store(
    spark: SparkSession,
    nsqd: OpenBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The store is away amid the stream: the query goes on, each message is there once.

    Then the files are joined, and the table is published again.
    """
    bodies = numbered(3000)
    publish(nsqd.http_address, "orders", bodies)
    addresses = f"--nsqd-tcp-address={nsqd.tcp_address}"
    with s3_server() as s3:
        flags = ["archive", "--topic=orders", addresses, "--once", QUICK, "--compact-every=0"]
        flags += ["--format=delta", f"--output={TABLE}", *options_of(s3)]
        flags += [f"--checkpoint={tmp_path}/state", "--source-option=maxMessagesPerTrigger=500"]
        over = threading.Event()

        def disturb() -> None:
            while not over.is_set():
                if sum("part-" in name for name in s3.names()) >= 2:
                    s3.down()
                    time.sleep(4)
                    s3.up()
                    return
                time.sleep(0.1)

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            assert main(flags, spark) == 0
        finally:
            over.set()
            disturber.join()
        assert bodies_of(TABLE, s3.options) == bodies
        told = capsys.readouterr().err
        assert f"archive: {TABLE}: " in told
        assert "the query starts again soon" in told
        channel = channel_at_rest(nsqd.http_address, "orders", "archive")
        assert (channel["depth"], channel["in_flight_count"]) == (0, 0)

        compact = ["compact", f"--table={TABLE}", "--vacuum-retention=0", *options_of(s3)]
        assert main(compact, spark) == 0
        assert "compact: joined " in capsys.readouterr().err
        assert bodies_of(TABLE, s3.options) == bodies

        replay = ["replay", f"--input={TABLE}", "--topic=orders", "--rate=0", *options_of(s3)]
        replay += [f"--checkpoint={tmp_path}/replay", "--destination-topic=again", addresses]
        assert main([*replay, "--since=2020-01-01"], spark) == 0
        assert taken(nsqd.tcp_address, 3000, "again") == bodies


@in_soak
def test_the_other_jobs(
    spark: SparkSession, nsqd: OpenBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """enrich joins with a Delta table and writes one; counts and deadletter write them."""
    monkeypatch.chdir(tmp_path)
    deltalake.write_deltalake("users", pa.table({"user": ["anna"], "country": ["IT"]}))
    publish(nsqd.http_address, "t", [json.dumps({"user": "anna"}).encode()] * 3)
    common = [f"--nsqd-tcp-address={nsqd.tcp_address}", "--once", QUICK, "--format=delta"]
    sql = (
        "SELECT s.country, m.body FROM messages m JOIN static s "
        "ON s.user = get_json_object(CAST(m.body AS STRING), '$.user')"
    )
    enrich = ["--topic=t", "--table=users", f"--sql={sql}", "--checkpoint=e", "--output=enriched"]
    assert main(["enrich", *common, *enrich], spark) == 0
    rows = deltalake.DeltaTable("enriched").to_pyarrow_table()
    assert rows["country"].to_pylist() == ["IT"] * 3

    publish(nsqd.http_address, "dead", numbered(10))
    flags = ["--topic=dead", "--channel=c", "--attempts=1", "--drop-rest"]
    assert main(["deadletter", *common, *flags, "--checkpoint=d", "--output=dead"], spark) == 0
    assert deltalake.DeltaTable("dead").metadata().partition_columns == ["date", "topic"]

    flags = ["--topic=counted", "--window=1ms", "--watermark=1ms", "--checkpoint=c"]
    for count in (3, 1):
        publish(nsqd.http_address, "counted", numbered(count))
        assert main(["counts", *common, *flags, "--output=counted"], spark) == 0
    counted = deltalake.DeltaTable("counted").to_pyarrow_table()
    # The last window is not complete.
    assert sum(counted["messages"].to_pylist()) == 3


def test_formats_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Delta table is not written as plain Parquet files; a URL needs Delta."""
    flags = ["archive", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1"]
    flags += [f"--checkpoint={tmp_path}/state"]
    deltalake.write_deltalake(tmp_path / "table", pa.table({"a": [1]}))
    assert main([*flags, f"--output={tmp_path}/table"]) == 1
    assert capsys.readouterr().err.endswith("is a Delta table: add --format=delta\n")
    assert main([*flags, f"--output={tmp_path}/table", "--format=delta"]) == 1
    assert "is partitioned by nothing, not by date, topic" in capsys.readouterr().err
    assert main([*flags, "--output=s3://bucket/t"]) == 1
    assert "a mounted folder is needed" in capsys.readouterr().err
