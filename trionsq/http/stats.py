"""/ping, /info and /stats; /stats as JSON and as text, row by row.

Spec: nsqd-http, sections 2 and 5.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Final

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.statistics import (
    ChannelRow,
    ClientRow,
    ProcessRow,
    ProducerRow,
    Row,
    StatsFilter,
    TopicRow,
    info,
    statistics,
)
from trionsq.broker.stats_types import ChannelStats, ClientStats, Latency, TopicStats
from trionsq.core import topic as core_topic
from trionsq.durations import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, render
from trionsq.web.protocol import flag, json_bytes
from trionsq.web.request import query
from trionsq.web.responses import (
    Pieces,
    SharedDocuments,
    json_document,
    json_pieces,
    plain,
    text_pieces,
)

__all__ = ["Statistics", "StatsJson", "StatsText"]

# Documents of /stats that are made at once. Each costs a millisecond in a turn of the event loop.
_MAX_AT_ONCE: Final = 2
# The rows that follow fill these lists. Neither can be part of a string in JSON.
_CHANNELS: Final = b'"channels":['
_CLIENTS: Final = b'"clients":['


class Statistics:
    """The endpoints about the state of nsqd."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents: SharedDocuments[list[bytes]] = SharedDocuments(_MAX_AT_ONCE)

    async def ping(self) -> Response:
        """GET /ping: ``OK``, or 500 and the fault."""
        health = self._broker.health
        return plain(200 if health == "OK" else 500, health)

    async def info(self) -> Response:
        """GET /info."""
        return json_document(info(self._broker))

    async def stats(self) -> Response:
        """GET /stats, as JSON or as text."""
        values = query()
        stats_filter = StatsFilter(
            topic=values.get(b"topic", b"").decode(errors="replace"),
            channel=values.get(b"channel", b"").decode(errors="replace"),
            clients=flag(values, b"include_clients", default=True),
            memory=flag(values, b"include_mem", default=True),
            counts=flag(values, b"include_counts", default=False),
        )
        as_json = values.get(b"format") == b"json"
        pieces = await self._documents.get(
            (as_json, stats_filter), lambda: self._make_document(stats_filter, as_json)
        )
        return json_pieces(pieces) if as_json else text_pieces(pieces)

    async def _make_document(self, stats_filter: StatsFilter, as_json: bool) -> list[bytes]:
        form = StatsJson() if as_json else StatsText(self._broker.clock.now_ns())
        document = Pieces()
        async with aclosing(statistics(self._broker, stats_filter)) as rows:
            async for row in rows:
                document.add(form.row(row))
        document.add(form.end_document())
        return document.finish()


# As JSON


class StatsJson:
    """Writes the document row by row; the end of a topic or channel waits for its last row."""

    def __init__(self) -> None:
        # The ends of the open lists and of the objects around them, the innermost last.
        self._ends: list[bytes] = []
        self._memory = b""
        self._has_producers = False
        self._topics_end = b"]"

    def row(self, row: Row) -> bytes:
        """Return the next row, after the ends of earlier ones."""
        match row:
            case ProcessRow():
                return self._begin(row)
            case TopicRow(stats):
                return self._item(1, json_bytes(stats), _CHANNELS)
            case ChannelRow(stats):
                return self._item(2, json_bytes(stats), _CLIENTS)
            case ClientRow(stats):
                return self._item(3, json_bytes(stats))
            case ProducerRow(stats):
                return self._producer(json_bytes(stats))

    def end_document(self) -> bytes:
        """Return the end of the document."""
        return b"]}" if self._has_producers else self._end_topics() + b'"producers":null}'

    def _begin(self, head: ProcessRow) -> bytes:
        if head.memory is not None:
            self._memory = b'"memory":%b,' % json_bytes(head.memory)
        process = {"version": head.version, "health": head.health, "start_time": head.start_time}
        first = json_bytes(process | {"draining": True} if head.is_draining else process)
        if not head.has_topics:
            self._topics_end = b""
        return first.removesuffix(b"}") + (b',"topics":[' if head.has_topics else b',"topics":null')

    def _item(self, level: int, stats: bytes, list_begins: bytes = b"") -> bytes:
        """Return an item of the list at that level, up to ``list_begins`` if it has a list."""
        before = self._end_lists(level)
        begin, has_list, end = stats.partition(list_begins) if list_begins else (stats, b"", b"")
        self._ends.append(end)
        return before + begin + has_list

    def _end_lists(self, level: int) -> bytes:
        """Return the ends of the open lists from this level on, and a comma if there are any."""
        if len(self._ends) < level:
            return b""
        ends = b"".join(reversed(self._ends[level - 1 :]))
        del self._ends[level - 1 :]
        return ends + b","

    def _end_topics(self) -> bytes:
        ends = b"".join(reversed(self._ends)) + self._topics_end
        self._ends.clear()
        return ends + b"," + self._memory

    def _producer(self, stats: bytes) -> bytes:
        if self._has_producers:
            return b"," + stats
        self._has_producers = True
        return self._end_topics() + b'"producers":[' + stats


# As text, laid out as nsqd does it


class StatsText:
    """Writes the text row by row."""

    def __init__(self, now_ns: int) -> None:
        """``now_ns``: the wall clock, for uptime and connection times."""
        self._now_ns = now_ns
        self._now_s = now_ns // SECOND_NS
        self._has_topics = False
        self._has_producers = False

    def row(self, row: Row) -> bytes:
        """Return the lines of the next row."""
        return _encoded(self._lines(row))

    def end_document(self) -> bytes:
        """Return the last lines of the text."""
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
    compiled = "" if core_topic.__file__.endswith(".py") else ", compiled"
    yield f"nsqd v{head.version} (built w/python{platform.python_version()}{compiled})"
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
    """Replace unprintable characters: a name that a client chose must not look like our lines."""
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
