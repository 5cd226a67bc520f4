"""Graphite (--graphite-url): its images on the pages, its rates in the API, and a proxy for images.

Our own charts show the poller's history; those of Graphite go back as far as its data. Spec:
nsqadmin, sections 2, 3 and 6 (Graphs).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup
from quart import Response, request

from admin.dashboard import Dashboard
from admin.options import NsqadminOptions
from admin.upstream import UpstreamError, json_of
from trionsq.durations import SECOND_NS
from trionsq.web.protocol import HttpError
from trionsq.web.request import query
from trionsq.web.responses import json_document

__all__ = ["COOKIE", "INTERVALS", "GraphiteEndpoints", "GraphiteImages"]

INTERVALS: Final = ("1h", "2h", "12h", "24h", "48h", "168h", "off")
_INTERVAL_DEFAULT: Final = "2h"
COOKIE: Final = "nsqadmin_graphs"
_GAUGES: Final = frozenset(
    {"depth", "backend_depth", "in_flight_count", "deferred_count", "clients"}
)
_NO_SIZE: Final = {"hideLegend": "true", "hideGrid": "true", "hideAxes": "true", "margin": "0"}
_SMALL: Final = (120, 28)
_LARGE: Final = (800, 300)
_MEMORY: Final = ("heap_in_use_bytes", "heap_objects", "gc_pause_usec_99", "gc_total_runs")


class GraphiteImages:
    """Images of Graphite; each method returns a small one that links to a large one."""

    def __init__(self, options: NsqadminOptions) -> None:
        # With the proxy, images are below our base path.
        base = "" if options.base_path == "/" else options.base_path
        self._url = base if options.proxy_graphite else options.graphite_url.rstrip("/")
        self._counter = options.statsd_counter_format
        self._gauge = options.statsd_gauge_format
        self._prefix = options.statsd_prefix
        self._interval_s = max(1, options.statsd_interval_ns // SECOND_NS)

    @property
    def interval(self) -> str:
        """The period, one of `INTERVALS`, from the query parameter ``t`` or a cookie."""
        for given in (request.args.get("t"), request.cookies.get(COOKIE)):
            if given in INTERVALS:
                return given
        return _INTERVAL_DEFAULT

    def spark(self, row: object) -> Markup:
        """The depth of a topic's or channel's row."""
        return self.image(getattr(row, "topic", ""), getattr(row, "channel", ""), "depth")

    def image(self, topic: str, channel: str, key: str, node: str = "*") -> Markup:
        """A value of a topic or channel, on one node or all."""
        path = f"topic.{_clean(topic)}."
        path += f"channel.{_clean(channel)}." if channel else ""
        kind = "channel" if channel else "topic"
        title = f"{key} of the {kind} {channel or topic}"
        return self._linked(path + key, key in _GAUGES, node, title)

    def memory(self, node: str, every: bool = False) -> Markup:
        """Memory of a node."""
        keys = _MEMORY if every else _MEMORY[:1]
        images = [
            self._linked(f"mem.{key}", key != "gc_total_runs", node, f"{key} of {node}")
            for key in keys
        ]
        return Markup(" ").join(images)

    def counter(self) -> Markup:
        """Messages of all channels, large."""
        return self._linked(
            "topic.*.channel.*.message_count", False, "*", "Messages of all channels", large=True
        )

    def target(self, path: str, is_gauge: bool, node: str = "*", *, scaled: bool = False) -> str:
        """The target for Graphite; ``scaled``: counters per second."""
        host = "*" if node == "*" else node.replace(".", "_").replace(":", "_")
        key = f"{self._prefix.replace('%s', host).rstrip('.')}.{path}"
        wrapped = (self._gauge if is_gauge else self._counter).replace("%s", key)
        summed = f'summarize(sumSeries({wrapped}),"{self._interval_s}sec","avg")'
        if scaled and not is_gauge:
            return f"scale({summed},{1 / self._interval_s:.10g})"
        return summed

    def _linked(
        self, path: str, is_gauge: bool, node: str, name: str, *, large: bool = False
    ) -> Markup:
        if self.interval == "off":
            return Markup("")
        wide = self._render(self.target(path, is_gauge, node, scaled=True), _LARGE, {})
        small = self._render(self.target(path, is_gauge, node), _SMALL, _NO_SIZE)
        width, height = _LARGE if large else _SMALL
        return Markup(
            '<a href="{}" rel="noreferrer"><img src="{}" alt="{}" width="{}" height="{}" '
            'loading="lazy"></a>'
        ).format(wide, wide if large else small, f"Graph: {name}", width, height)

    def _render(self, target: str, size: Sequence[int], more: dict[str, str]) -> str:
        values = {
            "target": target,
            "width": size[0],
            "height": size[1],
            "from": f"-{self.interval}",
            "until": f"-{self._interval_s}sec",
            **more,
        }
        return f"{self._url}/render?{urlencode(values)}"


def _clean(name: str) -> str:
    """A name as statsd writes it."""
    if name == "*":
        return name
    return re.sub(r"[^a-zA-Z0-9\-_.]", "", name.replace(" ", "_").replace("/", "-"))


# Headers of Graphite's response that are passed on.
_HANDED_ON: Final = ("content-type", "cache-control", "expires", "last-modified")


class GraphiteEndpoints:
    """The endpoints that send requests to Graphite."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._upstream = dashboard.upstream
        self._url = dashboard.options.graphite_url.rstrip("/")
        self._interval_s = dashboard.options.statsd_interval_ns / SECOND_NS

    async def rate(self) -> Response:
        """GET /api/graphite: a rate per second."""
        values = query()
        if values.get(b"metric") != b"rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = values.get(b"target", b"").decode(errors="replace")
        if not target:
            raise HttpError(400, "INVALID_ARG_TARGET")
        seconds = int(self._interval_s)
        parameters = {
            "format": "json",
            "from": f"-{2 * seconds}sec",
            "target": target,
            "until": f"-{seconds}sec",
        }
        try:
            answer = await self._upstream.get_foreign(f"{self._url}/render?{urlencode(parameters)}")
            value = _first_value(json_of(answer.body)) if answer.status == 200 else None
        except (UpstreamError, ValueError):
            value = None
        if value is None or not self._interval_s:
            raise HttpError(500, "INTERNAL_ERROR")
        return json_document({"rate": "N/A" if value < 0 else f"{value / self._interval_s:.2f}"})

    async def render(self) -> Response:
        """GET /render: the response of Graphite."""
        parameters = request.query_string.decode("latin-1")
        try:
            answer = await self._upstream.get_foreign(f"{self._url}/render?{parameters}")
        except UpstreamError:
            raise HttpError(502, "UPSTREAM_ERROR: graphite does not answer") from None
        response = Response(answer.body, answer.status)
        del response.headers["Content-Type"]
        for name in _HANDED_ON:
            if name in answer.headers:
                response.headers[name] = answer.headers[name]
        return response


def _first_value(document: Any) -> float | None:
    """The first datapoint; -1 for null, which means no value yet; None: not such a document."""
    try:
        value = document[0]["datapoints"][0][0]
    except (LookupError, TypeError):
        return None
    if value is None:
        return -1.0
    return float(value) if isinstance(value, int | float) else None
