"""/stats as text for people, laid out as nsqd does it. Spec: nsqd-http, section 5."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from datetime import datetime

from trionsq.broker.statistics import ChannelRow, ClientRow, ProcessRow, ProducerRow, Row, TopicRow
from trionsq.broker.stats_types import ChannelStats, ClientStats, Latency, TopicStats
from trionsq.durations import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, render

__all__ = ["StatsText"]


class StatsText:
    """Writes the text."""

    def __init__(self, now_ns: int) -> None:
        """``now_ns`` is the wall clock, for uptime and connection times."""
        self._now_ns = now_ns
        self._now_s = now_ns // SECOND_NS
        self._has_topics = False
        self._has_producers = False

    def row(self, row: Row) -> bytes:
        """The lines of the next row."""
        return _encoded(self._lines(row))

    def end(self) -> bytes:
        """The lines that end the text."""
        return b"" if self._has_producers else _encoded([*self._end_topics(), "Producers: None"])

    def _lines(self, row: Row) -> Iterator[str]:
        match row:
            case ProcessRow():
                yield from _head(row, self._now_ns)
            case TopicRow(stats):
                yield "" if self._has_topics else "Topics:"
                self._has_topics = True
                yield _topic(stats)
            case ChannelRow(stats):
                yield _channel(stats)
            case ClientRow(stats):
                yield f"        {_consumer(stats, self._now_s)}"
            case ProducerRow(stats):
                if not self._has_producers:
                    yield from self._end_topics()
                    yield "Producers:"
                self._has_producers = True
                yield f"   {_producer(stats, self._now_s)}"

    def _end_topics(self) -> Iterator[str]:
        if not self._has_topics:
            yield "Topics: None"
        yield ""


def _encoded(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def _head(head: ProcessRow, now_ns: int) -> Iterator[str]:
    started_s = head.start_time
    started = datetime.fromtimestamp(started_s).astimezone().isoformat()
    yield f"nsqd v{head.version} (built w/python{platform.python_version()})"
    yield f"start_time {started.replace('+00:00', 'Z')}"
    yield f"uptime {render(max(0, now_ns - started_s * SECOND_NS))}"
    yield ""
    yield f"Health: {head.health}"
    yield ""
    if head.memory is not None:
        yield "Memory:"
        for name, value in head.memory.items():
            yield f"   {name:<25}\t{value}"
        yield ""


def _topic(topic: TopicStats) -> str:
    return (
        f"{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}]"
        f" depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5}"
        f" msgs: {topic['message_count']:<8} e2e%: {_latency(topic['e2e_processing_latency'])}"
    )


def _channel(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel['paused'] else '      '}[{channel['channel_name']:<25}]"
        f" depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5}"
        f" inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4}"
        f" re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
        f" msgs: {channel['message_count']:<8}"
        f" e2e%: {_latency(channel['e2e_processing_latency'])}"
    )


def _label(client: ClientStats) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    return f"[{client['version']} {_one_line(name):<21}]"


def _one_line(text: str) -> str:
    """What a client said of itself must not look like lines of ours."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _connected(client: ClientStats, now_s: int) -> str:
    return render(max(0, now_s - client["connect_ts"]) * SECOND_NS)


def _consumer(client: ClientStats, now_s: int) -> str:
    return (
        f"{_label(client)} state: {client['state']} inflt: {client['in_flight_count']:<4}"
        f" rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8}"
        f" re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8}"
        f" connected: {_connected(client, now_s)}"
    )


def _producer(client: ClientStats, now_s: int) -> str:
    counts = client.get("pub_counts")
    if not counts:
        return _consumer(client, now_s)
    total = sum(count["count"] for count in counts)
    topics = ",".join(f"{count['topic']}={count['count']}" for count in counts)
    return (
        f"{_label(client)} msgs: {total:<8} topics: {topics} connected: {_connected(client, now_s)}"
    )


def _latency(latency: Latency) -> str:
    return ", ".join(_short(each["value"]) for each in latency["percentiles"] or ())


def _short(value_ns: int) -> str:
    for unit_ns, unit in ((SECOND_NS, "s"), (MILLISECOND_NS, "ms"), (MICROSECOND_NS, "us")):
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{unit}"
    return f"{value_ns:.1f}ns"
