"""The live parts of pages: rendered once for all who watch the same page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from quart import Response, g, request
from werkzeug.datastructures import Headers

from admin.graphite import COOKIE as GRAPHS_COOKIE
from admin.pages.favourites import favourites
from admin.pages.site import Site, own_path
from trionsq.web.app import Endpoint

__all__ = ["shared_live_parts"]

_Handler = Callable[..., Awaitable[Response]]


def shared_live_parts(site: Site, pages: Iterable[Endpoint]) -> Iterable[Endpoint]:
    """The endpoints of pages, whose live parts viewers with the same role share until the next
    poll.

    A part lives no longer than the results of nodes that it shows. The token of a form is each
    viewer's own.
    """
    for method, path, handler in pages:
        yield method, path, _shared(site, handler) if method == "GET" else handler


def _shared(site: Site, handler: _Handler) -> _Handler:
    poller = site.dashboard.poller

    async def answer(**arguments: str) -> Response:
        if "HX-Request" not in request.headers:
            return await handler(**arguments)

        async def render() -> tuple[str, int, Headers]:
            g.shares_live_part = True
            part = await handler(**arguments)
            # Hooks change the headers of each answer.
            return await part.get_data(as_text=True), part.status_code, part.headers.copy()

        key = (
            own_path(),
            site.dashboard.access.current.role,
            request.cookies.get(GRAPHS_COOKIE),
            tuple(favourites()),
            poller.snapshot.sequence if poller.snapshot is not None else 0,
        )
        body, status, headers = await site.live_parts.get(key, render)
        g.shares_live_part = False
        return Response(body.replace(site.csrf_mark, site.csrf()), status, headers.copy())

    return answer
