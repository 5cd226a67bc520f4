"""What a browser shows. Spec: nsqadmin, section 6."""

from __future__ import annotations

from collections.abc import Iterable

from quart import Response

from admin.answers import html
from admin.dashboard import Dashboard
from trionsq.web.app import Endpoint

__all__ = ["endpoints"]

_PATHS = (
    "/",
    "/topics",
    "/topics/<topic>",
    "/topics/<topic>/<channel>",
    "/nodes",
    "/nodes/<node>",
    "/counter",
    "/lookup",
)


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """The pages."""

    async def shell(**names: str) -> Response:
        return html("<!doctype html><meta charset=utf-8><title>nsqadmin</title>")

    return [("GET", path, shell) for path in _PATHS]
