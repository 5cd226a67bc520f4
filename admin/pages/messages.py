"""Pages about messages: peek at those of a queue, and publish one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio
from msgspec import Struct
from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import AllFailed, url_of
from admin.pages.bodies import FORMATS, BadBodyError, display_body, parse_body
from admin.pages.format import duration_s, number
from admin.pages.shared_queries import nodes_of_topic
from admin.pages.site import Site, arguments
from admin.upstream import Upstream, UpstreamError
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

__all__ = ["MessagePages", "PeekSupport", "message_rows"]

_LIMITS: Final = (10, 25, 50, 100)
_MAX_BODY_BYTES: Final = 512 * 1024
_MAX_OFFSET: Final = 10**12
_MAX_DEFER_MS: Final = 3_600_000
_STATES: Final = (("queued", "Queued"), ("in_flight", "In flight"), ("deferred", "Deferred"))


class PeekPage(Struct):
    """The answer of our nsqd to /topic/peek and /channel/peek; see docs/peek.md."""

    messages: list[dict[str, Any]] | None = None
    counts: dict[str, int] | None = None
    order: str = ""
    more: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message on the page; ``published_s`` in seconds since 1970."""

    id: str
    published_s: float | None
    attempts: int | None
    where: str
    size: int | None
    kind: str
    body: str
    cut: str
    more: str


def message_rows(messages: Iterable[Mapping[str, Any]]) -> list[MessageRow]:
    """Messages from a node as rows; invalid values are left out. Pure."""
    rows = []
    for message in messages:
        body = display_body(message)
        stamp_ns = _whole(message.get("timestamp"))
        rows.append(
            MessageRow(
                id=str(message.get("id", ""))[:64],
                published_s=None if stamp_ns is None else stamp_ns / 1e9,
                attempts=_whole(message.get("attempts")),
                where=str(message.get("where", ""))[:20],
                size=_whole(message.get("body_size")),
                kind=body.kind,
                body=body.text,
                cut=body.cut,
                more=_more(message),
            )
        )
    return rows


def _more(message: Mapping[str, Any]) -> str:
    parts = []
    due_s, deadline_s = message.get("due_in_seconds"), message.get("deadline_in_seconds")
    if isinstance(due_s, int | float):
        parts.append(f"due in {duration_s(due_s)}")
    if isinstance(deadline_s, int | float):
        parts.append(f"times out in {duration_s(deadline_s)}")
    if "client" in message:
        client = message["client"]
        name = client.get("remote_address") if isinstance(client, dict) else None
        parts.append(f"at {str(name)[:100]}" if name else "its client has gone")
    return ", ".join(parts)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class MessagePages:
    """GET /peek, GET /publish and POST /do/publish."""

    def __init__(self, site: Site, peekers: PeekSupport) -> None:
        self._site = site
        self._peekers = peekers
        self._cluster = site.dashboard.cluster
        self._upstream = site.dashboard.upstream

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/peek", self.peek),
            ("GET", "/publish", self.publish_form),
            ("POST", "/do/publish", self.publish),
        ]

    async def peek(self) -> Response:
        """GET /peek: ``topic``, maybe ``channel``, ``node``, ``state``, ``offset``, ``limit``."""
        query = arguments()
        topic, channel = _topic(query), query.get("channel", "")
        nodes, warnings, error = await self._nodes(topic)
        chosen_node = query.get("node", "")
        node = chosen_node if chosen_node in nodes else await self._first_that_can(nodes)
        states = dict(_STATES) if channel else {"queued": "Queued"}
        state = query.get("state", "")
        state = state if state in states else "queued"
        limit = _number(query.get("limit", ""), _LIMITS[0])
        limit = limit if limit in _LIMITS else _LIMITS[0]
        offset = min(_number(query.get("offset", ""), 0), _MAX_OFFSET)
        page = None
        if node:
            try:
                page = await self._peek_messages(node, topic, channel, state, offset, limit)
            except UpstreamError as failure:
                error = _why(node, failure)

        def link(to: int) -> str:
            parameters = {"topic": topic, "channel": channel, "node": node, "state": state}
            return self._site.url("peek", **parameters, limit=str(limit), offset=str(max(to, 0)))

        rows = message_rows((page.messages or ())[:limit]) if page else []
        return self._site.page(
            "peek.html",
            f"Peek at {channel or topic}",
            "topics",
            topic=topic,
            channel=channel,
            nodes=nodes,
            node=node,
            state=state,
            state_name=states[state],
            states=_STATES,
            limit=limit,
            limits=_LIMITS,
            offset=offset,
            page=_with_counts(page),
            messages=rows,
            before=link(offset - limit),
            after=link(offset + len(rows)),
            warnings=warnings,
            error=error,
        )

    async def _peek_messages(
        self, node: str, topic: str, channel: str, state: str, offset: int, limit: int
    ) -> PeekPage:
        query = {"topic": topic, "limit": str(limit), "offset": str(offset)}
        query |= {"channel": channel, "state": state} if channel else {}
        path = "/channel/peek" if channel else "/topic/peek"
        return await self._upstream.get_json(url_of(node, path, **query), PeekPage)

    async def _first_that_can(self, nodes: Sequence[str]) -> str:
        for node in nodes[:20]:
            if await self._peekers.can_peek(node):
                return node
        return nodes[0] if nodes else ""

    async def publish_form(self) -> Response:
        """GET /publish: ``topic``."""
        return await self._form(_topic(arguments()))

    async def _form(
        self, topic: str, values: Mapping[str, str] | None = None, problem: str = ""
    ) -> Response:
        values = values or {}
        nodes, warnings, error = await self._nodes(topic)
        return self._site.page(
            "publish.html",
            f"Publish to {topic}",
            "topics",
            topic=topic,
            nodes=nodes,
            node=values.get("node", ""),
            body=values.get("body", ""),
            format=values.get("format", "text"),
            defer=values.get("defer", "0"),
            formats=FORMATS,
            warnings=warnings,
            error=problem or error,
        )

    async def publish(self) -> Response:
        """POST /do/publish: ``topic``, ``node``, ``body``, ``format``, ``defer`` (ms)."""
        fields = await form()
        topic, node = _topic(fields), fields.get("node", "")
        nodes, _, _ = await self._nodes(topic)
        if node not in nodes:
            return await self._form(topic, fields, "This node does not exist any more.")
        try:
            body = parse_body(fields.get("body", ""), fields.get("format", "text"))
        except BadBodyError as error:
            return await self._form(topic, fields, str(error))
        if not 0 < len(body) <= _MAX_BODY_BYTES:
            text = f"The message must have 1 to {_MAX_BODY_BYTES:,} bytes."
            return await self._form(topic, fields, text)
        defer_ms = min(_number(fields.get("defer", ""), 0), _MAX_DEFER_MS)
        query = {"topic": topic, **({"defer": str(defer_ms)} if defer_ms else {})}
        path, failed = self._site.url("topics", topic), None
        try:
            await self._upstream.post(url_of(node, "/pub", **query), body)
        except UpstreamError as failure:
            failed = failure
        note = str(failed or f"{len(body)} bytes to {node}")
        self._site.dashboard.access.record_action("publish", topic=topic, note=note)
        if failed is not None and failed.may_have_happened:
            advice = "The message may have been published. Check the topic before you try again."
            return self._site.done(path, [advice, str(failed)], "bad")
        if failed is not None:
            return self._site.done(path, [f"Not published: {failed}"], "bad")
        later = f", deferred by {duration_s(defer_ms / 1000)}" if defer_ms else ""
        text = (
            f"Published {number(len(body))} byte{'' if len(body) == 1 else 's'} to {node}{later}."
        )
        return self._site.done(path, [text])

    async def _nodes(self, topic: str) -> tuple[list[str], list[str], str]:
        """The nodes of the topic, else all nodes; warnings; an error if there are none."""
        result = await nodes_of_topic(self._site.dashboard, topic)
        if result.error:
            return [], [], result.error
        if result.producers:
            return [node.node for node in result.producers], result.warnings, ""
        # A topic that does not exist yet can be published to any node.
        try:
            everyone = await self._cluster.nodes()
        except AllFailed as failure:
            return [], [], str(failure)
        return [node.node for node in everyone.value], everyone.warnings, ""


def _with_counts(page: PeekPage | None) -> PeekPage | None:
    if page is not None and page.counts is None:
        page.counts = {}
    return page


def _why(node: str, failure: UpstreamError) -> str:
    if failure.status != 404:
        return str(failure)
    if "NOT_FOUND" in str(failure) and ("TOPIC_" in str(failure) or "CHANNEL_" in str(failure)):
        return f"{node} does not have this topic or channel."
    return f"{node} can't show messages: it is an original nsqd, which has no /topic/peek."


def _topic(parameters: Mapping[str, str]) -> str:
    """The topic of a request. Raises HttpError: none."""
    topic = parameters.get("topic", "")
    if not topic:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return topic


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 14 else default


_KEPT_S: Final = 300.0
_MAX_NODES: Final = 2000
_WAIT_S: Final = 1.0


class PeekSupport:
    """Which nodes can show messages without consuming them: ours can, the original nsqd can't.

    Each node is asked once in five minutes.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        # By node: whether it can, and until when that is valid.
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()

    async def why_not(self, nodes: Sequence[str]) -> str:
        """Why no node of ``nodes`` can show messages; "" if one can."""
        if nodes and await self.can_peek(nodes[0]):
            return ""  # usually all nodes are alike
        answers: list[bool] = []

        async def ask(node: str) -> None:
            answers.append(await self.can_peek(node))

        async with trio.open_nursery() as nursery:
            for node in nodes[1:]:
                nursery.start_soon(ask, node)
        if any(answers):
            return ""
        return "These nodes can't show messages: the original nsqd has no /topic/peek."

    async def can_peek(self, node: str) -> bool:
        """Whether a node has /topic/peek; False if it does not answer within a second."""
        known, until_s = self._known.get(node, (False, -1.0))
        if trio.current_time() < until_s:
            return known
        try:
            await self._upstream.get_bytes(url_of(node, "/topic/peek"), timeout_s=_WAIT_S)
            can = True
        except UpstreamError as error:
            # 400: the topic is missing; 404: there is no such path.
            can = error.status == 400
            if error.status is None:
                return False
        self._known[node] = can, trio.current_time() + _KEPT_S
        if len(self._known) > _MAX_NODES:
            self._known.popitem(last=False)
        return can
