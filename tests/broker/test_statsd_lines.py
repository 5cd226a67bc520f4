"""Names, values, types, order and datagrams of statsd. Spec: nsqd-internals, section 8."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.broker import statistics
from trionsq.broker.statistics import memory_metrics
from trionsq.broker.stats_types import ChannelStats, Latency, TopicStats
from trionsq.broker.statsd import (
    Datagrams,
    StatsdMetric,
    counters,
    lines,
    prefix_of,
    process_metrics,
    topic_metrics,
)

NO_LATENCY: Latency = {"count": 0, "percentiles": None}


def channel(name: str, latency: Latency = NO_LATENCY) -> ChannelStats:
    return {
        "channel_name": name,
        "depth": 2,
        "backend_depth": 1,
        "in_flight_count": 3,
        "deferred_count": 4,
        "message_count": 50,
        "requeue_count": 6,
        "timeout_count": 7,
        "client_count": 8,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": latency,
    }


def topic(name: str, *channels: ChannelStats, latency: Latency = NO_LATENCY) -> TopicStats:
    return {
        "topic_name": name,
        "channels": list(channels),
        "depth": 20,
        "backend_depth": 10,
        "message_count": 30,
        "message_bytes": 400,
        "paused": False,
        "e2e_processing_latency": latency,
    }


def told(
    *shown: TopicStats, before: Sequence[TopicStats] = (), exclude_ephemeral: bool = False
) -> list[str]:
    """The lines, less the ends of lines."""

    def figures(topics: Iterable[TopicStats]) -> list[StatsdMetric]:
        return [
            figure
            for one in topics
            for figure in topic_metrics(one, exclude_ephemeral=exclude_ephemeral)
        ]

    text = lines(figures(shown), counters(figures(before)), "p.")
    return [line.removesuffix("\n") for line in text]


def test_names_types_and_order_of_all_figures() -> None:
    """The order that the original has; names are not escaped."""
    latency: Latency = {
        "count": 9,
        "percentiles": [
            {"quantile": 1, "value": 500},
            {"quantile": 0.999, "value": 400},
            {"quantile": 0.95, "value": 300},
        ],
    }
    busy = topic("a.b", channel("c#ephemeral", latency), channel("d"), latency=latency)
    assert told(busy, topic("e")) == [
        "p.topic.a.b.message_count:30|c",
        "p.topic.a.b.message_bytes:400|c",
        "p.topic.a.b.depth:20|g",
        "p.topic.a.b.backend_depth:10|g",
        "p.topic.a.b.e2e_processing_latency_100:500|g",
        "p.topic.a.b.e2e_processing_latency_100:400|g",
        "p.topic.a.b.e2e_processing_latency_95:300|g",
        "p.topic.a.b.channel.c#ephemeral.message_count:50|c",
        "p.topic.a.b.channel.c#ephemeral.depth:2|g",
        "p.topic.a.b.channel.c#ephemeral.backend_depth:1|g",
        "p.topic.a.b.channel.c#ephemeral.in_flight_count:3|g",
        "p.topic.a.b.channel.c#ephemeral.deferred_count:4|g",
        "p.topic.a.b.channel.c#ephemeral.requeue_count:6|c",
        "p.topic.a.b.channel.c#ephemeral.timeout_count:7|c",
        "p.topic.a.b.channel.c#ephemeral.clients:8|g",
        "p.topic.a.b.channel.c#ephemeral.e2e_processing_latency_100:500|g",
        "p.topic.a.b.channel.c#ephemeral.e2e_processing_latency_100:400|g",
        "p.topic.a.b.channel.c#ephemeral.e2e_processing_latency_95:300|g",
        "p.topic.a.b.channel.d.message_count:50|c",
        "p.topic.a.b.channel.d.depth:2|g",
        "p.topic.a.b.channel.d.backend_depth:1|g",
        "p.topic.a.b.channel.d.in_flight_count:3|g",
        "p.topic.a.b.channel.d.deferred_count:4|g",
        "p.topic.a.b.channel.d.requeue_count:6|c",
        "p.topic.a.b.channel.d.timeout_count:7|c",
        "p.topic.a.b.channel.d.clients:8|g",
        "p.topic.e.message_count:30|c",
        "p.topic.e.message_bytes:400|c",
        "p.topic.e.depth:20|g",
        "p.topic.e.backend_depth:10|g",
    ]


def test_counters_tell_the_increase_and_gauges_what_is() -> None:
    """A counter that stood still is told as 0; a channel that is new begins at 0."""
    before, now = topic("t", channel("c")), topic("t", channel("c"), channel("n"))
    now["message_count"] += 5
    now["channels"][0]["timeout_count"] += 2
    values = dict(line.split(":") for line in told(now, before=[before]))
    assert values["p.topic.t.message_count"] == "5|c"
    assert values["p.topic.t.message_bytes"] == "0|c"
    assert values["p.topic.t.depth"] == "20|g"
    assert values["p.topic.t.channel.c.message_count"] == "0|c"
    assert values["p.topic.t.channel.c.timeout_count"] == "2|c"
    assert values["p.topic.t.channel.n.message_count"] == "50|c"


def test_names_that_look_alike_are_counted_apart() -> None:
    """A topic ``t.channel.c`` and channel ``c`` of topic ``t`` share names, not totals."""
    shown = [topic("t", channel("c")), topic("t.channel.c")]
    increases = [line for line in told(*shown, before=shown) if line.endswith("|c")]
    assert [line.partition(":")[2] for line in increases] == ["0|c"] * 7


def test_ephemeral_ones_can_be_left_out() -> None:
    """--statsd-exclude-ephemeral: topics with all their channels, and channels."""
    shown = [topic("e#ephemeral", channel("c")), topic("t", channel("f#ephemeral"))]
    names = {line.rpartition(".")[0] for line in told(*shown, exclude_ephemeral=True)}
    assert names == {"p.topic.t"}


def test_figures_of_the_process() -> None:
    """All are gauges but the runs of the collector, of which the increase is told."""
    shown = list(process_metrics(memory_metrics()))
    text = list(lines(shown, counters(shown), "p."))
    names = [line.partition(":")[0] + line[-3:-1] for line in text]
    assert names == [
        "p.mem.heap_objects|g",
        "p.mem.heap_idle_bytes|g",
        "p.mem.heap_in_use_bytes|g",
        "p.mem.heap_released_bytes|g",
        "p.mem.gc_pause_usec_100|g",
        "p.mem.gc_pause_usec_99|g",
        "p.mem.gc_pause_usec_95|g",
        "p.mem.next_gc_bytes|g",
        "p.mem.gc_runs|c",
    ]
    assert text[-1] == "p.mem.gc_runs:0|c\n"


def test_memory_that_is_mapped_and_not_resident_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of /proc/self/statm: the data less what of it is resident, never below 0."""
    statm = tmp_path / "statm"
    monkeypatch.setattr(statistics, "_STATM", statm)
    page = resource.getpagesize()
    for data, idle in ((900, 800), (50, 0)):
        statm.write_text(f"5000 130 30 7 0 {data} 0\n")
        memory = memory_metrics()
        assert memory["heap_in_use_bytes"] == memory["next_gc_bytes"] == 130 * page
        assert memory["heap_idle_bytes"] == memory["heap_released_bytes"] == idle * page


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("freebsd14", 1024)])
def test_without_proc_the_memory_is_the_peak(
    platform: str, unit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes, whatever the unit of the system is."""
    monkeypatch.setattr(statistics, "_STATM", tmp_path / "none")
    monkeypatch.setattr("sys.platform", platform)
    usage = SimpleNamespace(ru_maxrss=5000)
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    memory = memory_metrics()
    assert memory["heap_in_use_bytes"] == memory["next_gc_bytes"] == 5000 * unit
    assert memory["heap_idle_bytes"] == 0


def test_the_prefix_names_the_host() -> None:
    """It ends with a dot, unless it is empty, and has no other that is not meant."""
    assert prefix_of("nsq.%s", "127.0.0.1", 4151) == "nsq.127_0_0_1_4151."
    assert prefix_of("", "h", 1) == ""
    assert prefix_of("a.b.", "h", 1) == "a.b."
    assert prefix_of("%s", "::1", 4151) == "[__1]_4151."


@given(st.lists(st.text(max_size=20).map(lambda text: text + "\n")), st.integers(1, 60))
def test_datagrams_hold_whole_lines_and_no_more_than_they_may(
    text: list[str], max_bytes: int
) -> None:
    """In order, as many as fit; a line that fits in none is alone in its own."""
    packed = Datagrams(max_bytes)
    for line in text:
        packed.add(line)
    datagrams = packed.finish()
    assert b"".join(datagrams) == "".join(text).encode()
    ends = {0}
    for line in text:
        ends.add(max(ends) + len(line.encode()))
    reached = 0
    for place, datagram in enumerate(datagrams):
        first_line_nbytes = min(end for end in ends if end > reached) - reached
        assert len(datagram) <= max(max_bytes, first_line_nbytes)
        if place:
            assert len(datagrams[place - 1]) + first_line_nbytes > max_bytes
        reached += len(datagram)
        assert reached in ends
