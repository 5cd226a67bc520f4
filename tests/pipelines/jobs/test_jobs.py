"""Each job runs as its --help shows, with a real nsqd, in the tests' Spark session."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from pipelines.__main__ import main
from tests.pipelines.jobs.running import QUICK, archived, run_example
from tests.pipelines.sink.rows import taken
from tests.pipelines.source.publishing import channel_at_rest, publish
from tests.pipelines.topiclog.reading import LOG, depth_of, published
from tests.soak import in_short_soak, in_soak
from trionsq.testing import OpenBroker, broker_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NSQD = "127.0.0.1:4150"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, because examples have relative paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def rows_of(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(table, partitioning="hive").to_table().to_pylist()
    return found


@in_short_soak
def test_archive(
    spark: SparkSession, nsqd: OpenBroker, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has each message once, by date and topic, after a restart; files are joined."""
    publish(nsqd.http_address, "orders", numbered(3000))
    assert run_example("archive", spark, {NSQD: nsqd.tcp_address}, [QUICK]) == 0
    publish(nsqd.http_address, "orders", numbered(500, 3000))
    small = ["--source-option=maxMessagesPerTrigger=100", "--target-size=1m"]
    assert run_example("archive", spark, {NSQD: nsqd.tcp_address}, [QUICK, *small]) == 0

    rows = rows_of("run/archive/table")
    assert sorted(row["body"] for row in rows) == numbered(3500)
    assert {row["topic"] for row in rows} == {"orders"}
    assert all(str(row["date"]) == f"{row['timestamp']:%Y-%m-%d}" for row in rows)
    told = capsys.readouterr().err
    first, second = re.findall(r"^archive: ([0-9,]+) rows in ([0-9]+) batch(?:es)?$", told, re.M)
    # In how many is the receiver's pace: the first may begin before all have come
    assert first[0] == "3,000"
    assert second[0] == "500"
    assert int(second[1]) >= 5
    assert "archive: joined" in told
    assert not any(folder.glob("run/archive/table/_staging/*/*"))
    channel = channel_at_rest(nsqd.http_address, "orders", "archive")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)


@in_short_soak
@pytest.mark.nsqd(**LOG)
def test_archive_of_a_log(spark: SparkSession, nsqd: OpenBroker) -> None:
    """By --source-option=mode=log: the channel follows, and a second run goes on."""
    flags = ["archive", "--topic=t", "--checkpoint=state", "--output=table", "--once"]
    options = {"mode": "log", "startingOffsets": "earliest"}
    options["nsqd.http.addresses"] = nsqd.http_address
    flags += [f"--source-option={name}={value}" for name, value in options.items()]
    for first in (0, 300):
        published(nsqd.http_address, numbered(300, first))
        assert main(flags, spark) == 0
    assert sorted(row["body"] for row in rows_of("table")) == numbered(600)
    assert depth_of(nsqd.http_address, "archive") == 0
    assert not Path("state", "wal").exists()


@in_short_soak
def test_counts(spark: SparkSession, nsqd: OpenBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The console shows every window, and all messages are counted."""
    publish(nsqd.http_address, "orders", numbered(2000))
    more = [QUICK, "--window=1d"]
    assert run_example("counts", spark, {NSQD: nsqd.tcp_address}, more) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "orders" in line]
    # Two, if it is midnight just now; and of several batches the last one tells
    last = {line[0]: int(line[4].replace(",", "")) for line in lines}
    assert sum(last.values()) == 2000
    assert all(line[2] == "+86400s" and "max 6 B" in " ".join(line) for line in lines)


@in_soak
def test_counts_into_a_topic(spark: SparkSession, nsqd: OpenBroker) -> None:
    """A complete window, past the watermark, is published as one JSON message."""
    state = "--checkpoint=run/counts"
    flags = ["counts", "--topic=orders", f"--nsqd-tcp-address={nsqd.tcp_address}", state, "--once"]
    flags += ["--window=100ms", "--watermark=1ms", "--destination-topic=figures", QUICK]
    publish(nsqd.http_address, "orders", numbered(100))
    assert main(flags, spark) == 0
    publish(nsqd.http_address, "orders", numbered(100))
    assert main(flags, spark) == 0
    (figures,) = {json.loads(body)["messages"] for body in taken(nsqd.tcp_address, 1, "figures")}
    assert figures == 100


@in_short_soak
def test_deadletter(spark: SparkSession, nsqd: OpenBroker) -> None:
    """Dead messages are in the table and the topic, the others in the rest topic."""
    import trio

    from trionsq.client import Config, Consumer

    publish(nsqd.http_address, "orders", [b"bad", *numbered(5)])

    async def fail() -> None:
        with trio.fail_after(60):
            async with Consumer(
                "orders",
                "billing",
                nsqd_tcp_addresses=[nsqd.tcp_address],
                config=Config(max_backoff_duration_s=0),
            ) as one:
                async for message in one:
                    message.requeue(0 if message.body == b"bad" else 60_000)
                    if message.attempts == 5:
                        return

    trio.run(fail)
    publish(nsqd.http_address, "orders", numbered(10, 5))
    more = [QUICK, "--destination-topic=orders_dead"]
    assert run_example("deadletter", spark, {NSQD: nsqd.tcp_address}, more) == 0
    (dead,) = rows_of("run/dead/table")
    assert (dead["body"], dead["topic"]) == (b"bad", "orders")
    assert dead["attempts"] > 5
    assert taken(nsqd.tcp_address, 1, "orders_dead") == [b"bad"]
    assert sorted(taken(nsqd.tcp_address, 10, "orders_again")) == numbered(10, 5)


@in_short_soak
def test_replay(spark: SparkSession, nsqd: OpenBroker, folder: Path) -> None:
    """The whole topic is published in its order; a second run publishes nothing."""
    table = folder / "run/archive/table"
    archived(table, "orders", range(1, 200, 2))
    archived(table, "orders", range(0, 200, 2))
    archived(table, "other", range(10))
    more = ["--rate=0"]
    assert run_example("replay", spark, {NSQD: nsqd.tcp_address}, more) == 0
    assert run_example("replay", spark, {NSQD: nsqd.tcp_address}, more) == 0
    found = taken(nsqd.tcp_address, 200, "orders_again")
    assert found == [b"%d" % number for number in range(200)]


@in_short_soak
def test_replay_of_a_range_goes_on_where_it_was(
    spark: SparkSession,
    nsqd: OpenBroker,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After a failure the rest of the range is published, and no message outside of it."""
    import pipelines.sink.writers
    from pipelines.errors import PublishError
    from pipelines.jobs import replay

    archived(folder / "t", "orders", range(200))
    flags = ["replay", "--input=t", "--topic=orders", "--checkpoint=state", "--rate=0"]
    flags += ["--since=2026-11-20T23:59:50", "--until=2026-11-21T01:01:00+01:00"]
    flags += [f"--nsqd-tcp-address={nsqd.tcp_address}"]
    real, calls = pipelines.sink.writers.publish, Counter[str]()

    def publish_twice(*arguments: Any) -> int:
        calls["publish"] += 1
        if calls["publish"] == 3:
            raise PublishError("nsqd is gone")
        return real(*arguments)

    monkeypatch.setattr(replay, "_CHUNK_MESSAGES", 20)
    monkeypatch.setattr(pipelines.sink.writers, "publish", publish_twice)
    assert main(flags, spark) == 1
    assert "replay: nsqd is gone\n" in capsys.readouterr().err
    assert main(flags, spark) == 0
    assert calls["publish"] > 3
    found = taken(nsqd.tcp_address, 70, "orders")
    assert found == [b"%d" % number for number in range(50, 120)]
    assert main([*flags, "--topic=other"], spark) == 1
    assert "is of a replay with another topic" in capsys.readouterr().err


@in_short_soak
def test_enrich(spark: SparkSession, nsqd: OpenBroker) -> None:
    """Each message has its columns of the table, as JSON; one without a row in it has null."""
    bodies = [json.dumps({"user": user}).encode() for user in ("anna", "bert", "carl")]
    publish(nsqd.http_address, "orders", bodies)
    assert run_example("enrich", spark, {NSQD: nsqd.tcp_address}, [QUICK]) == 0
    found = [json.loads(body) for body in taken(nsqd.tcp_address, 3, "orders_by_country")]
    countries = {json.loads(row["message"])["user"]: row.get("country") for row in found}
    assert countries == {"anna": "IT", "bert": "DE", "carl": None}


@in_short_soak
def test_mirror(spark: SparkSession, nsqd: OpenBroker) -> None:
    """Every message is in the other cluster, in its own topic."""
    publish(nsqd.http_address, "orders", numbered(1000))
    with broker_in_thread() as other:
        addresses = {NSQD: nsqd.tcp_address, "127.0.0.1:5150": other.tcp_address}
        assert run_example("mirror", spark, addresses, [QUICK]) == 0
        assert sorted(taken(other.tcp_address, 1000, "orders")) == numbered(1000)
        publish(nsqd.http_address, "orders", numbered(10, 1000))
        more = [QUICK, "--checkpoint=other", "--mode=staged"]
        more += ["--destination-topic=copy"]
        assert run_example("mirror", spark, addresses, more) == 0
        assert sorted(taken(other.tcp_address, 10, "copy")) == numbered(10, 1000)


@in_short_soak
def test_a_failure_is_one_line_and_exit_code_1(
    spark: SparkSession, nsqd: OpenBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing nsqd and invalid SQL are each reported in one line."""
    state = ["--checkpoint=state", "--once"]
    nobody = ["--nsqd-tcp-address=127.0.0.1:1", "--source-option=connectTimeout=300ms"]
    assert main(["counts", "--topic=t", *nobody, *state], spark) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("counts: ")]
    assert told[-1].startswith("counts: the receiver failed: ")

    Path("t.csv").write_text("user\nanna\n")
    flags = ["enrich", "--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--table=t.csv"]
    flags += ["--output=o", *state, "--sql=SELECT nothing FROM messages"]
    assert main(flags, spark) == 1
    assert capsys.readouterr().err.startswith("enrich: [UNRESOLVED_COLUMN")
