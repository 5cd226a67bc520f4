"""Detached receivers: their logs, their ends, and who may write."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipelines.__main__ import main
from pipelines.errors import WalError, WalLockedError
from pipelines.receiver.config import Share
from pipelines.receiver.detached import DetachedConfig, run_receiver
from pipelines.receiver.status import ReceiverNote, read_receiver_note, write_receiver_note
from pipelines.source.options import LogsOptions
from pipelines.source.shared import NsqLogsReader
from pipelines.wal import LogView, WalLimits, open_logs
from tests.pipelines.receiver.detached import ReceiverProcess, stored_below
from tests.pipelines.receiver.drive import LIMIT_S, channel_of, config, publish, until
from tests.pipelines.wal.s3 import s3_server
from tests.soak import in_short_soak
from trionsq.testing import OpenBroker, broker_in_thread


class Running:
    """A receiver in a thread. ``error``: what ended it, if it was not `stop`."""

    def __init__(self, detached: DetachedConfig) -> None:
        self.error: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(detached,))
        self._thread.start()

    def _run(self, detached: DetachedConfig) -> None:
        try:
            run_receiver(detached, self._stopping.wait)
        except WalError as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def receiving(detached: DetachedConfig) -> Iterator[Running]:
    """A receiver that is stopped at the end."""
    running = Running(detached)
    try:
        yield running
    finally:
        running.stop()


def detached_config(root: Path, name: str, *nsqds: str, **more: object) -> DetachedConfig:
    """The options of a receiver below the folder."""
    options = {"lock_timeout_s": 0.5, "take_over_s": 120.0, "limits": WalLimits()} | more
    share = options.pop("share", Share())
    receiver = config(*nsqds, nsqd_share=share)
    return DetachedConfig(root=str(root), name=name, receiver=receiver, **options)  # type: ignore[arg-type]


def end_of(root: Path, name: str) -> int:
    """The end of a log; 0 as long as there is none."""
    try:
        return LogView.open(root / name).end
    except WalError:
        return 0


def test_several_receivers_share_a_channel(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Two receivers store each message once between them, and leave nothing in flight."""
    with (
        receiving(detached_config(tmp_path, "a", nsqd.tcp_address)),
        receiving(detached_config(tmp_path, "b", nsqd.tcp_address)),
    ):
        publish(nsqd.http_address, range(20_000))
        until(lambda: end_of(tmp_path, "a") + end_of(tmp_path, "b") == 20_000)
        note = read_receiver_note(str(tmp_path / "a"))
        assert note is not None
        assert note.is_running
    assert sorted(map(int, stored_below(tmp_path))) == list(range(20_000))
    channel = channel_of(nsqd.http_address)
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    note = read_receiver_note(str(tmp_path / "a"))
    assert note is not None
    assert not note.is_running


def test_with_shares_each_nsqd_has_one_receiver(tmp_path: Path) -> None:
    """Messages of one nsqd are in one log only, so that redeliveries are recognized there."""
    with broker_in_thread() as first, broker_in_thread() as second:
        nsqds = first.tcp_address, second.tcp_address
        publish(first.http_address, range(100))
        publish(second.http_address, range(100, 250))
        with (
            receiving(detached_config(tmp_path, "a", *nsqds, share=Share(0, 3))),
            receiving(detached_config(tmp_path, "b", *nsqds, share=Share(1, 3))),
            receiving(detached_config(tmp_path, "c", *nsqds, share=Share(2, 3))),
        ):
            until(lambda: (end_of(tmp_path, "a"), end_of(tmp_path, "b")) == (100, 150))
    assert end_of(tmp_path, "c") == 0


def test_every_discovered_nsqd_is_in_exactly_one_share() -> None:
    """A hash assigns it, so receivers need not know of each other."""
    shares = [Share(number, 3) for number in range(3)]
    for port in range(100):
        assert sum(share.has(f"nsqd:{port}") for share in shares) == 1
    assert all(any(share.has(f"nsqd:{port}") for port in range(100)) for share in shares)
    assert Share.parse("1/3") == shares[1]
    for text in ("3/3", "1", "a/b", "0/0", "-1/2"):
        with pytest.raises(ValueError, match=text.partition("/")[0]):
            Share.parse(text)


def test_the_log_of_a_living_receiver_is_not_taken(nsqd: OpenBroker, tmp_path: Path) -> None:
    """A second receiver of the same name waits, then fails and names the first one."""
    detached = detached_config(tmp_path, "a", nsqd.tcp_address)
    with receiving(detached):
        until(lambda: read_receiver_note(str(tmp_path / "a")))
        with pytest.raises(WalLockedError, match=r"in use by process \d+ on .*, which is alive"):
            run_receiver(detached, threading.Event().wait)


@in_short_soak
def test_a_frozen_receiver_that_wakes_has_lost_its_log(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Its successor takes the log over; woken, it writes no more and ends. Each message is once."""
    root = tmp_path / "logs"
    # Not much in flight, or nsqd sends most of what times out to the frozen one again.
    options = [f"--source-option={option}" for option in ("msgTimeoutMs=2000", "maxInFlight=400")]
    options += ["--take-over-after=2s"]
    with ReceiverProcess(root, "a", nsqd.tcp_address, *options) as frozen:
        frozen.await_line("receiving into")
        publish(nsqd.http_address, range(3000))
        until(lambda: end_of(root, "a") == 3000)
        frozen.send(signal.SIGSTOP)
        # nsqd sends these to the frozen one, and again when they time out.
        publish(nsqd.http_address, range(3000, 6000))
        with ReceiverProcess(root, "a", nsqd.tcp_address, *options) as successor:
            successor.await_line("is taken over")
            until(lambda: end_of(root, "a") == 6000)
            frozen.send(signal.SIGCONT)
            assert frozen.exit_code() == 1
            assert "was taken over by another process" in frozen.lines
            publish(nsqd.http_address, range(6000, 7000))
            until(lambda: end_of(root, "a") == 7000)
            successor.send(signal.SIGTERM)
            assert successor.exit_code() == 0
            assert "stopped: " in successor.lines
    assert sorted(map(int, stored_below(root))) == list(range(7000))


@in_short_soak
def test_a_killed_receiver_is_replaced_at_once(nsqd: OpenBroker, tmp_path: Path) -> None:
    """The log of a process that has ended is free; what was in flight comes again, once."""
    root = tmp_path / "logs"
    options = ("--source-option=msgTimeoutMs=3000",)
    publish(nsqd.http_address, range(30_000))
    with ReceiverProcess(root, "a", nsqd.tcp_address, *options) as killed:
        until(lambda: end_of(root, "a") > 1000)
        killed.send(signal.SIGKILL)
        killed.exit_code()
    with ReceiverProcess(root, "a", nsqd.tcp_address, *options):
        until(lambda: end_of(root, "a") >= 30_000)
        until(lambda: channel_of(nsqd.http_address)["in_flight_count"] == 0)
    assert sorted(map(int, stored_below(root))) == list(range(30_000))


@in_short_soak
def test_receivers_write_logs_in_an_object_store(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Without locks: a receiver that lives keeps its log, one that was killed loses it in time."""
    root = "s3://bucket/receivers"
    with s3_server(tmp_path):
        detached = detached_config(Path(), "a", nsqd.tcp_address, take_over_s=6.0)
        detached = replace(detached, root=root)
        reader = NsqLogsReader(LogsOptions.read({"walPath": f"{root}/*"}))
        with receiving(detached):
            publish(nsqd.http_address, range(1000))
            until(lambda: [view.end for view in open_logs(root).values()] == [1000])
            with pytest.raises(WalLockedError, match="which is alive"):
                run_receiver(detached, threading.Event().wait)
            start = reader.initialOffset()
            reader._batch_end = {"a": 0}
            assert 0 < (reader.reportLatestOffset() or {})["lagSeconds"] < LIMIT_S
            end = reader.latestOffset(start, ReadAllAvailable())
            assert (reader.reportLatestOffset() or {})["lagSeconds"] == 0
            parts = reader.partitions(start, end)
            assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 1000
        # What a killed receiver leaves: a note that it runs, and does not change.
        write_receiver_note(f"{root}/a", ReceiverNote())
        with receiving(replace(detached, lock_timeout_s=60.0)):
            publish(nsqd.http_address, range(1000, 1500))
            until(lambda: LogView.open(f"{root}/a").end == 1500)
        note = read_receiver_note(f"{root}/a")
        assert note is not None
        assert not note.is_running
        assert note.statistics["wal_committed"] == 0
        reader.commit(end)
        with receiving(detached):
            publish(nsqd.http_address, [2000])
            until(lambda: LogView.open(f"{root}/a").end == 1501)
        note = read_receiver_note(f"{root}/a")
        assert note is not None
        assert note.statistics["wal_committed"] == 1000


def test_names_and_flags_are_checked(tmp_path: Path) -> None:
    """A name is the name of one folder; wrong flags exit with 2."""
    for name in ("../x", "", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="a name has"):
            detached_config(tmp_path, name, "h:4150")
    common = [*("receive", "--topic=t", "--channel=c", "--nsqd-tcp-address=127.0.0.1:1")]
    for wrong in (
        ["--source-option=maxMessagesPerTrigger=5"],
        ["--exclusive=4/4"],
        ["--receivers=0"],
        ["--receivers=2", "--exclusive=1/2"],
        ["--name=a/b"],
        [f"--wal={tmp_path}/*"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*common, f"--wal={tmp_path}", *wrong])
    assert not any(tmp_path.iterdir())
