"""The stream reader of several logs, called as Spark calls it; real receivers and a real nsqd."""

from __future__ import annotations

import errno
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipelines.errors import (
    DataLossError,
    OptionsError,
    WalDamagedError,
    WalError,
    WalLockedError,
)
from pipelines.source import logset
from pipelines.source.batch import NsqBatchReader
from pipelines.source.logs import shares
from pipelines.source.offsets import Offset
from pipelines.source.options import BatchOptions, LogsOptions, logs_root
from pipelines.source.shared import NsqLogsReader
from pipelines.wal import Block, LogView, Wal, WalLimits, meta
from pipelines.wal.folder import FolderSource
from trionsq.disk import RealDisk

ALL = ReadAllAvailable()


def fill(wal: Wal, *bodies: bytes) -> None:
    """Append a segment."""
    first = wal.end
    ids = [b"%016d" % (first + index) for index in range(len(bodies))]
    times, attempts = [0] * len(bodies), [1] * len(bodies)
    wal.append([Block("t", "c", "n:1", ids, times, attempts, bodies)])


@contextmanager
def reading(root: Path, **more: str) -> Iterator[NsqLogsReader]:
    """A reader of all logs below the folder, stopped at the end."""
    reader = NsqLogsReader(LogsOptions.read({"walPath": f"{root}/*", **more}))
    try:
        yield reader
    finally:
        reader.stop()


def bodies_of(reader: NsqLogsReader, start: Offset, end: Offset) -> list[bytes]:
    """The bodies that the tasks of a microbatch read, with a pickled reader."""
    remote = pickle.loads(pickle.dumps(reader))
    found: list[bytes] = []
    for partition in reader.partitions(start, end):
        for batch in remote.read(pickle.loads(pickle.dumps(partition))):
            found += batch["body"].to_pylist()
    return found


def lsns(offset: Offset) -> dict[str, int]:
    """The positions by name."""
    return {name: entry["lsn"] for name, entry in offset["logs"].items()}


def test_a_microbatch_has_the_messages_of_all_logs(tmp_path: Path) -> None:
    """One microbatch reads every log; nothing new means the same offset."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b, reading(tmp_path) as reader:
        fill(a, b"1", b"2")
        fill(b, b"3")
        start = reader.initialOffset()
        assert lsns(start) == {"a": 0, "b": 0}
        end = reader.latestOffset(start, ALL)
        assert lsns(end) == {"a": 2, "b": 1}
        assert bodies_of(reader, start, end) == [b"1", b"2", b"3"]
        assert reader.latestOffset(end, ALL) is end
        assert reader.partitions(end, end) == []


def test_a_limit_is_shared_among_the_logs(tmp_path: Path) -> None:
    """maxMessagesPerTrigger holds for all logs together, and no log waits for another."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b:
        fill(a, *[b"a"] * 100)
        fill(b, b"b")
        with reading(tmp_path, maxMessagesPerTrigger="10") as reader:
            limit = reader.getDefaultReadLimit()
            assert limit == ReadMaxRows(10)
            start = reader.initialOffset()
            end = reader.latestOffset(start, limit)
            assert lsns(end) == {"a": 9, "b": 1}
            assert lsns(reader.latestOffset(end, limit)) == {"a": 19, "b": 1}


@pytest.mark.parametrize(
    ("backlogs", "count", "expected"),
    [
        ({"a": 5, "b": 5}, 5, {"a": 2, "b": 3}),
        ({"a": 0, "b": 9, "c": 9}, 7, {"a": 0, "b": 3, "c": 4}),
        ({"a": 3, "b": 2}, 5, {"a": 3, "b": 2}),
        ({}, 0, {}),
    ],
)
def test_shares_add_up(backlogs: dict[str, int], count: int, expected: dict[str, int]) -> None:
    """Equal parts, all of a small log, and no message more or less than asked for."""
    assert shares(backlogs, count) == expected


def test_a_new_log_is_read_from_its_start_by_repeatable_microbatches(tmp_path: Path) -> None:
    """A log enters the offset at its start; its messages are in the next microbatch."""
    with Wal.open(tmp_path / "a") as a, reading(tmp_path) as reader:
        fill(a, b"1")
        first = reader.latestOffset(reader.initialOffset(), ALL)
        with Wal.open(tmp_path / "b") as b:
            fill(b, b"2", b"3")
            second = reader.latestOffset(first, ALL)
            assert lsns(second) == {"a": 1, "b": 0}
            assert reader.partitions(first, second) == []
            third = reader.latestOffset(second, ALL)
            assert bodies_of(reader, second, third) == [b"2", b"3"]
            assert bodies_of(reader, second, third) == [b"2", b"3"]


def test_a_completed_microbatch_is_committed_in_each_log(tmp_path: Path) -> None:
    """Each receiver learns how far its log may be trimmed, when it looks or opens the log."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b:
        fill(a, b"1", b"2")
        fill(b, b"3")
        with reading(tmp_path) as reader:
            end = reader.latestOffset(reader.initialOffset(), ALL)
            reader.latestOffset(end, ALL)
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b:
        assert (a.committed, b.committed) == (2, 1)
        fill(a, b"4")
        with reading(tmp_path) as reader:
            start = reader.initialOffset()
            assert bodies_of(reader, start, reader.latestOffset(start, ALL)) == [b"4"]


def test_available_now_ends_where_the_logs_end(tmp_path: Path) -> None:
    """What arrives after the start of the run is for the next one."""
    with Wal.open(tmp_path / "a") as a, reading(tmp_path) as reader:
        fill(a, b"1")
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        fill(a, b"2")
        with Wal.open(tmp_path / "b") as b:
            fill(b, b"3")
        end = reader.latestOffset(start, ALL)
        assert bodies_of(reader, start, end) == [b"1"]
        assert reader.latestOffset(end, ALL) is end


def test_available_now_reads_logs_that_came_since_the_last_run(tmp_path: Path) -> None:
    """A query that runs now and then reads new logs, too, without ever running in between."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b:
        fill(a, b"1")
        (tmp_path / "b").rename(tmp_path.parent / f"{tmp_path.name}-later")
        with reading(tmp_path) as reader:
            reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(reader.initialOffset(), ALL)
        (tmp_path.parent / f"{tmp_path.name}-later").rename(tmp_path / "b")
        fill(b, b"2", b"3")
        with reading(tmp_path) as reader:
            reader.prepareForTriggerAvailableNow()
            start, end = end, reader.latestOffset(end, ALL)
            assert lsns(end) == {"a": 1, "b": 0}
            assert bodies_of(reader, start, end) == []
            start, end = end, reader.latestOffset(end, ALL)
            assert bodies_of(reader, start, end) == [b"2", b"3"]
            assert reader.latestOffset(end, ALL) is end


def test_a_full_disk_puts_the_commit_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The query reads on while its position has no room, and commits when there is some."""
    with Wal.open(tmp_path / "a") as a, reading(tmp_path) as reader:
        fill(a, b"1")
        end = reader.latestOffset(reader.initialOffset(), ALL)
        fill(a, b"2")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(meta, "write_reader_commit", full)
            later = reader.latestOffset(end, ALL)
        assert bodies_of(reader, end, later) == [b"2"]
        assert "No space left" in caplog.text
        assert LogView.open(tmp_path / "a").committed == 0
        reader.latestOffset(end, ALL)
        assert LogView.open(tmp_path / "a").committed == 1


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_another_query_has_trimmed_is_a_loss_that_is_told(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store has no lock against a second query, the one that is behind fails rather than
    skip what the log lacks between two looks; or goes on behind it, if failOnDataLoss is false."""
    monkeypatch.setattr(logset, "is_store_url", lambda _: True)
    limits = WalLimits(retention_s=0)
    with Wal.open(tmp_path / "a", limits=limits) as a, reading(tmp_path) as other:
        fill(a, b"1")
        with reading(tmp_path, failOnDataLoss=fails) as reader:
            start = reader.latestOffset(reader.initialOffset(), ALL)
            fill(a, b"2")
            fill(a, b"3")
            other.latestOffset(other.latestOffset(other.initialOffset(), ALL), ALL)
            a.commit(2)
            assert a.first == 2
            if fails == "true":
                with pytest.raises(DataLossError, match="begins at 2: the messages from 1 on"):
                    reader.latestOffset(start, ALL)
            else:
                assert bodies_of(reader, start, reader.latestOffset(start, ALL)) == [b"3"]


def test_a_disk_that_fails_is_not_a_log_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a query with failOnDataLoss=false would leave it out."""
    with Wal.open(tmp_path / "a") as a:
        fill(a, b"1")
        start = {"logs": {"a": {"lsn": 0, "wal": a.id}}}
        with reading(tmp_path, failOnDataLoss="false") as reader:

            def fail(*_: object) -> None:
                raise OSError(errno.EIO, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(meta, "read_meta", fail)
                with pytest.raises(WalError, match="Input/output error"):
                    reader.latestOffset(start, ALL)
            assert lsns(reader.latestOffset(start, ALL)) == {"a": 1}


def test_a_log_that_is_replaced_is_an_error(tmp_path: Path) -> None:
    """A view whose newest segment is gone does not wait for positions of another log."""
    with Wal.open(tmp_path / "a") as a:
        fill(a, b"1")
        fill(a, b"2")
        view = LogView.open(tmp_path / "a")
        fill(a, b"3")
    shutil.rmtree(tmp_path / "a")
    with Wal.open(tmp_path / "a") as a:
        fill(a, b"9")
        with pytest.raises(WalDamagedError, match="was removed or replaced"):
            view.refresh()


def test_a_checkpoint_of_one_log_goes_on_with_several(tmp_path: Path) -> None:
    """An offset of the query that had this log alone is the position in it."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b, reading(tmp_path) as reader:
        fill(a, b"1", b"2")
        fill(b, b"3")
        old = {"lsn": 1, "wal": a.id}
        second = reader.latestOffset(old, ALL)
        assert bodies_of(reader, old, second) == [b"2"]
        third = reader.latestOffset(second, ALL)
        assert bodies_of(reader, second, third) == [b"3"]
        with pytest.raises(DataLossError, match="none of a, b"):
            reader.latestOffset({"lsn": 1, "wal": "other"}, ALL)


def test_a_log_that_is_gone_is_an_error_or_left_out(tmp_path: Path) -> None:
    """A removed log fails the query, unless failOnDataLoss is false."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b:
        fill(a, b"1")
        fill(b, b"2")
        with reading(tmp_path) as reader:
            start = reader.initialOffset()
        b.close()
        (tmp_path / "b").rename(tmp_path.parent / f"{tmp_path.name}-gone")
        with reading(tmp_path) as reader, pytest.raises(DataLossError, match="the log b is gone"):
            reader.latestOffset(start, ALL)
        with reading(tmp_path, failOnDataLoss="false") as reader:
            end = reader.latestOffset(start, ALL)
            assert lsns(end) == {"a": 1}
            assert bodies_of(reader, start, end) == [b"1"]


def test_one_query_at_a_time(tmp_path: Path) -> None:
    """A second query would miss what is trimmed behind the first one."""
    with reading(tmp_path) as reader:
        reader.initialOffset()
        second = NsqLogsReader(
            LogsOptions.read({"walPath": f"{tmp_path}/*", "wal.lockTimeout": "0s"})
        )
        with pytest.raises(WalLockedError, match="another query"):
            second.initialOffset()
    with reading(tmp_path / "missing") as reader, pytest.raises(WalError, match="has no logs"):
        reader.initialOffset()


def test_options_of_receivers_are_refused() -> None:
    """The source of several logs names the place where an option belongs."""
    with pytest.raises(OptionsError, match="topic is set where the receivers run"):
        LogsOptions.read({"walPath": "/w/*", "topic": "t"})
    with pytest.raises(OptionsError, match="a position is of one log"):
        LogsOptions.read({"walPath": "/w/*", "startingOffsets": "4"})
    assert (logs_root("/w/*"), logs_root("/w"), logs_root("/*")) == ("/w", None, "/")


def test_a_batch_read_has_all_logs(tmp_path: Path) -> None:
    """A batch read covers what every log retains."""
    with Wal.open(tmp_path / "a") as a, Wal.open(tmp_path / "b") as b:
        fill(a, b"1", b"2")
        fill(b, b"3")
        reader = NsqBatchReader(BatchOptions.read({"walPath": f"{tmp_path}/*"}))
        parts = reader.partitions()
        assert [
            body
            for part in parts
            for batch in reader.read(part)
            for body in batch["body"].to_pylist()
        ] == [b"1", b"2", b"3"]
    with pytest.raises(OptionsError, match="a position is of one log"):
        BatchOptions.read({"walPath": "/w/*", "endingOffsets": "4"})


def test_a_view_that_is_ahead_of_the_commits_goes_on(tmp_path: Path) -> None:
    """What is before the last known segment need not be committed."""
    with Wal.open(tmp_path) as wal:
        for body in (b"1", b"2", b"3"):
            fill(wal, body)
        view = LogView.open(tmp_path)
        fill(wal, b"4")
        assert view.refresh()
        view.commit(1)
        fill(wal, b"5")
        assert view.refresh()
        assert (view.end, len(view.segments(1, 5))) == (5, 4)


class RacingDisk(RealDisk):
    """A folder that is listed amid appends: ``hidden`` names are left out of so many listings."""

    def __init__(self, path: Path, hidden: str, listings: int) -> None:
        super().__init__(str(path))
        self.hidden = hidden
        self.listings = listings

    def names(self) -> list[str]:
        self.listings -= 1
        names = super().names()
        return names if self.listings < 0 else [name for name in names if name != self.hidden]


def test_a_listing_amid_appends_is_no_damage(tmp_path: Path) -> None:
    """readdir may return a new file and not an older one; a gap that stays is damage."""
    with Wal.open(tmp_path) as wal:
        for body in (b"1", b"2", b"3"):
            fill(wal, body)
        path = wal.segments(1, 2)[0].path
        view = LogView(FolderSource(RacingDisk(tmp_path, Path(path).name, 3)))
        assert view.end == 3
        with pytest.raises(WalDamagedError, match="lacks the segments of 1 to 2"):
            LogView(FolderSource(RacingDisk(tmp_path, Path(path).name, 1000)))
