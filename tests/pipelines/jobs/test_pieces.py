"""Parts of jobs without Spark: progress, failures, flags, a rate limit, chunks."""

from __future__ import annotations

import argparse
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.__main__ import JOBS, main, make_parser
from pipelines.errors import FolderError
from pipelines.jobs.arguments import local_folder
from pipelines.jobs.job import Job
from pipelines.jobs.replay import PacedChunks, RateLimit, ReplayPosition
from pipelines.jobs.terminal import Progress, one_line, progress_line

# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(second: int, rows: int, **figures: int) -> dict[str, object]:
    told = {"backlog": 7000, "inFlight": 20, "paused": False} | figures
    return {
        "timestamp": f"2026-11-21T10:00:{second:02}.000Z",
        "numInputRows": rows,
        "processedRowsPerSecond": 1234.5,
        "sources": [{"latestOffset": json.dumps(told)}],
    }


def test_progress_counts_each_report_once() -> None:
    """Repeated reports count once, and reports without rows are not batches."""
    progress = Progress("archive", Terminal())
    progress.add_reports([report(1, 100), report(2, 0)])
    progress.add_reports([report(1, 100), report(2, 0), report(3, 50)])
    assert (progress.rows, progress.batches) == (150, 2)


def test_a_terminal_gets_a_line_a_second() -> None:
    """A terminal shows rate, backlog and messages in flight; other outputs get the last line."""
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        progress = Progress("archive", stream)
        progress.add_reports([report(1, 2000)])
        for now_s in (10.0, 10.5, 11.0):
            progress.show(now_s)
        progress.finish()
    line = "archive: 2,000 rows, 1,234 rows/s, backlog 7,000, in flight 20"
    assert terminal.getvalue().count(line) == 2
    assert pipe.getvalue() == "archive: 2,000 rows in 1 batch\n"


def test_a_full_log_is_shown() -> None:
    """The line says that the log is full; before the first report it has no metrics."""
    assert progress_line(5, report(1, 5, paused=True)).endswith("paused: the log is full")
    assert progress_line(0, {}) == "0 rows, 0 rows/s"


# Failures


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] terminated: Traceback (most recent call last):\n"
            '  File "x.py", line 1\npipelines.errors.ReceiverError: the receiver failed: '
            "can't connect\n\n\tat org.apache.spark.Foo\n",
            "the receiver failed: can't connect",
        ),
        (
            "pipelines.options.OptionsError: options of the nsq sink:\n"
            "  there is no option 'x'\nvalid options:\n  topic",
            "options of the nsq sink: there is no option 'x'",
        ),
        (
            "job aborted\n\tat org.x\nCaused by: java.io.IOException: No space left\n\tat java.y",
            "No space left",
        ),
        ("[TABLE_NOT_FOUND] there is no table; line 1 pos 5;\n'Project [*]", None),
        ("", "RuntimeError"),
    ],
)
def test_a_failure_is_one_line(text: str, line: str | None) -> None:
    """The line has the original reason, without stack traces."""
    said = one_line(RuntimeError(text))
    assert said == (line or "[TABLE_NOT_FOUND] there is no table; line 1 pos 5;")
    assert len(one_line(RuntimeError("x" * 5000))) < 500


# Flags


@pytest.mark.parametrize("name", JOBS)
def test_help_has_the_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help prints the example that other tests run, word for word."""
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert JOBS[name].EXAMPLE in capsys.readouterr().out


STATE = ["--checkpoint=state"]
NSQD = ["--nsqd-tcp-address=127.0.0.1:4150"]
LOOKUPD = ["--lookupd-http-address=127.0.0.1:4161"]
BY_LOG = "--source-option=mode=log"
DEAD = ["deadletter", "--topic=t", "--channel=c", "--drop-rest", "--output=o"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["archive", "--topic=t", "--output=o", *STATE], "--nsqd-tcp-address or --lookupd"),
        (
            ["archive", "--topic=t", "--output=o", *NSQD, *STATE, "--lookupd-http-address=a:1"],
            "not both",
        ),
        (["archive", "--topic=t", "--output=o", *NSQD], "--checkpoint"),
        (["archive", "--topic=t!", "--output=o", *NSQD, *STATE], "not a valid name"),
        (
            ["archive", "--topic=t", "--output=o", *NSQD, *STATE, "--source-option=maxInFligt=5"],
            "is maxInFlight meant",
        ),
        (
            ["archive", "--topic=t", "--output=o", *NSQD, *STATE, "--consumer-opt=nope,5"],
            "there is no option",
        ),
        (
            ["archive", "--topic=t", "--output=o", *NSQD, *STATE, "--target-size=5"],
            "must be at least 1024 bytes",
        ),
        (["counts", "--topic=t", *NSQD, *STATE, "--window=10"], "not a time such as 10s"),
        (["counts", "--topic=t", *NSQD, *STATE, "--metrics-address=9404"], "is not HOST:PORT"),
        (
            ["counts", "--topic=t", *NSQD, *STATE, "--output=o", "--destination-topic=x"],
            "not both",
        ),
        (["deadletter", "--topic=t", *NSQD, *STATE, "--output=o"], "--channel is required"),
        (
            ["deadletter", "--topic=t", "--channel=c", *NSQD, *STATE, "--output=o"],
            "either --rest-topic or --drop-rest",
        ),
        (
            ["deadletter", "--topic=t", "--channel=c", *NSQD, *STATE, "--drop-rest"],
            "--output or --destination-topic",
        ),
        (["mirror", "--topic=t", *NSQD, *STATE], "--destination-nsqd-tcp-address"),
        (
            ["mirror", "--topic=a,t", *NSQD, *STATE, "--destination-topic=t"],
            "mirrored into itself",
        ),
        (
            ["mirror", "--topic=t", *NSQD, *STATE, "--destination-topic=u", "--sink-option=x=1"],
            "there is no option",
        ),
        (["replay", "--input=.", "--topic=t", *NSQD, *STATE, "--rate=-1"], "at least 0"),
        (["replay", "--input=.", "--topic=t", *NSQD, *STATE, "--since=soon"], "is not a time such"),
        (["counts", "--topic=t", *NSQD, *STATE, BY_LOG], "mode=log reads by HTTP"),
        (["counts", "--topic=t", *STATE, BY_LOG], "nsqd.http.addresses or lookupd"),
        (["counts", "--topic=t", *LOOKUPD, *STATE, BY_LOG, "--wal=w"], "mode=log has none"),
        ([*DEAD, *LOOKUPD, *STATE, BY_LOG], "mode=log has no attempts"),
        (["receive", "--topic=t", "--channel=c", "--wal=w", BY_LOG], "mode=log has none"),
        (["nope"], "invalid choice"),
    ],
)
def test_wrong_flags_are_told_before_spark_starts(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrong flags print the usage, and the exit code is 2."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert said in capsys.readouterr().err


def test_repeated_flags_and_commas_are_the_same() -> None:
    """Repeated flags equal commas, and client options reach source and sink."""
    from pipelines.jobs.arguments import sink_options, source_options

    words = ["mirror", "--topic=a", "--topic=b,c", *NSQD, *STATE]
    words += ["--destination-nsqd-tcp-address=d:1", "--producer-opt=snappy"]
    words += ["--consumer-opt=auth_secret,x,y"]
    arguments = make_parser().parse_args(words)
    source = source_options(arguments, Path("/state"))
    assert source["topic"] == "a,b,c"
    assert source["client.auth_secret"] == "x,y"
    assert source["walPath"] == "/state/wal"
    sink = sink_options(arguments, None)
    assert (sink["nsqd.tcp.addresses"], sink["client.snappy"]) == ("d:1", "true")
    assert "client.auth_secret" not in sink


def test_a_job_may_read_from_the_log_of_nsqd() -> None:
    """Then it has no receiver's options; an empty --channel is none."""
    from pipelines.jobs.arguments import source_options

    words = ["counts", "--topic=a,b", *STATE, BY_LOG, "--consumer-opt=auth_secret,x,y"]
    expected = {"mode": "log", "topic": "a,b", "client.auth_secret": "x,y"}
    arguments = make_parser().parse_args([*words, *LOOKUPD, "--channel="])
    found = source_options(arguments, Path("/state"))
    assert found == expected | {"lookupd.http.addresses": LOOKUPD[0].partition("=")[2]}
    by_name = {"nsqd.http.addresses": "https://h:4152", "channel": "own"}
    more = [f"--source-option={name}={value}" for name, value in by_name.items()]
    found = source_options(make_parser().parse_args([*words, *more]), Path("/state"))
    assert found == expected | by_name
    arguments = make_parser().parse_args([*words, *LOOKUPD])
    assert source_options(arguments, Path("/state"))["channel"] == "counts"


def test_an_object_store_is_no_folder(tmp_path: Path) -> None:
    """A URL of an object store, or a file, is an error where a folder is needed."""
    with pytest.raises(FolderError, match="--output: s3a://b/t is a URL"):
        local_folder("s3a://b/t", "--output")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="can't be made"):
        local_folder(str(tmp_path / "file" / "x"), "--output")
    assert local_folder(f"file://{tmp_path}/new", "--output").is_dir()


@pytest.mark.parametrize("name", ["archive", "counts", "deadletter", "enrich", "mirror"])
@pytest.mark.parametrize(
    "flag", ["--wal=ftp://bucket/wal", "--wal=file://host/wal", "--wal=hdfs:/wal"]
)
def test_a_log_where_none_can_be_is_a_wrong_flag(
    name: str,
    flag: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit code is 2, and no folder with the URL's name is made."""
    monkeypatch.chdir(tmp_path)
    flags = ["--topic=t", "--nsqd-tcp-address=127.0.0.1:1", "--checkpoint=state", flag]
    flags += {
        "archive": ["--output=table"],
        "deadletter": ["--output=table"],
        "enrich": ["--table=t.csv", "--output=table", "--sql=SELECT 1"],
        "mirror": ["--destination-topic=copy"],
    }.get(name, [])
    with pytest.raises(SystemExit) as ended:
        main([name, *flags])
    assert ended.value.code == 2
    assert "argument --wal: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("submitted", [True, False])
def test_a_job_ends_with_the_spark_submit_that_started_it(
    submitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that has started Spark itself has any parent."""
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")
    job = Job("archive", argparse.Namespace())
    assert not job.wait(0)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert job.wait(0) == job.stopping.is_set() == job.is_orphaned == submitted


# A rate


@given(st.integers(1, 100_000), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_a_rate_is_kept(rate: int, counts: list[int]) -> None:
    """Publishing after each wait takes the time that the rate requires."""
    pace, now_s = RateLimit(rate, 0.0), 0.0
    for count in counts:
        now_s += pace.wait_s(count, now_s)
    assert now_s == pytest.approx(sum(counts[:-1]) / rate)


def test_lost_time_is_not_made_up_for() -> None:
    """After a pause the rate is the same, not higher; 0 is no limit."""
    pace = RateLimit(10, 0.0)
    assert pace.wait_s(10, 0.0) == 0.0
    assert pace.wait_s(10, 100.0) == 0.0
    assert pace.wait_s(10, 100.0) == pytest.approx(1.0)
    free = RateLimit(0, 0.0)
    assert (free.wait_s(10**9, 0.0), free.max_step) == (0.0, None)


# PacedChunks


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for size in sizes:
        yield pa.record_batch({"body": [*range(first, first + size)], "topic": ["t"] * size})
        first += size


def bodies_of(portion: Iterator[pa.RecordBatch]) -> list[int]:
    return [body for batch in portion for body in batch["body"].to_pylist()]


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 25))
def test_portions_have_every_row_once_in_order(sizes: list[int], most: int) -> None:
    """However the pieces and the portions are cut."""
    portions = PacedChunks(batches(*sizes), RateLimit(0, 0.0), threading.Event(), lambda: 0.0)
    found: list[int] = []
    while portions.has_more():
        portion = bodies_of(portions.next_chunk(most, 1.0, ["body"]))
        assert 0 < len(portion) <= most
        found += portion
        assert portions.rows == len(found)
    assert found == [*range(sum(sizes))]


def test_a_portion_ends_when_its_time_is_over_or_a_stop_is_asked_for() -> None:
    """What it had given by then is what counts."""
    clock = iter([0.0, 0.1, 0.1, 0.5, 0.5, 1.5])
    portions = PacedChunks(batches(20), RateLimit(100, 0.0), Waiting(), lambda: next(clock))
    assert bodies_of(portions.next_chunk(1000, 1.0, ["body"])) == [*range(20)]
    assert portions.rows == 20

    stopping = threading.Event()
    portions = PacedChunks(batches(50), RateLimit(100, 0.0), stopping, lambda: 0.0)
    portion = portions.next_chunk(1000, 1.0, ["body"])
    assert len(next(portion)) == 10
    stopping.set()
    assert list(portion) == []
    assert portions.rows == 10


class Waiting(threading.Event):
    """A stop event on which time passes at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


# A replay's position


def test_a_position_is_of_one_replay(tmp_path: Path) -> None:
    """The position of a replay with other flags, or a damaged one, is refused."""
    path = tmp_path / "replay.json"
    ReplayPosition(path, {"topic": "a"}).save(17)
    assert ReplayPosition(path, {"topic": "a"}).rows == 17
    with pytest.raises(FolderError, match="of a replay with another topic: use a new one"):
        ReplayPosition(path, {"topic": "b"})
    path.write_text("{")
    with pytest.raises(FolderError, match="is damaged"):
        ReplayPosition(path, {"topic": "a"})
