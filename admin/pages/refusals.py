"""Refusals as pages, for who looks with a browser; programs get JSON, as the original answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from quart import Response, request

from admin.dashboard import Dashboard
from admin.pages.site import Site

__all__ = ["refusal_pages"]

_BY_CODE: Final[Mapping[str, tuple[str, str]]] = {
    "CROSS_SITE_REQUEST": (
        "Refused",
        "The request came from another site. If it was you, go to the page and try again there.",
    ),
    "INVALID_CSRF_TOKEN": (
        "The form is out of date",
        "Nothing was done: since the form was made you have signed in anew, or out. Go back, "
        "load the page again and send it once more.",
    ),
}
_BY_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    403: ("Not allowed", "Your role does not allow this."),
    404: ("Not found", "There is no such page."),
    405: ("Not found", "There is no such page."),
}
_OTHER: Final = ("Something went wrong", "The request was not understood, or failed.")
_PROGRAMS: Final = ("/api/", "/config/", "/debug/", "/events", "/metrics", "/render", "/static/")


def refusal_pages(dashboard: Dashboard) -> Callable[[Response], Awaitable[Response]]:
    """A hook that gives refusals of pages a text, if the request asks for HTML."""
    site = Site(dashboard)

    async def shown(response: Response) -> Response:
        path = request.path.removeprefix(dashboard.base_path)
        if (
            response.status_code < 400
            or response.mimetype != "application/json"
            or "text/html" not in request.headers.get("Accept", "")
            or "HX-Request" in request.headers
            or path.startswith(_PROGRAMS)
        ):
            return response
        code = json.loads(await response.get_data()).get("message", "")
        title, text = _BY_CODE.get(code) or _BY_STATUS.get(response.status_code, _OTHER)
        page = site.lone("error.html", title, response.status_code, text=text)
        for name in ("Allow", "Retry-After", "WWW-Authenticate"):
            if name in response.headers:
                page.headers[name] = response.headers[name]
        return page

    return shown
