"""Commands that show topics, channels, messages and nodes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from admin.cluster.queries import url_of
from admin.cluster.shapes import ChannelStats, TopicStats
from admin.upstream import UpstreamError
from trionsq.durations import SECOND_NS
from trionsq.local.operate.changes import Subject
from trionsq.local.operate.output import Report, table_lines
from trionsq.local.operate.session import CommandError, Session

__all__ = ["channels", "infos", "nodes", "peek", "ready", "settings", "tcp_addresses", "topics"]

_NOT_FOUND: Final = 404
_PREVIEW: Final = 200


async def topics(session: Session) -> Report:
    """All topics with their sums over the nodes."""
    known = await session.registered_topics()
    answers = await session.stats(await session.nodes())
    places: dict[str, list[TopicStats]] = {name: [] for name in known}
    for stats in answers.values():
        for topic in stats.topics or ():
            places.setdefault(topic.topic_name, []).append(topic)
    rows = [
        {
            "topic": name,
            "nodes": len(places[name]),
            "channels": len(
                {each.channel_name for one in places[name] for each in one.channels or ()}
            ),
            "depth": sum(one.depth for one in places[name]),
            "messages": sum(one.message_count for one in places[name]),
            "bytes": sum(one.message_bytes for one in places[name]),
            "paused": _paused(places[name]),
        }
        for name in sorted(places)
    ]
    return _table("topics", rows)


async def channels(session: Session, topic: str) -> Report:
    """The channels of a topic with their sums over the nodes.

    Raises:
        CommandError: no node has the topic.
    """
    found = await _topic(session, topic)
    places: dict[str, list[ChannelStats]] = {}
    for one in found.values():
        for channel in one.channels or ():
            places.setdefault(channel.channel_name, []).append(channel)
    rows = [
        {
            "channel": name,
            "nodes": len(places[name]),
            "depth": sum(one.depth for one in places[name]),
            "in_flight": sum(one.in_flight_count for one in places[name]),
            "deferred": sum(one.deferred_count for one in places[name]),
            "requeued": sum(one.requeue_count for one in places[name]),
            "timed_out": sum(one.timeout_count for one in places[name]),
            "clients": sum(one.client_count for one in places[name]),
            "paused": _paused(places[name]),
        }
        for name in sorted(places)
    ]
    return _table("channels", rows, topic=topic)


def _paused(places: Iterable[TopicStats | ChannelStats]) -> str:
    """Whether it is paused: ``yes``, ``no``, or ``partly`` if the nodes differ."""
    states = {one.paused for one in places}
    return "partly" if len(states) > 1 else "yes" if True in states else "no"


async def peek(session: Session, target: Subject, **query: str) -> Report:
    """The next messages of each node that has the target. Raises as `channels`."""
    found = await _topic(session, target.topic)
    pages = await session.get(found, f"/{target.kind}/peek", **target.names, **query)
    rows = [
        (
            node,
            _time(message.get("timestamp")),
            message.get("attempts", 0),
            message.get("body_size", 0),
            _preview(message),
        )
        for node, page in pages.items()
        for message in _items(page, "messages")
    ]
    for node, page in pages.items():
        if page.get("trouble"):
            session.failures[node] = str(page["trouble"])
    lines = table_lines(("node", "published", "attempts", "size", "body"), rows)
    document = {**target.names, "nodes": [{"node": node, **page} for node, page in pages.items()]}
    return Report(document, lines)


def _items(page: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects of a list in an answer; whatever else is there is left out."""
    items = page.get(key)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def _preview(message: dict[str, Any]) -> str:
    body = str(message.get("body", ""))
    if message.get("body_encoding") == "base64":
        try:
            return repr(base64.b64decode(body)[:_PREVIEW])
        except (binascii.Error, ValueError):
            return ""
    return body[:_PREVIEW]


def _time(time_ns: object) -> str:
    try:
        moment = datetime.fromtimestamp(int(str(time_ns)) / SECOND_NS, UTC)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


async def settings(session: Session, topic: str) -> Report:
    """Where nodes keep the messages of all topics, and how safe an OK is.

    Of one topic also how long messages stay, and why its oldest segment is there.
    """
    columns = ["node", "topic", "storage", "durability"]
    if topic:
        found = await session.get(await _topic(session, topic), "/topic/settings", topic=topic)
        rows = [{"node": node, **one} for node, one in found.items()]
        columns[1:2] = []
        columns += ["retain", "retain_bytes", "bytes", "oldest_held_by"]
    else:
        answers = await session.get(await session.nodes(), "/topic/settings")
        rows = [
            {"node": node, **one}
            for node, answer in answers.items()
            for one in _items(answer, "topics")
        ]
    shown = [{**row, "oldest_held_by": _holder(row.get("oldest_segment"))} for row in rows]
    return Report({"settings": rows}, _table("settings", shown, columns).lines)


def _holder(oldest: object) -> str:
    """Why the oldest segment is there: ``channel billing``, ``retention`` ..."""
    if not isinstance(oldest, dict):
        return ""
    return f"{oldest.get('held_by', '')} {oldest.get('channel', '')}".strip()


async def nodes(session: Session) -> Report:
    """All nodes, and what they have."""
    answers = await session.stats(await session.nodes())
    rows = []
    for node, stats in answers.items():
        having = stats.topics or []
        children = [channel for topic in having for channel in topic.channels or ()]
        rows.append(
            {
                "node": node,
                "version": stats.version,
                "health": stats.health,
                "topics": len(having),
                "channels": len(children),
                "depth": sum(one.depth for one in having) + sum(one.depth for one in children),
                "in_flight": sum(one.in_flight_count for one in children),
                "clients": sum(one.client_count for one in children),
            }
        )
    return _table("nodes", rows)


async def infos(session: Session) -> Report:
    """What each node says of itself."""
    answers = await session.get(await session.nodes(), "/info")
    rows = [{"node": node, **info} for node, info in answers.items()]
    columns = ("node", "version", "hostname", "broadcast_address", "tcp_port", "http_port")
    # A port is a name.
    shown = [{**row, **{key: str(row.get(key, "")) for key in columns[-2:]}} for row in rows]
    return Report({"nodes": rows}, _table("nodes", shown, columns).lines)


async def ready(session: Session) -> Report:
    """Whether each node takes messages; the exit code is 1 if one does not."""

    async def ask(node: str) -> str:
        for path in ("/ready", "/ping"):  # the original has no /ready
            try:
                await session.upstream.get_bytes(url_of(node, path))
            except UpstreamError as error:
                if error.status == _NOT_FOUND and path == "/ready":
                    continue
                if error.status is None:
                    raise
                return str(error)
            break
        return ""

    answers = await session.each(await session.nodes(), ask)
    rows = [
        {"node": node, "ready": not reason, "reason": reason} for node, reason in answers.items()
    ]
    report = _table("nodes", rows)
    return Report(report.document, report.lines, 1 if any(answers.values()) else 0)


async def tcp_addresses(session: Session, found: list[str]) -> Report:
    """Add host:port of TCP of each node to ``found``."""
    answers = await session.get(await session.nodes(), "/info")
    for node, info in answers.items():
        port = info.get("tcp_port")
        if isinstance(port, int) and port > 0:
            found.append(f"{node.rpartition(':')[0]}:{port}")
        else:
            session.failures[node] = "it listens on no TCP port"
    return Report({}, [])


async def _topic(session: Session, topic: str) -> dict[str, TopicStats]:
    found = await session.topic_stats(topic)
    if not found:
        where = "no node that answered" if session.failures else "no node"
        raise CommandError(f"topic {topic}: {where} has it")
    return found


def _table(
    key: str, rows: list[dict[str, Any]], columns: Iterable[str] = (), **names: str
) -> Report:
    """Rows as a document and a table; a table without rows has a header if columns are given."""
    header = list(columns) or list(rows[0] if rows else ())
    cells = [[row.get(column, "") for column in header] for row in rows]
    shown = table_lines([name.replace("_", " ") for name in header], cells) if header else []
    return Report({**names, key: rows}, shown)
