"""Graphite: a rate of it, and its images for browsers that can't reach it.

Spec: nsqadmin, sections 2 and 3.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from quart import Response, request

from admin.dashboard import Dashboard
from admin.upstream import UpstreamError, json_of
from trionsq.durations import SECOND_NS
from trionsq.web.protocol import HttpError
from trionsq.web.request import query
from trionsq.web.responses import json_document

__all__ = ["Graphite"]

# Of an answer of Graphite, what is handed on.
_HANDED_ON: Final = ("content-type", "cache-control", "expires", "last-modified")


class Graphite:
    """The endpoints that ask Graphite."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._upstream = dashboard.upstream
        self._url = dashboard.options.graphite_url.rstrip("/")
        self._interval_s = dashboard.options.statsd_interval_ns / SECOND_NS

    async def rate(self) -> Response:
        """GET /api/graphite: how many a second."""
        values = query()
        if values.get(b"metric") != b"rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = values.get(b"target", b"").decode(errors="replace")
        if not target:
            raise HttpError(400, "INVALID_ARG_TARGET")
        seconds = int(self._interval_s)
        asked = {
            "format": "json",
            "from": f"-{2 * seconds}sec",
            "target": target,
            "until": f"-{seconds}sec",
        }
        try:
            answer = await self._upstream.get_foreign(f"{self._url}/render?{urlencode(asked)}")
            value = _first_value(json_of(answer.body)) if answer.status == 200 else None
        except (UpstreamError, ValueError):
            value = None
        if value is None or not self._interval_s:
            raise HttpError(500, "INTERNAL_ERROR")
        return json_document({"rate": "N/A" if value < 0 else f"{value / self._interval_s:.2f}"})

    async def render(self) -> Response:
        """GET /render: what Graphite answers there."""
        asked = request.query_string.decode("latin-1")
        try:
            answer = await self._upstream.get_foreign(f"{self._url}/render?{asked}")
        except UpstreamError:
            raise HttpError(502, "UPSTREAM_ERROR: graphite does not answer") from None
        response = Response(answer.body, answer.status)
        del response.headers["Content-Type"]
        for name in _HANDED_ON:
            if name in answer.headers:
                response.headers[name] = answer.headers[name]
        return response


def _first_value(document: Any) -> float | None:
    """The first datapoint's; one that is null counts as none yet: -1. None: that is no answer."""
    try:
        value = document[0]["datapoints"][0][0]
    except (LookupError, TypeError):
        return None
    if value is None:
        return -1.0
    return float(value) if isinstance(value, int | float) else None
