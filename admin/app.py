"""The application: every path of the dashboard, below the base path, and the hooks of all of them.

Spec: nsqadmin, sections 1 and 2.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable
from typing import Final

import trio
from quart import Response, request
from quart_trio import QuartTrio

from admin import api, assets, metrics, pages
from admin.access.modes import Mode
from admin.dashboard import Dashboard
from admin.pages.site import refusal_pages
from admin.watch import events
from trionsq.web.app import Endpoint, create_app
from trionsq.web.diagnostics import Health, Pprof, guarded
from trionsq.web.gate import Gate
from trionsq.web.responses import plain

__all__ = ["MAX_BODY_BYTES", "create_admin_app", "gate_of", "wanted_coding"]

MAX_BODY_BYTES: Final = 1024 * 1024
"""The longest request body that is read."""

# Shorter responses are compressed at once, longer ones in a thread.
_INLINE_BYTES: Final = 64 * 1024
_LEVEL: Final = 6


def gate_of(dashboard: Dashboard) -> Gate:
    """The gate before the HTTP of ``dashboard``.

    `admin.access` checks where changes come from. The Host header is checked only where users
    need not say who they are.
    """
    is_open = dashboard.access.mode in (Mode.NONE, Mode.LOCAL)
    return Gate.of(dashboard.options, checks_hosts=is_open, checks_writes=False)


def create_admin_app(dashboard: Dashboard, gate: Gate | None = None) -> QuartTrio:
    """The application of ``dashboard``, for those whom ``gate`` lets in."""
    gate = gate_of(dashboard) if gate is None else gate
    endpoints = [
        (method, dashboard.path(path), function) for method, path, function in _endpoints(dashboard)
    ]
    app = create_app(endpoints, max_body_bytes=MAX_BODY_BYTES, sites=gate.sites)
    # Before all other hooks: nothing is done for a request that is refused.
    dashboard.access.install(app)
    # The hook that is registered first sees the response last.
    app.after_request(_compress)
    app.after_request(refusal_pages(dashboard))
    return app


def _endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    yield "GET", "/ping", _ping
    yield from api.endpoints(dashboard)
    yield from assets.endpoints(dashboard.options)
    yield from metrics.endpoints(dashboard)
    yield from pages.endpoints(dashboard)
    yield from events.endpoints(dashboard.poller, dashboard.access.standing)
    # nsqadmin keeps nothing, and a cluster that is down is what it is there to show.
    yield from Health(lambda: None).endpoints()
    for page in Pprof("/debug/pprof").endpoints():
        yield guarded(page, lambda: dashboard.options.debug_from)


async def _ping() -> Response:
    response = plain(200, "OK")
    if wanted_coding(request.headers.get("Accept-Encoding", "")):
        # The original guesses the type from the bytes, and can't once they are compressed.
        del response.headers["Content-Type"]
    return response


def wanted_coding(header: str) -> str:
    """The first of gzip and deflate in Accept-Encoding, "" if there is none; q=0 excludes one."""
    for item in header.split(","):
        name, _, parameters = item.partition(";")
        key, _, value = parameters.partition("=")
        refused = key.strip().lower() == "q" and not value.strip().strip("0.")
        if name.strip().lower() in _CODINGS and not refused:
            return name.strip().lower()
    return ""


async def _compress(response: Response) -> Response:
    """Compress the response as the request allows; streams stay as they are."""
    coding = wanted_coding(request.headers.get("Accept-Encoding", ""))
    is_stream = response.mimetype == "text/event-stream" or response.timeout is None
    if not coding or is_stream or "Content-Encoding" in response.headers:
        return response
    body = await response.get_data(as_text=False)
    compress = _CODINGS[coding]
    if len(body) <= _INLINE_BYTES:
        body = compress(body)
    else:
        body = await trio.to_thread.run_sync(compress, body)
    response.set_data(body)
    response.headers["Content-Encoding"] = coding
    response.vary.add("Accept-Encoding")
    return response


def _deflated(body: bytes) -> bytes:
    # Without zlib's header, as the original does it and browsers take it.
    compressor = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


def _gzipped(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)


_CODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {"gzip": _gzipped, "deflate": _deflated}
