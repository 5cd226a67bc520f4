"""A log in S3, by moto's server: over the network, while the server is killed and answers get
lost."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Iterator

import pytest

from pipelines.errors import WalError, WalFencedError, WalRangeError
from pipelines.wal import LogView, SegmentRef, Wal, WalLimits, open_logs, read_segment
from pipelines.wal.notes import read_note, write_note
from pipelines.wal.objects import open_store
from tests.pipelines.wal.logs import block
from tests.pipelines.wal.s3 import S3Server, s3_server
from tests.soak import by_level, in_short_soak, more_in_soak

ROOT = "s3://bucket/logs"
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def numbers_of(refs: list[SegmentRef]) -> list[int]:
    """The numbers of all messages, as an executor reads them."""
    found = []
    for ref in pickle.loads(pickle.dumps(refs)):
        for batch in read_segment(ref, ref.first, ref.end):
            found += [int(body) for body in batch.column("body").to_pylist()]
    return found


def test_a_log_is_written_read_trimmed_and_taken_over(
    server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """All by the URL alone, which is all that executors get; the secret is nowhere."""
    caplog.set_level(logging.DEBUG)
    url = f"{ROOT}/a"
    limits = WalLimits(retention_s=0)
    with Wal.open(url, limits=limits) as log:
        for first in range(0, 9, 3):
            log.append([block(first, first + 1), block(first + 2, nsqd="n:2")])
        view = LogView.open(url)
        refs = view.segments(0, 9)
        assert refs == log.segments(0, 9)
        assert b"geheim" not in pickle.dumps(refs) + repr(log).encode()
        assert numbers_of(refs) == list(range(9))
        assert sum(batch.num_rows for batch in read_segment(refs[1], 4, 5)) == 1
        view.commit(6)
        log.probe(1)
        assert (log.committed, log.first) == (6, 6)
        with pytest.raises(WalRangeError, match="trimmed"):
            numbers_of(refs)
        with Wal.open(url, limits=limits) as other:
            with pytest.raises(WalFencedError):
                log.append([block(99)])
            assert other.append([block(9)]) == 10
        assert view.refresh()
        assert numbers_of(view.segments(6, 10)) == [6, 7, 8, 9]
    write_note(url, "NOTE", b"1")
    write_note(url, "NOTE", b"2")
    assert (read_note(url, "NOTE"), read_note(url, "OTHER")) == (b"2", None)
    write_note(f"{ROOT}/other", "NOTE", b"3")
    assert {name: view.path for name, view in open_logs(ROOT).items()} == {"a": url}
    assert open_logs("s3://bucket/none") == {}
    assert "geheim" not in caplog.text


def test_a_bucket_or_a_log_that_is_not_there_is_named(server: S3Server) -> None:
    """At once; the text says what is missing."""
    with pytest.raises(WalError, match="s3://nothing/a"):
        Wal.open("s3://nothing/a")
    ref = SegmentRef(f"{ROOT}/none/segments/x.arrow", 0, 1)
    with pytest.raises(WalError, match="does not find the log") as caught:
        numbers_of([ref])
    assert not isinstance(caught.value, WalRangeError)


@in_short_soak
def test_a_server_that_stalls_is_waited_for(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without an answer is given up after its time, and repeated: what came of the first
    does not matter."""
    monkeypatch.setattr("pipelines.wal.objects._REQUEST_S", 1)
    open_store.cache_clear()
    with Wal.open(f"{ROOT}/stalled") as log:
        log.append([block(0)])
        stall = threading.Thread(target=server.stall, args=(4,))
        stall.start()
        time.sleep(0.5)
        assert log.append([block(1)]) == 2
        stall.join()
        assert log.append([block(2)]) == 3
        assert numbers_of(log.segments(0, 3)) == [0, 1, 2]
    open_store.cache_clear()


@more_in_soak
def test_a_server_that_is_killed_and_loses_answers_loses_and_doubles_nothing(
    server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Appends wait for the server; each message is once in the log, and a reader follows."""
    caplog.set_level(logging.ERROR)
    url = f"{ROOT}/killed"
    rounds = by_level(test=1, short=2, full=4)
    done = threading.Event()
    acknowledged: list[int] = []
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with Wal.open(url) as log:
                while not done.is_set():
                    first = log.end
                    log.append([block(*range(first, first + 10))])
                    acknowledged.extend(range(first, first + 10))
                    time.sleep(0.005)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()

    def go_on() -> None:
        target = len(acknowledged) + 50
        deadline_s = time.monotonic() + LIMIT_S
        while len(acknowledged) < target and not failures:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    go_on()
    view = LogView.open(url)
    for _ in range(rounds):
        server.kill()
        server.start()
        go_on()
        server.loses_answers = True
        time.sleep(0.3)
        server.loses_answers = False
        go_on()
        view.refresh()
        assert view.end <= len(acknowledged) + 10
        view.commit(view.committed + 10)
    done.set()
    writer.join()
    assert not failures
    view.refresh()
    assert view.end == len(acknowledged)
    assert numbers_of(view.segments(view.first, view.end)) == acknowledged[view.first :]
