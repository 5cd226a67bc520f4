"""The readers of ``mode=log``, called as Spark calls them: a real nsqd, no Spark."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadMaxRows

from pipelines.errors import DataLossError, NsqdAwayError, TopicLogError
from pipelines.topiclog.batch import TopicLogBatchReader
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.stream import TopicLogStreamReader
from tests.pipelines.source.publishing import publish, wait_until
from tests.pipelines.topiclog.reading import (
    ALL,
    LOG,
    bodies_of,
    count_of,
    depth_of,
    microbatch,
    now_ms,
    numbered,
    options,
    post,
    published,
    stream_of,
)
from tests.processes import free_address, running_nsqd, running_nsqlookupd
from trionsq.hostport import parse_address
from trionsq.testing import OpenBroker
from trionsq.testing.broker import broker_in_thread

LIMIT_S = 120
in_thread = trio.to_thread.run_sync
on_log = pytest.mark.nsqd(**LOG)


@on_log
def test_microbatches_have_each_message_once_and_are_the_same_again(nsqd: OpenBroker) -> None:
    """Limits are kept, partitions too; a repeated microbatch has the same messages."""
    published(nsqd.http_address, numbered(5000))
    reader = stream_of(
        nsqd.http_address, maxMessagesPerTrigger="2000", maxRecordsPerPartition="700"
    )
    start = reader.initialOffset()
    assert start["positions"] == {"t": {nsqd.http_address: 0}}
    found: list[bytes] = []
    offset = start
    for expected in (2000, 2000, 1002):
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        partitions = reader.partitions(offset, end)
        assert len(partitions) == -(-expected // 700)
        bodies = bodies_of(reader, partitions)
        assert len(bodies) == expected
        published(nsqd.http_address, [b"later"])
        again = stream_of(nsqd.http_address, maxRecordsPerPartition="900")
        assert bodies_of(again, again.partitions(offset, end)) == bodies
        found += bodies
        offset = end
    assert found[:5000] == numbered(5000)
    end, bodies = microbatch(reader, offset)
    assert (found + bodies)[5000:] == [b"later"] * 3
    assert reader.latestOffset(end, ALL) is end


@on_log
def test_the_channel_follows_the_commits(nsqd: OpenBroker) -> None:
    """Depth in nsqd is what no complete microbatch has; the channel is made if it lacks."""
    published(nsqd.http_address, numbered(1000))
    reader = stream_of(nsqd.http_address, channel="c")
    start = reader.initialOffset()
    assert depth_of(nsqd.http_address) == 1000
    end = reader.latestOffset(start, ReadMaxRows(1000))
    published(nsqd.http_address, numbered(50))
    assert depth_of(nsqd.http_address) == 1050
    reader.commit(end)
    wait_until(lambda: depth_of(nsqd.http_address) == 50)
    post(nsqd.http_address, "/channel/delete", topic="t", channel="c")
    end, _ = microbatch(reader, end)
    # Without a later microbatch Spark does not call commit: latestOffset says the same.
    assert reader.latestOffset(end, ALL) is end
    wait_until(lambda: depth_of(nsqd.http_address) == 0)


@on_log
def test_the_channel_holds_what_the_query_has_not_had(nsqd: OpenBroker) -> None:
    """A query that starts again finds its channel, and goes on behind it."""
    published(nsqd.http_address, numbered(100))
    first = stream_of(nsqd.http_address, channel="c")
    end, _ = microbatch(first, first.initialOffset())
    published(nsqd.http_address, numbered(10))
    second = stream_of(nsqd.http_address, channel="c")
    assert microbatch(second, end)[1] == numbered(10)
    assert depth_of(nsqd.http_address) == 10


@on_log
def test_a_channel_with_consumers_is_refused(nsqd: OpenBroker) -> None:
    """The query would take the consumers' messages away."""
    published(nsqd.http_address, numbered(1))
    with socket.create_connection(parse_address(nsqd.tcp_address), timeout=60) as consumer:
        consumer.sendall(b"  V2SUB t c\n")
        assert consumer.recv(6) == b"\0\0\0\x06\0\0"
        with pytest.raises(TopicLogError, match="has 1 consumers"):
            stream_of(nsqd.http_address, channel="c").initialOffset()


@on_log
def test_history_is_read_by_position_and_by_time(nsqd: OpenBroker) -> None:
    """A batch read has a range of sequences, or of times of publishing."""
    published(nsqd.http_address, numbered(300))
    time.sleep(0.01)
    since = now_ms()
    time.sleep(0.01)
    published(nsqd.http_address, numbered(200, first=300))
    time.sleep(0.01)
    until = now_ms()
    time.sleep(0.01)
    published(nsqd.http_address, numbered(100, first=500))

    def read(**more: str) -> list[bytes]:
        values = options(nsqd.http_address, **more)
        del values["startingOffsets"]
        values |= more
        reader = TopicLogBatchReader(TopicLogOptions.read_batch(values))
        return bodies_of(reader, reader.partitions())

    assert read() == numbered(600)
    assert read(minPartitions="7") == numbered(600)
    assert read(startingTimestamp=since, endingTimestamp=until) == numbered(200, first=300)
    where = '{"t": {"%s": %d}}'
    assert read(
        startingOffsets=where % (nsqd.http_address, 10),
        endingOffsets=where % (nsqd.http_address, 12),
    ) == numbered(2, first=10)
    assert read(startingOffsets="latest") == []
    with pytest.raises(DataLossError, match="no message 601"):
        read(startingOffsets=where % (nsqd.http_address, 601))
    with pytest.raises(TopicLogError, match="no nsqd has the topic"):
        read(topic="other")


def test_a_topic_without_log_names_the_other_mode(nsqd: OpenBroker) -> None:
    """The error says what to do; so for an nsqd of another make."""
    post(nsqd.http_address, "/topic/create", topic="t")
    with pytest.raises(TopicLogError, match=r"has no log(.|\n)*mode=receiver"):
        stream_of(nsqd.http_address).initialOffset()


@on_log
def test_a_new_nsqd_is_read_from_its_beginning(nsqd: OpenBroker) -> None:
    """Also one that has no such topic when the query starts, which begins at the end."""
    with broker_in_thread(**LOG) as other:
        both = (nsqd.http_address, other.http_address)
        published(nsqd.http_address, numbered(10))
        reader = stream_of(*both, startingOffsets="latest")
        offset = reader.initialOffset()
        assert offset["positions"] == {"t": {nsqd.http_address: 10}}
        published(other.http_address, numbered(20))
        published(nsqd.http_address, numbered(5, first=10))
        # The first microbatch with it has only its place, so that it is the same again.
        offset, bodies = microbatch(reader, offset)
        assert bodies == numbered(5, first=10)
        offset, bodies = microbatch(reader, offset)
        assert bodies == numbered(20)


@pytest.mark.parametrize("when", ["continue", "wait"])
def test_an_nsqd_that_is_away(when: str, tmp_path: Path) -> None:
    """The query goes on without it, or waits; its position stays, and no message is missing."""
    address = free_address()
    with broker_in_thread(**LOG) as stays:
        with broker_in_thread(tmp_path, http_address=address, **LOG) as leaves:
            both = (stays.http_address, leaves.http_address)
            reader = stream_of(*both, whenNsqdIsAway=when, client_dial_timeout="10s")
            for one in both:
                published(one, numbered(100))
            start = reader.initialOffset()
            offset, _ = microbatch(reader, start)
            published(leaves.http_address, numbered(7, first=100))
        published(stays.http_address, numbered(3, first=100))
        end, bodies = microbatch(reader, offset)
        assert bodies == (numbered(3, first=100) if when == "continue" else [])
        assert end["positions"]["t"][address] == 100
        if when == "continue":
            assert reader.reportLatestOffset()["nsqdsAway"] == 1  # type: ignore[index]
        with broker_in_thread(tmp_path, http_address=address, **LOG):
            _, more = microbatch(reader, end)
        assert sorted(bodies + more) == sorted(numbered(7, first=100) + numbered(3, first=100))


def test_a_start_without_an_nsqd_fails_in_time() -> None:
    """Its end could not be known: the error names it, and the option."""
    reader = stream_of(free_address(), nsqdTimeout="300ms")
    with pytest.raises(NsqdAwayError, match="nsqdTimeout"):
        reader.initialOffset()


def small_segments(nsqd: OpenBroker) -> None:
    assert nsqd.broker.logs.node is not None
    nsqd.broker.logs.node.segment_bytes = 20_000


@pytest.mark.nsqd(state_interval_ns=20_000_000, retain_bytes=50_000, **LOG)
def test_retention_that_passed_a_position_is_a_loss(nsqd: OpenBroker) -> None:
    """It fails the query, or is passed over; a task that finds it says the same."""
    small_segments(nsqd)
    post(nsqd.http_address, "/topic/create", topic="t")
    # Without a channel nothing would go.
    post(nsqd.http_address, "/channel/create", topic="t", channel="other")
    fails, goes_on = (
        stream_of(nsqd.http_address),
        stream_of(nsqd.http_address, failOnDataLoss="false"),
    )
    start = fails.initialOffset()
    for first in range(0, 500, 20):
        publish(nsqd.http_address, "t", [b"%0400d" % number for number in range(first, first + 20)])
    wait_until(lambda: count_of(nsqd.http_address) == 500)
    end = fails.latestOffset(start, ALL)
    planned = fails.partitions(start, end)
    post(nsqd.http_address, "/channel/empty", topic="t", channel="other")
    wait_until(lambda: first_of(nsqd) > 0)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        fails.latestOffset(start, ALL)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        bodies_of(fails, planned)
    end, bodies = microbatch(goes_on, start)
    assert bodies == []
    end, bodies = microbatch(goes_on, end)
    assert bodies == [b"%0400d" % number for number in range(500 - len(bodies), 500)]
    assert 0 < len(bodies) < 500


def first_of(nsqd: OpenBroker) -> int:
    url = f"http://{nsqd.http_address}/topic/settings?topic=t"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(json.load(answer)["first"]["sequence"])


@on_log
def test_a_topic_that_was_made_again_is_a_loss(nsqd: OpenBroker) -> None:
    """Sequences of another log are never taken for those of the checkpoint."""
    published(nsqd.http_address, numbered(50))
    fails, goes_on = (
        stream_of(nsqd.http_address),
        stream_of(nsqd.http_address, failOnDataLoss="false"),
    )
    offset, _ = microbatch(fails, fails.initialOffset())
    post(nsqd.http_address, "/topic/delete", topic="t")
    published(nsqd.http_address, numbered(80, first=1000))
    with pytest.raises(DataLossError, match="another log"):
        fails.latestOffset(offset, ALL)
    offset, bodies = microbatch(goes_on, offset)
    assert bodies == []
    assert microbatch(goes_on, offset)[1] == numbered(80, first=1000)


@on_log
def test_available_now_ends_where_the_logs_ended(nsqd: OpenBroker) -> None:
    """Messages that come later are for the next run."""
    published(nsqd.http_address, numbered(10))
    reader = stream_of(nsqd.http_address)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    published(nsqd.http_address, numbered(10, first=10))
    end, bodies = microbatch(reader, start)
    assert bodies == numbered(10)
    assert reader.latestOffset(end, ALL) is end


@on_log
def test_bytes_limit_a_microbatch_and_metrics_say_what_is_left(nsqd: OpenBroker) -> None:
    """The limit goes by the mean size, at least one message; lag is in messages, bytes, seconds."""
    published(nsqd.http_address, [b"x" * 1000] * 1000)
    reader = stream_of(nsqd.http_address, maxBytesPerTrigger="100k")
    start = reader.initialOffset()
    assert reader.reportLatestOffset() is None
    _, bodies = microbatch(reader, start)
    assert 80 <= len(bodies) <= 102
    report: Any = reader.reportLatestOffset()
    assert report["positions"] == {"t": {nsqd.http_address: 1000}}
    assert report["backlog"] == 1000 - len(bodies)
    assert 1000 * report["backlog"] <= report["backlogBytes"] <= 1100 * report["backlog"]
    assert report["lagSeconds"] > 0
    assert count_of(nsqd.http_address) == 1000


def test_a_checkpoint_of_the_receiver_is_refused() -> None:
    """The modes have different offsets: the error says so."""
    reader = stream_of(free_address())
    with pytest.raises(ValueError, match="not written by mode=log"):
        reader.latestOffset({"lsn": 5, "wal": "x"}, ALL)


async def test_nsqlookupds_name_topics_and_nsqds(tmp_path: Path) -> None:
    """A pattern finds topics, and nsqds that come later; what is not wanted is left out."""
    async with running_nsqlookupd() as lookupd:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
        flags += ["--storage=log", "--durability=always"]
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with (
            running_nsqd(tmp_path / "a", flags) as first,
            running_nsqd(tmp_path / "b", flags) as second,
        ):
            reader = TopicLogStreamReader(
                TopicLogOptions.read_stream(
                    {
                        "mode": "log",
                        "topic": "orders.*",
                        "lookupd.http.addresses": lookupd.http_address,
                        "startingOffsets": "earliest",
                        "client.lookupd_poll_interval": "10ms",
                    }
                )
            )
            publishers = [("orders", first, 3), ("other", first, 5), ("orders-b", second, 4)]
            for topic, nsqd, count in publishers:
                await in_thread(partial(published, nsqd.http_address, numbered(count), topic))
            names = {("orders", first.http_address), ("orders-b", second.http_address)}
            offset: dict[str, Any] = {"positions": {}, "tokens": {}}
            with trio.fail_after(LIMIT_S):
                while {(t, n) for t, ns in offset["positions"].items() for n in ns} != names:
                    offset, _ = await in_thread(partial(microbatch, reader, offset))
            start = {
                "positions": {t: dict.fromkeys(ns, 0) for t, ns in offset["positions"].items()},
                "tokens": {t: dict.fromkeys(ns, "1.0") for t, ns in offset["tokens"].items()},
            }
            end, bodies = await in_thread(partial(microbatch, reader, start))
            assert sorted(bodies) == sorted(numbered(3) + numbered(4))
            assert end["positions"] == {
                "orders": {first.http_address: 3},
                "orders-b": {second.http_address: 4},
            }
