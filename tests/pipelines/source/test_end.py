"""The end of the reader's process: every message is stored and finished, or requeued."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.wal import Wal
from tests.pipelines.source.publishing import channel_at_rest, publish
from trionsq.testing import OpenBroker

LIMIT_S = 180


@contextmanager
def reader_process(nsqd: OpenBroker, wal_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready, with 1000 messages in the log."""
    program = "tests.pipelines.source.reader_process"
    process = subprocess.Popen(
        [sys.executable, "-m", program, nsqd.tcp_address, str(wal_path), "1000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    # A reader that says nothing must not hold up the test for ever.
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def check_end(nsqd: OpenBroker, wal_path: Path, published: int) -> None:
    """Each message is in the log or at nsqd; none is in flight, and the log is not locked."""
    channel = channel_at_rest(nsqd.http_address, "t", "c")
    assert channel["in_flight_count"] == 0
    with Wal.open(wal_path) as wal:
        assert wal.end + channel["depth"] + channel["deferred_count"] == published


def publish_meanwhile(nsqd: OpenBroker) -> threading.Thread:
    bodies = [b"x" * 100] * 20_000
    thread = threading.Thread(target=publish, args=(nsqd.http_address, "t", bodies))
    thread.start()
    return thread


def test_sigterm_ends_it_in_order(nsqd: OpenBroker, tmp_path: Path) -> None:
    """SIGTERM, with which Spark stops a query, ends the process in order in mid-stream."""
    publish(nsqd.http_address, "t", [b"first"] * 1000)
    with reader_process(nsqd, tmp_path / "wal") as process:
        publishing = publish_meanwhile(nsqd)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        publishing.join()
    check_end(nsqd, tmp_path / "wal", 21_000)


def test_ctrl_c_is_for_the_users_program(nsqd: OpenBroker, tmp_path: Path) -> None:
    """The reader ignores SIGINT, and ends when Spark closes its connection."""
    publish(nsqd.http_address, "t", [b"first"] * 1000)
    with reader_process(nsqd, tmp_path / "wal") as process:
        process.send_signal(signal.SIGINT)
        publishing = publish_meanwhile(nsqd)
        publishing.join()
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        process.stdin = None
    check_end(nsqd, tmp_path / "wal", 21_000)
