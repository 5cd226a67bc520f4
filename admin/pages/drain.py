"""The drain of a node: it refuses publishes, delivers what it has, and ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import url_of
from admin.cluster.shapes import Count
from admin.pages.node_requests import WAIT_S, is_lacking
from admin.pages.site import Site, arguments
from admin.upstream import NodeWarning, UpstreamError
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

__all__ = ["DrainPages"]

_MAX_LIMIT: Final = 20


class DrainState(Struct):
    """The answer to /config/drain."""

    state: str = ""
    messages: Count | None = None
    seconds: float | None = None
    limit_seconds: float | None = None
    exit: bool = True

    @property
    def is_on(self) -> bool:
        return self.messages is not None


class DrainPages:
    """GET /drain and POST /do/drain."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._upstream = site.dashboard.upstream
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/drain", self.drain), ("POST", "/do/drain", self.change)]

    async def drain(self) -> Response:
        """GET /drain: how far the drain of ``node`` is, and the form that begins or ends it."""
        await self._poller.current()
        return await self._page(arguments().get("node", ""))

    async def _page(self, node: str, problem: str = "") -> Response:
        self._check(node)
        state, error, lacking = DrainState(), "", False
        try:
            url = url_of(node, "/config/drain")
            state = await self._upstream.get_json(url, DrainState, timeout_s=WAIT_S)
        except UpstreamError as failure:
            lacking = is_lacking(failure) or failure.status == 400
            error = "" if lacking else NodeWarning(failure)
        snapshot = self._poller.snapshot
        return self._site.page(
            "drain.html",
            f"Drain {node}",
            "nodes",
            live=True,
            node=node,
            state=state,
            lacking=lacking,
            row=snapshot.nodes.get(node) if snapshot is not None else None,
            warnings=[],
            error=problem or error,
        )

    async def change(self) -> Response:
        """POST /do/drain: ``node``, ``verb`` (begin, cancel), ``limit``, ``stays``, ``typed``."""
        fields = await form()
        node, verb = fields.get("node", ""), fields.get("verb", "")
        self._check(node)
        if verb not in ("begin", "cancel"):
            raise HttpError(400, "INVALID_ACTION")
        record = self._site.dashboard.access.record_action
        if verb == "begin" and fields.get("typed", "").strip() != node:
            record("drain", node=node, note="not confirmed")
            return await self._page(node, "Nothing was done: the typed name does not match.")
        wish: object = False
        if verb == "begin":
            limit = fields.get("limit", "").strip()[:_MAX_LIMIT]
            wish = {"exit": "stays" not in fields, **({"limit": limit} if limit else {})}
        path, action = self._site.url("drain", node=node), f"{verb}_drain"
        try:
            await self._upstream.send(
                "PUT", url_of(node, "/config/drain"), json.dumps(wish).encode()
            )
        except UpstreamError as failure:
            record(action, node=node, note=str(failure))
            return self._site.done(path, ["Nothing was done.", NodeWarning(failure)], "bad")
        record(action, node=node)
        text = f"{node} drains." if verb == "begin" else f"{node} does not drain any more."
        return self._site.done(path, [text])

    def _check(self, node: str) -> None:
        """Raises HttpError: it is none of our nodes."""
        if self._poller.producer(node) is None:
            raise HttpError(404, "NOT_FOUND")
