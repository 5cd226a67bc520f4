"""The message browser: messages of a queue or a log over all nodes, without consuming them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import url_of
from admin.pages.bodies import VIEWS, body_bytes, display_body
from admin.pages.format import age
from admin.pages.peeking import PeekSupport
from admin.pages.scan import (
    BadWishError,
    Found,
    Place,
    Source,
    Wish,
    get_page,
    parse_time,
    scan,
)
from admin.pages.settings import SettingsQueries
from admin.pages.shared_queries import nodes_of_topic
from admin.pages.site import Site, arguments
from admin.pages.wording import plural
from admin.upstream import NodeWarning, UpstreamError
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

__all__ = ["MessageFinder", "MessagePages", "message_rows", "topic_of"]

_LIMITS: Final = (10, 25, 50, 100)
_STATES: Final = (
    ("queued", "Waiting"),
    ("in_flight", "In flight"),
    ("deferred", "Deferred"),
    ("log", "All in the log"),
)
# By verb and the state of the message: the path of nsqd, and what is said afterwards.
_VERBS: Final = {
    ("requeue", "in_flight"): ("/channel/requeue", "Requeued"),
    ("finish", "in_flight"): ("/channel/finish", "Finished"),
    ("requeue", "deferred"): ("/channel/deferred/requeue", "Requeued"),
    ("cancel", "deferred"): ("/channel/deferred/cancel", "Cancelled"),
}
_WISHES: Final = ("text", "json", "since", "until", "attempts")
# The largest body that is sent on; more than nsqd shows is cut.
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
_ID: Final = re.compile(r"[0-9A-Za-z]{1,32}")
# A message moves forward while others are consumed; it is looked for so far before its place.
_LOOK_BACK: Final = 900
_LOOK_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message on the page; ``published_s`` in seconds since 1970; ``query`` finds it again.

    ``due``: when it is delivered if it is deferred, in nanoseconds; "" if it is not.
    """

    id: str
    published_s: float | None
    attempts: int | None
    where: str
    size: int | None
    kind: str
    body: str
    cut: str
    more: str
    node: str
    due: str
    query: Mapping[str, str]


def message_rows(
    messages: Iterable[tuple[str, int | None, Mapping[str, Any]]], view: str = "pretty"
) -> list[MessageRow]:
    """Messages, each with its node and offset, as rows; invalid values are left out. Pure."""
    rows = []
    for node, offset, message in messages:
        body = display_body(message, view)
        stamp_ns = _whole(message.get("timestamp"))
        id_ = str(message.get("id", ""))[:64]
        sequence = _whole(message.get("sequence"))
        place = {"offset": str(offset)} if offset is not None else {"sequence": str(sequence)}
        rows.append(
            MessageRow(
                id=id_,
                published_s=None if stamp_ns is None else stamp_ns / 1e9,
                attempts=_whole(message.get("attempts")),
                where=str(message.get("where", ""))[:40],
                size=_whole(message.get("body_size")),
                kind=body.kind,
                body=body.text,
                cut=body.cut,
                more=_more(message),
                node=node,
                due=str(_whole(message.get("due")) or ""),
                query={"node": node, "id": id_, **place},
            )
        )
    return rows


def _more(message: Mapping[str, Any]) -> str:
    parts = []
    due_s, deadline_s = message.get("due_in_seconds"), message.get("deadline_in_seconds")
    if isinstance(due_s, int | float):
        parts.append(f"due in {age(due_s)}" if due_s > 0 else "due now")
    if isinstance(deadline_s, int | float):
        left = f"times out in {age(deadline_s)}" if deadline_s > 0 else "times out now"
        parts.append(left)
    if "client" in message:
        client = message["client"]
        name = client.get("remote_address") if isinstance(client, dict) else None
        parts.append(f"at {str(name)[:100]}" if name else "its client has gone")
    return ", ".join(parts)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class MessagePages:
    """GET /peek, GET /message and POST /do/message."""

    def __init__(self, site: Site, peekers: PeekSupport, settings: SettingsQueries) -> None:
        self._site = site
        self._peekers = peekers
        self._settings = settings
        self._upstream = site.dashboard.upstream
        self._finder = MessageFinder(site)

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/peek", self.peek),
            ("GET", "/message", self.download),
            ("POST", "/do/message", self.act),
        ]

    async def peek(self) -> Response:
        """GET /peek: ``topic``, maybe ``channel``, ``node``, ``state``, ``limit``, ``view``.

        ``text``, ``json``, ``since``, ``until`` and ``attempts`` search; ``from`` and ``at`` are
        where to go on.
        """
        query = arguments()
        topic, channel = topic_of(query), query.get("channel", "")
        known = await nodes_of_topic(self._site.dashboard, topic)
        every = sorted(producer.node for producer in known.producers)
        nodes = [node for node in every if await self._peekers.can_peek(node)]
        chosen = query.get("node", "") if query.get("node", "") in nodes else ""
        walked = [chosen] if chosen else nodes
        has_log = bool(nodes) and await self._has_log(nodes, topic)
        states = dict(_STATES) if channel else {"queued": "Waiting", "log": "All in the log"}
        if not has_log:
            del states["log"]
        state = query.get("state", "") if query.get("state", "") in states else "queued"
        limit = _choice(query.get("limit", ""), _LIMITS)
        view = query.get("view", "") if query.get("view", "") in dict(VIEWS) else "pretty"
        found, error = Found(), known.error
        place = Place(bisect_left(walked, query.get("from", "")), query.get("at", "")[:200])
        try:
            source, wish = self._source(topic, channel, state, query)
            found = await scan(self._upstream, walked, source, wish, place, limit)
        except BadWishError as problem:
            error = str(problem)
        kept = {"topic": topic, "channel": channel, "node": chosen, "state": state}
        kept |= {"limit": str(limit), "view": view}
        kept |= {name: query.get(name, "") for name in _WISHES}
        after = ""
        if (following := found.next) is not None:
            more = {"from": walked[following.node], "at": following.at}
            after = self._site.url("peek", **(kept | more))
        here = {name: query.get(name, "") for name in ("from", "at")}
        links = [
            (name, text, self._site.url("peek", **(kept | here | {"view": name})))
            for name, text in VIEWS
        ]
        totals = [counts.get(state, 0) for counts in found.counts.values()]
        return self._site.page(
            "peek.html",
            f"Messages of {channel or topic}",
            "topics",
            topic=topic,
            channel=channel,
            nodes=nodes,
            unable=[node for node in every if node not in nodes],
            node=chosen,
            state=state,
            states=states,
            limit=limit,
            limits=_LIMITS,
            view=view,
            views=links,
            wishes={name: query.get(name, "") for name in _WISHES},
            is_search=any(query.get(name) for name in _WISHES),
            is_first=not (query.get("from") or query.get("at")),
            found=found,
            total=sum(totals) if state != "log" else None,
            progress=_progress(found, walked),
            messages=message_rows(found.messages, view),
            first=self._site.url("peek", **kept),
            after=after,
            warnings=[*known.warnings, *map(_problem_text, found.problems)],
            error=error,
        )

    def _source(
        self, topic: str, channel: str, state: str, query: Mapping[str, str]
    ) -> tuple[Source, Wish]:
        """Raises BadWishError."""
        wish = Wish.parse(query)
        if state != "log":
            return Source(topic, channel, state), wish
        # The log finds times by itself.
        times = [_position(query.get(name, "")) for name in ("since", "until")]
        return Source(topic, "", state, *times), wish

    async def _has_log(self, nodes: Sequence[str], topic: str) -> bool:
        stored = await self._settings.of_topic(nodes, topic)
        return any(each.storage == "log" for each in stored.values())

    async def download(self) -> Response:
        """GET /message: the body of one message, as it is."""
        query = arguments()
        message = await self._finder.find(query)
        if message is None:
            raise HttpError(404, "MESSAGE_NOT_FOUND")
        response = Response(body_bytes(message))
        response.headers["Content-Type"] = "application/octet-stream"
        name = f"{topic_of(query)}-{query.get('id', '')}"
        safe = re.sub(r"[^0-9A-Za-z._-]", "_", name)
        response.headers["Content-Disposition"] = f'attachment; filename="{safe}"'
        response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
        return response

    async def act(self) -> Response:
        """POST /do/message: ``verb`` for one message.

        In flight: requeue, or finish by an admin. With ``due`` it is deferred: requeue, or cancel
        by an admin.
        """
        fields = await form()
        verb, id_ = fields.get("verb", ""), fields.get("id", "")
        topic, channel, node = topic_of(fields), fields.get("channel", ""), fields.get("node", "")
        due = fields.get("due", "")[:20]
        state = "deferred" if due else "in_flight"
        if (verb, state) not in _VERBS or not _ID.fullmatch(id_):
            raise HttpError(400, "INVALID_ACTION")
        if verb != "requeue" and not self._site.may("admin"):
            raise HttpError(403, "FORBIDDEN")
        route, done = _VERBS[verb, state]
        path = self._site.url("peek", topic=topic, channel=channel, node=node, state=state)
        record = self._site.dashboard.access.record_action
        known = await nodes_of_topic(self._site.dashboard, topic)
        if node not in [producer.node for producer in known.producers]:
            record(f"{verb}_message", topic=topic, channel=channel, note=id_)
            return self._site.done(path, ["Nothing was done: the node does not have it."], "bad")
        when = {"due": due} if due else {}
        url = url_of(node, route, topic=topic, channel=channel, id=id_, **when)
        try:
            await self._upstream.post(url)
        except UpstreamError as failure:
            note = f"{id_}: {failure}"
            record(f"{verb}_message", topic=topic, channel=channel, node=node, note=note)
            text = (
                "It is not there any more."
                if "MESSAGE_NOT_" in str(failure)
                else NodeWarning(failure)
            )
            return self._site.done(path, ["Nothing was done.", text], "bad")
        record(f"{verb}_message", topic=topic, channel=channel, node=node, note=id_)
        return self._site.done(path, [f"{done} message {id_}."])


class MessageFinder:
    """Finds a message again that a page has shown."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._upstream = site.dashboard.upstream

    async def find(self, query: Mapping[str, str]) -> dict[str, Any] | None:
        """The message of the parameters of a `MessageRow.query`; None: it is there no more.

        Raises HttpError: there is no such node, or it does not answer.
        """
        topic, node, id_ = topic_of(query), query.get("node", ""), query.get("id", "")
        known = await nodes_of_topic(self._site.dashboard, topic)
        if node not in [producer.node for producer in known.producers]:
            raise HttpError(404, "NODE_NOT_FOUND")
        channel = query.get("channel", "")
        try:
            if (sequence := query.get("sequence", "")).isdigit():
                return await self._find_in_log(node, topic, sequence, id_)
            state = query.get("state", "queued") if channel else "queued"
            source = Source(topic, channel, state)
            place = Place(0, query.get("offset", ""))
            start = max(place.offset - _LOOK_BACK, 0)
            # First where it was, then before that, with the bodies cut short.
            for offset, size, most in (
                (place.offset, 1, _MAX_BODY_BYTES),
                (start, _LOOK_PAGE, _LOOK_PAGE),
            ):
                page = await get_page(self._upstream, node, source, offset, size, most)
                for number, message in enumerate(page.messages or ()):
                    if message.get("id") != id_:
                        continue
                    if size > 1:
                        at = offset + number
                        whole = await get_page(self._upstream, node, source, at, 1, _MAX_BODY_BYTES)
                        message = next(iter(whole.messages or ()), message)
                    return message if message.get("id") == id_ else None
        except UpstreamError as error:
            raise HttpError(502, "UPSTREAM_ERROR") from error
        return None

    async def _find_in_log(
        self, node: str, topic: str, sequence: str, id_: str
    ) -> dict[str, Any] | None:
        source = Source(topic, "", "log", since=sequence[:19])
        found = await scan(self._upstream, [node], source, Wish(), Place(), 1)
        message = found.messages[0][2] if found.messages else {}
        return message if message.get("id") == id_ else None


def _problem_text(problem: UpstreamError | str) -> str:
    if isinstance(problem, str):
        return problem
    text = str(problem)
    if "OFFSET_TOO_FAR" in text:
        return f"{problem.node}: so far back nsqd does not look. Its other messages are left out."
    return NodeWarning(problem)


def _progress(found: Found, nodes: Sequence[str]) -> str:
    """What a search has looked at."""
    text = f"Looked at {plural(found.scanned, 'message')}"
    if found.next is None:
        return f"{text}: that is all."
    at = nodes[found.next.node]
    return f"{text}; there are more, on {at}" + (
        f" and {plural(len(nodes) - found.next.node - 1, 'other node')}."
        if found.next.node + 1 < len(nodes)
        else "."
    )


def _position(text: str) -> str:
    """A time of a form as a position in a log. Raises BadWishError."""
    moment_s = parse_time(text)
    if moment_s is None:
        return ""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def topic_of(parameters: Mapping[str, str]) -> str:
    """The topic of a request. Raises HttpError: none."""
    topic = parameters.get("topic", "")
    if not topic:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return topic


def _choice(text: str, choices: Sequence[int]) -> int:
    """The number of ``choices`` that ``text`` is, else the first."""
    return next((number for number in choices if str(number) == text), choices[0])
