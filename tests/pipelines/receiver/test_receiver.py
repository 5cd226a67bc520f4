"""From a real nsqd into the log: each message once, and finished only when it is durable."""

import errno
import pickle
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from pipelines.errors import ReceiverError, WalError
from pipelines.receiver import Receiver
from pipelines.receiver.writer import SegmentWriter
from pipelines.wal import Wal, WalLimits, read_segment
from pipelines.wal.folder import FolderPlace
from tests.pipelines.receiver.drive import (
    SlowDisk,
    channel_of,
    config,
    publish,
    reach,
    running,
    stored,
    until,
)
from tests.pipelines.wal.logs import numbers_on
from tests.processes import free_address, running_nsqd, running_nsqlookupd
from trionsq.client import Config, ConfigError
from trionsq.testing import OpenBroker, broker_in_thread
from trionsq.testing.disk import SimulatedDisk


def test_everything_is_stored_then_finished(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Each message is stored once, with its columns; nsqd has none left, also after the stop."""
    publish(nsqd.http_address, range(5000))
    with Wal.open(tmp_path) as wal:
        with running(wal, nsqd.tcp_address) as receiver:
            until(lambda: receiver.end == 5000, receiver)
            until(lambda: channel_of(nsqd.http_address)["in_flight_count"] == 0, receiver)
            figures = receiver.statistics()
        assert sorted(stored(wal)) == list(range(5000))
        assert (figures["received"], figures["stored"]) == (5000, 5000)
        assert figures["duplicates_dropped"] == figures["requeued"] == 0
        ref = wal.segments(0, 1)[0]
        row = next(read_segment(ref, 0, 1)).to_pylist()[0]
        assert (row["topic"], row["channel"], row["nsqd"]) == ("t", "c", nsqd.tcp_address)
        assert row["attempts"] == 1
    channel = channel_of(nsqd.http_address)
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 0, 0)


def test_after_a_stop_nothing_is_in_flight_and_the_rest_is_at_nsqd(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """After each of several stops, stored messages and those at nsqd add up."""
    publish(nsqd.http_address, range(30_000))
    with Wal.open(tmp_path) as wal:
        for _ in range(3):
            with running(wal, nsqd.tcp_address, max_in_flight=200) as receiver:
                reach(receiver, wal.end + 1000)
            # FIN and REQ were sent before nsqd closed the connection in order.
            channel = channel_of(nsqd.http_address)
            assert channel["in_flight_count"] == 0
            assert channel["clients"] is None or channel["clients"] == []
            left = channel["depth"] + channel["deferred_count"]
            assert wal.end + left == 30_000
        with running(wal, nsqd.tcp_address) as receiver:
            until(lambda: receiver.end == 30_000, receiver)
        assert sorted(stored(wal)) == list(range(30_000))


def test_a_redelivery_is_dropped_and_finished(tmp_path: Path) -> None:
    """The disk is so slow that nsqd times messages out and delivers them again: each is stored
    once, and finished."""
    disk = SlowDisk()
    with broker_in_thread() as nsqd:
        wal = Wal(FolderPlace(disk), create=True, limits=WalLimits())
        publish(nsqd.http_address, range(1000))
        with running(wal, nsqd.tcp_address, msg_timeout_ms=1000) as receiver:
            until(lambda: receiver.statistics()["pending"], receiver)
            until(lambda: channel_of(nsqd.http_address)["timeout_count"] >= 1000, receiver)
            disk.may_sync.set()
            until(lambda: channel_of(nsqd.http_address)["in_flight_count"] == 0, receiver)
            until(lambda: receiver.end == 1000, receiver)
            figures = receiver.statistics()
        channel = channel_of(nsqd.http_address)
        assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    assert figures["duplicates_dropped"] > 0
    assert sorted(numbers_on(disk)) == list(range(1000))


def test_a_log_that_hangs_does_not_fill_the_memory(nsqd: OpenBroker) -> None:
    """Beyond twice max_in_flight, messages that nsqd delivers again are requeued."""
    disk = SlowDisk()
    wal = Wal(FolderPlace(disk), create=True, limits=WalLimits())
    publish(nsqd.http_address, range(1000))
    with running(wal, nsqd.tcp_address, msg_timeout_ms=1000, max_in_flight=100) as receiver:
        until(lambda: receiver.statistics()["requeued"] > 0, receiver)
        assert receiver.statistics()["pending"] <= 200
        disk.may_sync.set()
        until(lambda: receiver.end == 1000, receiver)
    assert sorted(numbers_on(disk)) == list(range(1000))


def test_several_topics_share_what_may_be_in_flight(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Each topic's messages have its name; equal ids in two topics are two messages."""
    for topic in ("t", "u"):
        publish(nsqd.http_address, range(500), topic)
    with (
        Wal.open(tmp_path) as wal,
        running(wal, nsqd.tcp_address, topics=("t", "u"), max_in_flight=40) as receiver,
    ):
        until(lambda: receiver.end == 1000, receiver)
        assert sorted(stored(wal)) == sorted([*range(500)] * 2)


def test_a_full_disk_stops_it_and_nothing_is_lost(nsqd: OpenBroker) -> None:
    """On ENOSPC RDY is 0 and messages are requeued; with room the receiver continues."""
    disk = SimulatedDisk(capacity=100_000)
    wal = Wal(FolderPlace(disk), create=True, limits=WalLimits())
    publish(nsqd.http_address, range(10_000))
    with running(wal, nsqd.tcp_address, max_in_flight=500) as receiver:
        until(lambda: receiver.statistics()["is_paused"], receiver)
        until(lambda: channel_of(nsqd.http_address)["in_flight_count"] == 0, receiver)
        channel = channel_of(nsqd.http_address)
        assert wal.end + channel["depth"] + channel["deferred_count"] == 10_000
        assert all(client["ready_count"] == 0 for client in channel["clients"])
        assert receiver.statistics()["requeued"] > 0
        disk.capacity = None
        until(lambda: receiver.end == 10_000, receiver)
        figures = receiver.statistics()
    assert disk.faults["write"] > 0
    assert figures["pauses"] > 0
    assert sorted(numbers_on(disk)) == list(range(10_000))
    assert channel_of(nsqd.http_address)["in_flight_count"] == 0


@pytest.mark.parametrize("step", ["create", "write", "sync", "close", "rename"])
def test_no_room_at_any_step_loses_and_doubles_nothing(step: str, nsqd: OpenBroker) -> None:
    """No message is lost when each operation of an append fails repeatedly."""
    disk = SimulatedDisk()
    wal = Wal(FolderPlace(disk), create=True, limits=WalLimits())
    disk.fail(errno.ENOSPC, at=3, only=[step], name="*.arrow*")
    disk.fail(errno.ENOSPC, at=4, only=[step], name="*.arrow*")
    publish(nsqd.http_address, range(3000))
    with running(wal, nsqd.tcp_address, max_in_flight=100) as receiver:
        until(lambda: receiver.end == 3000, receiver)
    assert disk.faults[step] == 2
    assert sorted(numbers_on(disk)) == list(range(3000))


def test_a_full_log_goes_on_after_a_commit(nsqd: OpenBroker, tmp_path: Path) -> None:
    """wal.maxBytes is the limit; a commit makes room."""
    publish(nsqd.http_address, range(20_000))
    seen: list[int] = []
    limits = WalLimits(max_bytes=200_000)
    with (
        Wal.open(tmp_path, limits=limits) as wal,
        running(wal, nsqd.tcp_address, max_in_flight=1000) as receiver,
    ):
        until(lambda: receiver.statistics()["is_paused"], receiver)
        while len(seen) < 20_000:
            until(lambda: wal.end > wal.committed, receiver)
            start, end = wal.committed, wal.end
            assert wal.nbytes <= 200_000
            for ref in wal.segments(start, end):
                for batch in read_segment(ref, start, end):
                    seen += [int(body) for body in batch.column("body").to_pylist()]
            wal.commit(end)
        assert receiver.end == 20_000
    assert sorted(seen) == list(range(20_000))


def test_a_broken_disk_ends_it_and_everything_goes_back(nsqd: OpenBroker) -> None:
    """After EIO `check` raises with the cause, and nsqd has the messages again."""
    disk = SimulatedDisk()
    wal = Wal(FolderPlace(disk), create=True, limits=WalLimits())
    disk.fail(errno.EIO, only=["sync"])
    publish(nsqd.http_address, range(100))
    with running(wal, nsqd.tcp_address) as receiver:
        with pytest.raises(ReceiverError, match="Input/output error") as caught:
            until(lambda: False, receiver)
        assert isinstance(caught.value.__cause__, WalError)
    channel = channel_of(nsqd.http_address)
    assert (channel["depth"], channel["in_flight_count"]) == (100, 0)
    assert disk.faults["sync"] == 1


def test_without_any_nsqd_it_fails_after_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an nsqd the receiver fails; error and log line have the address."""
    address = free_address()
    with (
        Wal.open(tmp_path) as wal,
        running(wal, address, connect_timeout_s=0.1) as receiver,
        pytest.raises(ReceiverError, match=f"no connection within 0.1 s: {address}"),
    ):
        until(lambda: False, receiver)
    ((line, has_trace),) = failures_in(caplog)
    assert line.startswith(f"no connection within 0.1 s: {address}")
    assert not has_trace


@pytest.mark.parametrize(
    ("error", "is_defect"),
    [
        (WalError("the disk is gone"), False),
        (ConfigError("no such option"), False),
        (KeyError("what"), True),
        (BaseExceptionGroup("", [ReceiverError("too many"), KeyError("what")]), True),
        (BaseExceptionGroup("", [ReceiverError("too many"), WalError("full")]), False),
    ],
)
def test_only_a_defect_is_logged_with_its_trace(
    error: BaseException,
    is_defect: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a defect is logged with a traceback; other failures take one line."""

    async def fail(_writer: SegmentWriter) -> NoReturn:
        raise error

    monkeypatch.setattr(SegmentWriter, "run", fail)
    with Wal.open(tmp_path) as wal:
        receiver = Receiver(config(free_address()), wal)
        receiver.start()
        receiver.stop()
        with pytest.raises(ReceiverError, match="the receiver failed"):
            receiver.check()
    ((_, has_trace),) = failures_in(caplog)
    assert has_trace is is_defect


def failures_in(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """The logged failures of receivers, and whether each has a traceback."""
    return [
        (record.getMessage().removeprefix("the receiver failed: "), record.exc_info is not None)
        for record in caplog.records
        if record.levelname == "ERROR"
    ]


def test_a_receiver_that_was_never_started_stops(tmp_path: Path) -> None:
    """`stop` before `start`, or twice, does nothing; a second start is an error."""
    with Wal.open(tmp_path) as wal:
        receiver = Receiver(config(free_address()), wal)
        receiver.stop()
        receiver.start()
        with pytest.raises(RuntimeError):
            receiver.start()
        receiver.stop()
        receiver.stop()
        receiver.check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": ()}, "either topics or topic_pattern"),
        ({"topic_pattern": "a.*"}, "either topics or topic_pattern"),
        ({"topics": ("a b",)}, "not a valid name: 'a b'"),
        ({"topics": ("t", "t")}, "has a name twice"),
        ({"topics": (), "topic_pattern": "("}, "topic_pattern: "),
        ({"topics": (), "topic_pattern": "a.*"}, "needs lookupd_http_addresses"),
        ({"nsqd_tcp_addresses": ()}, "nsqd_tcp_addresses or lookupd_http_addresses"),
        ({"max_in_flight": 1}, "at least 2"),
        ({"segment_ms": 0}, "segment_ms must be above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], text: str) -> None:
    """An invalid option is an error, with its name, when the object is made."""
    with pytest.raises(ValueError, match=text):
        config("127.0.0.1:4150", **options)
    right = config("127.0.0.1:4150")
    assert pickle.loads(pickle.dumps(right)) == right


async def test_topics_of_a_pattern_are_found_also_later(tmp_path: Path) -> None:
    """Topics created later are found; topics that do not match are not consumed."""
    quick = Config(lookupd_poll_interval_s=0.1, lookupd_poll_jitter=0)
    async with running_nsqlookupd() as lookupd:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        async with running_nsqd(tmp_path, flags) as nsqd:

            def receive() -> None:
                publish(nsqd.http_address, range(10), "a.one")
                publish(nsqd.http_address, range(20), "b.one")
                with (
                    Wal.open(tmp_path / "log") as wal,
                    running(
                        wal,
                        topics=(),
                        topic_pattern=r"a\..*",
                        lookupd_http_addresses=(lookupd.http_address,),
                        client=quick,
                    ) as receiver,
                ):
                    until(lambda: receiver.end == 10, receiver)
                    publish(nsqd.http_address, range(10, 25), "a.two")
                    until(lambda: receiver.end == 25, receiver)
                    assert sorted(stored(wal)) == list(range(25))

            await trio.to_thread.run_sync(receive)
