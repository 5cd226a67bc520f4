"""Decisions of the source, without Spark and nsqd."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import DataLossError, OptionsError
from pipelines.source.batch import partitions_of, slices_of
from pipelines.source.naming import named_options
from pipelines.source.offsets import AvailableNow, BatchLimits, initial_position, position_of
from pipelines.source.options import BatchOptions, StreamOptions, check_names
from pipelines.wal import SegmentRef
from trionsq.wire.names import is_valid_name

NEEDED = {"topic": "t", "channel": "c", "nsqd.tcp.addresses": "h:4150", "walPath": "/w"}

# BatchLimits


def test_a_batch_has_at_most_so_many_messages() -> None:
    """maxMessagesPerTrigger limits a microbatch; without it all available messages are in it."""
    assert BatchLimits(10, None, 0).batch_end(5, 100, 0.0, may_wait=True) == 15
    assert BatchLimits(10, None, 0).batch_end(5, 7, 0.0, may_wait=True) == 7
    assert BatchLimits(None, None, 0).batch_end(5, 100, 0.0, may_wait=True) == 100


def test_bytes_limit_a_batch_by_the_mean_size() -> None:
    """maxBytesPerTrigger is a number of messages of the mean size, at least one."""

    def end(max_messages: int | None, max_bytes: int, message_bytes: float) -> int:
        limits = BatchLimits(max_messages, None, 0, max_bytes)
        return limits.batch_end(5, 100, 0.0, may_wait=True, message_bytes=message_bytes)

    assert end(None, 1000, 100.0) == 15
    assert end(3, 1000, 100.0) == 8
    assert end(30, 1000, 100.0) == 15
    assert end(None, 1000, 5000.0) == 6
    assert end(None, 1000, 0.0) == 100


def test_a_task_has_at_most_so_many_messages() -> None:
    """maxRecordsPerPartition makes more tasks, of about equal size."""
    slices = slices_of([SegmentRef("a", 0, 70), SegmentRef("b", 70, 100)], 5, 95)
    parts = partitions_of(slices, 1, 40)
    assert [[(p.start, p.end) for p in part.slices] for part in parts] == [
        [(5, 35)],
        [(35, 65)],
        [(65, 70), (70, 95)],
    ]


def test_a_checkpoint_names_channel_and_log() -> None:
    """Two checkpoints give two names, one gives always the same; what is set stays."""
    one = named_options({"checkpointLocation": "/data/a b/orders/"}, has_log=True)
    assert one["walpath"] == "/data/a b/orders/nsq"
    assert re.fullmatch(r"orders-[0-9a-f]{8}", one["channel"])
    assert named_options({"CHECKPOINTLOCATION": "/data/a b/orders"}, has_log=True) == one
    other = named_options({"checkpointLocation": "/other/orders"}, has_log=True)
    assert other["channel"] != one["channel"]
    kept = {"checkpointLocation": "s3a://b/c", "channel": "c", "walPath": "/w"}
    assert named_options(kept, has_log=True) == {"channel": "c", "walpath": "/w"}
    stored = named_options({"checkpointLocation": "s3a://b/c"}, has_log=True)
    assert stored["walpath"] == "s3://b/c/nsq"
    with pytest.raises(OptionsError, match="or set walPath"):
        named_options({"checkpointLocation": "hdfs://b/c"}, has_log=True)
    long = named_options({"checkpointLocation": "/é" + "x" * 99}, has_log=False)
    assert is_valid_name(long["channel"].encode())
    assert "walpath" not in long


def test_a_batch_waits_for_so_many_messages_but_not_for_ever() -> None:
    """A microbatch waits for minMessagesPerTrigger, up to maxTriggerDelay."""
    admission = BatchLimits(None, 10, 60.0)
    assert admission.batch_end(0, 0, 0.0, may_wait=True) == 0
    assert admission.batch_end(0, 9, 100.0, may_wait=True) == 0
    assert admission.batch_end(0, 9, 159.0, may_wait=True) == 0
    assert admission.batch_end(0, 9, 160.0, may_wait=True) == 9
    assert admission.batch_end(9, 12, 161.0, may_wait=True) == 9
    assert admission.batch_end(9, 19, 162.0, may_wait=True) == 19


def test_a_full_log_is_not_waited_for() -> None:
    """A full log gets no more messages, so the microbatch does not wait for them."""
    assert BatchLimits(None, 10, 60.0).batch_end(0, 9, 0.0, may_wait=False) == 9


def test_available_now_ends_after_silence() -> None:
    """AvailableNow ends after the idle time; any new message restarts it."""
    now = AvailableNow(2.0, began_ns=0)
    assert not now.is_complete(0, 10.0, is_quiet=False)
    assert not now.is_complete(0, 20.0, is_quiet=False)
    assert not now.is_complete(0, 21.9, is_quiet=True)
    assert not now.is_complete(7, 22.0, is_quiet=True)
    assert not now.is_complete(7, 23.9, is_quiet=True)
    assert now.is_complete(7, 24.0, is_quiet=True)
    assert now.target == 7


def test_available_now_ends_at_what_was_published_later() -> None:
    """AvailableNow also ends on a topic that never becomes silent."""
    now = AvailableNow(2.0, began_ns=1000)
    now.add_segment(5, 1000)
    assert now.target is None
    now.add_segment(9, 1001)
    now.add_segment(12, 1002)
    assert now.target == 9


# Offsets


def log_of(first: int, end: int) -> Any:
    return SimpleNamespace(id="mine", path="/w", first=first, end=end, committed=first)


def test_an_offset_in_the_log_is_its_position() -> None:
    """An offset within the retained range is its position, both ends included."""
    for lsn in (10, 15, 20):
        offset = {"lsn": lsn, "wal": "mine"}
        assert position_of(offset, log_of(10, 20), fail_on_data_loss=True) == lsn


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        ({"lsn": 15, "wal": "other"}, "belongs to the log other, but /w is mine"),
        ({"lsn": 9, "wal": "mine"}, "the messages from 9 on are gone"),
        ({"lsn": 21, "wal": "mine"}, "reset to an older state"),
    ],
)
def test_what_was_lost_is_an_error_that_says_what(offset: dict[str, Any], told: str) -> None:
    """A checkpoint does not silently continue with another log."""
    with pytest.raises(DataLossError, match=told):
        position_of(offset, log_of(10, 20), fail_on_data_loss=True)


@pytest.mark.parametrize("offset", [{"lsn": 15, "wal": "other"}, {"lsn": 9, "wal": "mine"}])
def test_who_accepts_loss_goes_on_with_what_there_is(offset: dict[str, Any]) -> None:
    """With failOnDataLoss false the query continues at the start of the log."""
    assert position_of(offset, log_of(10, 20), fail_on_data_loss=False) == 10


def test_a_new_query_begins_where_it_was_told() -> None:
    """A new query starts at earliest, committed, latest, or a position."""
    wanted: tuple[str | int, ...] = ("earliest", "committed", "latest", 7)
    assert [initial_position(one, 5, 8, 10) for one in wanted] == [5, 8, 10, 7]
    with pytest.raises(DataLossError, match="positions 5 to 10, not 11"):
        initial_position(11, 5, 8, 10)


# Partitions


@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
    begins=st.integers(0, 1000),
    at_least=st.integers(1, 20),
    data=st.data(),
)
def test_the_tasks_have_each_position_once(
    sizes: list[int], begins: int, at_least: int, data: st.DataObject
) -> None:
    """The partitions have each position once, and none is empty."""
    refs = []
    position = begins
    for size in sizes:
        refs.append(SegmentRef(str(position), position, position + size))
        position += size
    start = data.draw(st.integers(begins, position))
    end = data.draw(st.integers(start, position))
    parts = partitions_of(slices_of(refs, start, end), at_least)
    assert len(parts) >= min(at_least, end - start)
    reached = start
    for part in parts:
        assert part.slices
        for ref, low, high in part.slices:
            assert low == reached
            assert ref.first <= low < high <= ref.end
            reached = high
    assert reached == end


# Options


def test_the_options_of_a_stream_become_those_of_its_parts() -> None:
    """Options in Spark's notation become those of the log and the receiver."""
    told = StreamOptions.read(
        NEEDED
        | {
            "topic": "a, b",
            "maxinflight": "40",
            "wal.maxbytes": "1g",
            "wal.retention": "5m",
            "startingoffsets": "latest",
            "client.tls_v1": "true",
            "client.auth_secret": "s",
        }
    )
    assert told.receiver.topics == ("a", "b")
    assert told.receiver.max_in_flight == 40
    assert told.receiver.client.tls_v1
    assert told.receiver.client.auth_secret == "s"
    assert (told.limits.max_bytes, told.limits.retention_s) == (1 << 30, 300.0)
    assert told.starting_offsets == "latest"


def test_a_topic_may_be_a_pattern() -> None:
    """A topic that can't be a name is a regular expression, which needs nsqlookupd."""
    pattern = {"topic": "orders[.].*", "lookupd.http.addresses": "h:4161"}
    told = StreamOptions.read(NEEDED | pattern)
    assert (told.receiver.topics, told.receiver.topic_pattern) == ((), "orders[.].*")
    with pytest.raises(OptionsError, match=r"as a pattern needs lookupd\.http\.addresses"):
        StreamOptions.read(NEEDED | {"topic": "orders.*"})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topic": "no such"}, "not a valid name"),
        ({"nsqd.tcp.addresses": "", "x": ""}, "there is no option 'x'"),
        ({"maxInFlight": "1"}, "maxInFlight must be at least 4: connectionsPerNsqd"),
        ({"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}, "is above"),
        ({"wal.maxBytes": "1m"}, r"wal\.maxBytes must be at least"),
        ({"client.max_in_flight": "3"}, "set by the source"),
        ({"client.nothing": "3"}, "there is no option 'nothing'"),
        ({"client.tls_root_ca_file": "/no/such/file", "client.tls_v1": "1"}, "/no/such/file"),
        ({"nsqd.tcp.addresses": "localhost"}, "'localhost' is not host:port"),
        ({"nsqd.tcp.addresses": "h:4150,foo:bar"}, "'foo:bar' is not host:port"),
        ({"nsqd.tcp.addresses": "tcp://foo:4150"}, "'tcp://foo:4150' is not host:port"),
        ({"lookupd.http.addresses": "foo"}, "'foo' is not host:port of an nsqlookupd"),
        ({"startingOffsets": "middle"}, "is not earliest, committed, latest"),
        (
            {"walPath": "ftp://bucket/wal"},
            r"walPath: ftp://bucket/wal is a URL of another kind; a log is in a folder",
        ),
    ],
)
def test_wrong_options_are_refused_with_the_valid_ones(wrong: dict[str, str], told: str) -> None:
    """Invalid options, and invalid combinations, are errors that list the valid options."""
    with pytest.raises(OptionsError, match=told) as error:
        StreamOptions.read(NEEDED | wrong)
    assert "valid options:\n  topic " in str(error.value)


def test_an_unknown_option_is_refused_at_load() -> None:
    """An unknown option is an error at load(), for a stream and for a batch read."""
    check_names({"walPath": "/wal", "endingOffsets": "latest"})
    check_names(NEEDED)
    for told in (NEEDED, {"walPath": "/wal"}):
        with pytest.raises(OptionsError, match="is maxInFlight meant"):
            check_names(told | {"maxinflights": "1"})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"channel": None}, "channel is required"),
        ({"nsqd.tcp.addresses": None}, "nsqd.tcp.addresses or lookupd.http.addresses"),
        ({"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}, "minMessagesPerTrigger is"),
        ({"walPath": "/logs/*"}, "topic is set where the receivers run"),
    ],
)
def test_what_a_stream_of_topics_lacks_is_told_at_load(
    wrong: dict[str, str | None], told: str
) -> None:
    """With a topic it can only be a stream, so that load() can check all of it."""
    options = {name: value for name, value in (NEEDED | wrong).items() if value is not None}
    with pytest.raises(OptionsError, match=told):
        check_names(options)


def test_the_log_s_folder_is_checked_at_load() -> None:
    """Stream and batch read both need a folder or a store, and refuse other URLs."""
    with pytest.raises(OptionsError, match="walPath is required"):
        check_names({"topic": "orders"})
    with pytest.raises(OptionsError, match="walPath: hdfs://name/wal: a log can't be in HDFS"):
        check_names({"walpath": "hdfs://name/wal"})
    with pytest.raises(OptionsError, match="walPath: hdfs://name/wal: a log can't be in HDFS"):
        BatchOptions.read({"walpath": "hdfs://name/wal"})


def test_segments_in_a_store_are_larger() -> None:
    """By default a segment waits longer there; options count as for a folder."""
    folder = StreamOptions.read(NEEDED).receiver
    stored = StreamOptions.read(NEEDED | {"walPath": "s3a://bucket/wal/"})
    assert stored.wal_path == "s3://bucket/wal"
    assert (folder.segment_ms, folder.segment_messages) == (50, 20_000)
    assert (stored.receiver.segment_ms, stored.receiver.segment_messages) == (500, 100_000)
    told = {"walPath": "s3://bucket/wal", "wal.segmentMs": "50", "wal.segmentMessages": "7"}
    chosen = StreamOptions.read(NEEDED | told).receiver
    assert (chosen.segment_ms, chosen.segment_messages) == (50, 7)


def test_a_batch_read_begins_at_the_log_s_begin(tmp_path: Path) -> None:
    """A batch read starts at the start of the log, a stream at the committed position."""
    told = BatchOptions.read({"walpath": str(tmp_path)})
    assert (told.starting_offsets, told.ending_offsets) == ("earliest", "latest")
    assert StreamOptions.read(NEEDED).starting_offsets == "committed"
