"""Publish a message: a new one, or one that a page has shown, again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import AllFailed, url_of
from admin.pages.bodies import FORMATS, BadBodyError, body_bytes, parse_body
from admin.pages.format import duration_s
from admin.pages.messages import MessageFinder, topic_of
from admin.pages.shared_queries import nodes_of_topic
from admin.pages.site import Site, arguments
from admin.pages.wording import plural
from admin.upstream import UpstreamError
from trionsq.web.app import Endpoint
from trionsq.wire.names import is_valid_name

__all__ = ["PublishPages"]

_MAX_BODY_BYTES: Final = 512 * 1024
_MAX_DEFER_MS: Final = 3_600_000


class PublishPages:
    """GET /publish and POST /do/publish."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._cluster = site.dashboard.cluster
        self._upstream = site.dashboard.upstream
        self._finder = MessageFinder(site)

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/publish", self.publish_form), ("POST", "/do/publish", self.publish)]

    async def publish_form(self) -> Response:
        """GET /publish: ``topic``; with ``id`` and its place the form has that message."""
        query = arguments()
        if not query.get("id"):
            return await self._form(topic_of(query))
        message = await self._finder.find(query)
        if message is None:
            return await self._form(topic_of(query), problem="The message is there no more.")
        body = body_bytes(message)
        if message.get("body_cut") or len(body) > _MAX_BODY_BYTES:
            text = f"The message is too large to be sent from here: over {_MAX_BODY_BYTES:,} bytes."
            return await self._form(topic_of(query), problem=text)
        values = {"body": body.hex(" "), "format": "hex"}
        if message.get("body_encoding") == "utf-8" and b"\r" not in body and b"\0" not in body:
            values = {"body": body.decode(errors="replace"), "format": "text"}
        return await self._form(topic_of(query), values)

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
        topic, node = topic_of(fields).strip(), fields.get("node", "")
        if not is_valid_name(topic.encode(errors="replace")):
            return await self._form(topic, fields, "Not a valid topic name.")
        nodes, _, _ = await self._nodes(topic)
        # Without a node: the first one that answers.
        silent = self._site.dashboard.poller.silent_nodes
        node = node or next((each for each in nodes if each not in silent), "")
        if node not in nodes:
            return await self._form(
                topic, fields, "This node does not have the topic, or does not exist any more."
            )
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
            return self._site.done(path, [advice, str(failed)], "warn")
        if failed is not None:
            return self._site.done(path, [f"Not published: {failed}"], "bad")
        later = f", deferred by {duration_s(defer_ms / 1000)}" if defer_ms else ""
        text = f"Published {plural(len(body), 'byte')} to {node}{later}."
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


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 14 else default
