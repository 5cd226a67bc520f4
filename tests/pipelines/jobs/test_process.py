"""A job as a process of its own: it starts Spark, SIGTERM stops it, a full disk makes it wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from pipelines.wal import Wal
from tests.pipelines.drill.disk import small_disk
from tests.pipelines.jobs.running import rows_in
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.publishing import channel_at_rest, publish, wait_until
from tests.soak import in_short_soak, in_soak
from trionsq.testing import OpenBroker

START_LIMIT_S = 600.0
STOP_LIMIT_S = 180.0


@contextmanager
def running_job(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job in a process group of its own; what it says is in the folder's ``said``."""
    settings = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    with (folder / "said").open("wb") as said:
        job = subprocess.Popen(
            [sys.executable, "-m", "pipelines", *words, "--master=local[1]", *settings],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield job
    finally:
        job.kill()
        job.wait()


def said_in(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")


def await_that(job: subprocess.Popen[bytes], folder: Path, condition: Callable[[], object]) -> None:
    """Wait for it while the job runs."""

    def is_so() -> bool:
        assert job.poll() is None, said_in(folder)
        return bool(condition())

    try:
        wait_until(is_so, START_LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said_in(folder)}") from error


def stop(job: subprocess.Popen[bytes], folder: Path) -> None:
    """SIGTERM to the whole group, as a shell or timeout sends it."""
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(STOP_LIMIT_S) == 0, said_in(folder)
    assert "Exception" not in said_in(folder)
    assert "Java had stopped" not in said_in(folder)


def rows_of(table: Path) -> pa.Table:
    return ds.dataset(table, partitioning="hive").to_table()


@in_short_soak
def test_sigterm_to_the_group_ends_a_job_in_order(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Exit code 0; each message is in the log or waits at nsqd, the table has what the job says.

    How much that is by then is Spark's pace.
    """
    bodies = [b"%06d" % number for number in range(1000)]
    publish(nsqd.http_address, "orders", bodies)
    flags = ["--topic=orders", f"--nsqd-tcp-address={nsqd.tcp_address}", "--trigger=200ms"]
    with running_job(tmp_path, "archive", *flags, "--checkpoint=state", "--output=table") as job:
        await_that(job, tmp_path, lambda: any(tmp_path.glob("table/date=*/*/*.parquet")))
        stop(job, tmp_path)
    rows = rows_of(tmp_path / "table").num_rows
    assert rows > 0
    assert f"archive: {rows:,} rows in " in said_in(tmp_path).splitlines()[-1]
    begun, finished = (
        {path.name for path in (tmp_path / "state" / "spark" / folder).glob("[0-9]*")}
        for folder in ("offsets", "commits")
    )
    assert begun == finished
    channel = channel_at_rest(nsqd.http_address, "orders", "archive")
    assert channel["in_flight_count"] == 0
    with Wal.open(tmp_path / "state" / "wal") as wal:
        assert rows <= wal.end
        assert wal.end + channel["depth"] + channel["deferred_count"] == len(bodies)
    assert not any(tmp_path.glob("table/_staging/*/*"))


@in_soak
def test_a_query_goes_on_when_its_disk_has_room_again(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Log and checkpoint on one disk: filled by the log, nothing fails; by another, it waits."""
    state = tmp_path / "state"
    published = 0

    def publish_more(count: int) -> None:
        nonlocal published
        for first in range(published, published + count, 500):
            publish(nsqd.http_address, "t", [b"%01000d" % n for n in range(first, first + 500)])
        published += count

    def has_rows(count: int) -> bool:
        return rows_in(tmp_path / "table") >= count

    with small_disk(state, "24m") as disk:
        if disk is None:
            pytest.skip("no right to mount a small disk")
        publish_more(1000)
        flags = ["--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", "--trigger=1s"]
        flags += ["--compact-every=0", "--source-option=maxMessagesPerTrigger=2000"]
        with running_job(
            tmp_path, "archive", *flags, "--checkpoint=state", "--output=table"
        ) as job:
            await_that(job, tmp_path, lambda: has_rows(1000))
            # More than the disk has room for: the log leaves Spark what it needs.
            publish_more(30_000)
            await_that(job, tmp_path, lambda: has_rows(8000))
            assert "no space left" not in said_in(tmp_path)

            def is_named() -> bool:
                # The log removes what is committed: that is room, too.
                disk.fill()
                return f"no space left on device: {state} (--checkpoint)" in said_in(tmp_path)

            await_that(job, tmp_path, is_named)
            disk.clear()
            await_that(job, tmp_path, lambda: has_rows(published))
            stop(job, tmp_path)
    rows = rows_of(tmp_path / "table")
    numbers = sorted(int(body) for body in rows["body"].to_pylist())
    assert numbers == [*range(published)]
    assert "there is room again" in said_in(tmp_path)
