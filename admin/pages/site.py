"""The frame of all pages: templates, links, the user, the message after an action; error pages.

A page is rendered whole, or only its live part if htmx requests it (``HX-Request``).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final
from urllib.parse import quote, urlencode

import trio
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from quart import Response, g, request

from admin.access.cross_site import FIELD
from admin.dashboard import Dashboard, Role
from admin.graphite import COOKIE as GRAPHS_COOKIE
from admin.graphite import INTERVALS, GraphiteImages
from admin.pages import format as shown
from admin.pages.charts import RANGE_DEFAULT, RANGES, SeriesCharts
from admin.pages.listing import SIZES
from admin.pages.shared_queries import RecentResults
from admin.pages.wording import plain_error, plural, visible
from admin.watch.history import Key
from admin.watch.marks import Mark
from admin.watch.poller import ANSWER_WAIT_S, LATE_INTERVALS
from trionsq import NSQ_VERSION

__all__ = ["Site", "arguments", "own_path", "refusal_pages"]

_FLASH: Final = "nsqadmin_flash"
# A cookie has 4 KiB.
_MAX_FLASH_LINES: Final = 8
_MAX_FLASH_LINE: Final = 200
_FLASH_S: Final = 60
_YEAR_S: Final = 365 * 86_400
_MAX_VALUE: Final = 500
# Of the URL of a link about a node.
_PARTS: Final = ("{node}", "{host}", "{port}")


class Site:
    """The frame of all pages of a dashboard.

    Attributes:
        recent: recent results, shared by all viewers.
        live_parts: recent live parts of pages, likewise.
        csrf_mark: stands in shared parts for the field of the viewer's token.
        graphs: links to Graphite; None without --graphite-url.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self.recent = RecentResults()
        self.live_parts = RecentResults()
        self.csrf_mark = Markup("<!-- {} -->").format(secrets.token_hex(16))
        self.graphs = GraphiteImages(dashboard.options) if dashboard.options.graphite_url else None
        self._links = [
            (name.strip(), url)
            for name, _, url in (text.partition("=") for text in dashboard.options.link)
        ]
        self._templates = Environment(
            loader=PackageLoader("admin.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_visible,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(_FILTERS)
        self._templates.globals.update(
            url=self.url,
            static=lambda name: self.url("static", *name.split("/")),
            base=dashboard.base_path,
            csrf=self.csrf,
            may=dashboard.access.allows,
            sizes=SIZES,
            version=NSQ_VERSION,
            graphite_on=bool(dashboard.options.graphite_url),
            graphs=self.graphs,
            intervals=INTERVALS,
            cluster_links=[each for each in self._links if not _is_of_node(each[1])],
        )

    async def compile_templates(self) -> None:
        """Compile all templates in a thread: a large one takes 50 ms, and a page needs several.

        A page that is requested earlier compiles its own.
        """
        for name in await trio.to_thread.run_sync(self._templates.list_templates):
            if name.endswith(".html"):
                await trio.to_thread.run_sync(self._templates.get_template, name)

    def url(self, *parts: str, **query: str) -> str:
        """The path of a page below the base path, with quoted parts."""
        path = "/".join(quote(part, safe="") for part in parts)
        parameters = {name: value for name, value in query.items() if value}
        return self.dashboard.path(f"/{path}") + (f"?{urlencode(parameters)}" if parameters else "")

    def page(
        self,
        template: str,
        title: str,
        here: str = "",
        *,
        live: bool = False,
        **more: Any,
    ) -> Response:
        """A page of the frame.

        Args:
            template: its file.
            title: of the window.
            here: the current entry of the navigation.
            live: whether its live part is fetched again after each poll.
            more: values for the template.
        """
        fragment = "HX-Request" in request.headers
        lines = None if fragment else _flash()
        values = {
            "layout": "fragment.html" if fragment else "base.html",
            "title": title,
            "here": here,
            "live": live,
            "direct": self.dashboard.cluster.is_direct,
            "poll": self._poll_state(),
            **({} if fragment else self._frame(lines)),
            **more,
        }
        page = self._templates.get_template(template).render(values)
        response = _html_response(page)
        response.headers["Cache-Control"] = "no-store"
        if self.graphs is not None and (interval := request.args.get("t")) in INTERVALS:
            response.set_cookie(
                GRAPHS_COOKIE, interval, max_age=_YEAR_S, httponly=True, samesite="Lax"
            )
        if lines is not None:
            response.delete_cookie(_FLASH, path=self.dashboard.base_path or "/")
        return response

    def charts(self, key: Key, marks: Sequence[Mark] = ()) -> SeriesCharts:
        """The charts of a series, for the period that the request selects."""
        history = self.dashboard.poller.history
        names = [name for name, span_s in RANGES.items() if span_s <= 1.5 * history.window_s]
        name = request.args.get("range", "")
        name = name if name in names else RANGE_DEFAULT
        return SeriesCharts(
            history,
            key,
            span_s=RANGES[name],
            now_s=time.time(),
            marks=marks,
            picker=self._range_links(names, name),
        )

    def _range_links(self, names: Sequence[str], selected: str) -> Markup:
        path, _, _ = own_path().partition("?")
        others = [each for each in request.args.items(multi=True) if each[0] != "range"]
        links = [
            Markup('<a href="{}?{}"{}>{}</a>').format(
                path,
                urlencode([*others, ("range", name)]),
                Markup(' aria-current="true"') if name == selected else "",
                name,
            )
            for name in names
        ]
        return Markup(
            '<nav class="chips ranges" aria-label="Period of the charts">{}</nav>'
        ).format(Markup("").join(links))

    def node_links(self, node: str) -> Sequence[tuple[str, str]]:
        """Name and URL of each link of --link that is about a node, for one (``host:port``)."""
        host, _, port = node.rpartition(":")
        links = []
        for name, url in filter(lambda link: _is_of_node(link[1]), self._links):
            for part, value in zip(_PARTS, (node, host, port), strict=True):
                url = url.replace(part, quote(value, safe=""))
            links.append((name, url))
        return links

    def lone(self, template: str, title: str, status: int = 200, **more: Any) -> Response:
        """A page without the frame: sign-in and errors."""
        page = self._templates.get_template(template).render({"title": title, **more})
        response = _html_response(page, status)
        response.headers["Cache-Control"] = "no-store"
        return response

    def done(self, path: str, lines: Iterable[str], kind: str = "good") -> Response:
        """The redirect after a form, to the page at ``path``, which shows ``lines`` once.

        ``kind`` is ``good``, ``warn`` or ``bad``: nothing was done, and the audit says so.
        """
        self.recent.clear()
        self.live_parts.clear()
        lines = [plain_error(line) for line in lines]
        if kind == "bad":
            self.dashboard.access.record_failure(" ".join(lines))
        response = Response(b"", 303)
        response.headers["Location"] = path
        cut = [line[:_MAX_FLASH_LINE] for line in lines][:_MAX_FLASH_LINES]
        value = base64.urlsafe_b64encode(json.dumps([kind, *cut]).encode()).decode()
        response.set_cookie(
            _FLASH,
            value,
            max_age=_FLASH_S,
            path=self.dashboard.base_path or "/",
            httponly=True,
            samesite="Lax",
        )
        return response

    def _poll_state(self) -> dict[str, Any]:
        """The state of the cluster, for the title, the icon and the age of the figures."""
        poller = self.dashboard.poller
        snapshot = poller.snapshot
        problems = snapshot.problems if snapshot else ()
        severities = Counter(map(attrgetter("severity"), problems))
        return {
            "taken_s": snapshot.taken_s if snapshot else None,
            "age_s": poller.age_s,
            "is_late": poller.is_late,
            "late_s": LATE_INTERVALS * poller.interval_s + ANSWER_WAIT_S,
            "alarms": len(problems) - severities["notice"],
            "is_critical": severities["critical"] > 0,
        }

    def _frame(self, lines: Mapping[str, object] | None) -> dict[str, Any]:
        access = self.dashboard.access
        user = access.current
        return {
            "nav": self._places(),
            "self_path": own_path(),
            "page_path": own_path().partition("?")[0],
            "flash": lines,
            "user_name": user.name,
            "user_role": user.role.title if user.name else "",
            "has_sign_in": access.has_sign_in,
        }

    def _places(self) -> Sequence[tuple[str, str, str]]:
        places = [
            ("overview", "Overview", self.url()),
            ("topics", "Topics", self.url("topics")),
            ("clients", "Clients", self.url("clients")),
            ("nodes", "Nodes", self.url("nodes")),
            ("policies", "Policies", self.url("policies")),
            ("counter", "Counter", self.url("counter")),
            ("lookup", "Lookup", self.url("lookup")),
        ]
        if self.may("operator"):
            places.insert(4, ("deadletters", "Dead letters", self.url("deadletters")))
        if self.may("admin"):
            places.append(("audit", "Audit", self.url("audit")))
        return places

    def may(self, role: Role) -> bool:
        """Whether the user has that role."""
        return self.dashboard.access.allows(role)

    def csrf(self) -> Markup:
        """The field of a form with the viewer's token; its mark in a shared live part."""
        if g.get("shares_live_part", False):
            return self.csrf_mark
        token = self.dashboard.access.csrf_token()
        return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, token)


def _is_of_node(url: str) -> bool:
    return any(part in url for part in _PARTS)


def _html_response(page: str, status: int = 200) -> Response:
    """A page. Its Content-Type has no charset, as the original's; the page declares it."""
    response = Response(page.encode(errors="replace"), status)
    response.headers["Content-Type"] = "text/html"
    return response


def arguments() -> dict[str, str]:
    """The query parameters of the request, the first of each name, truncated to 500 characters."""
    return {name: value[:_MAX_VALUE] for name, value in request.args.items()}


def own_path() -> str:
    """The path of the request as it was sent, with the query."""
    raw = request.scope.get("raw_path")
    path = bytes(raw).decode("latin-1") if raw else quote(request.path)
    query = request.query_string.decode("latin-1")
    return f"{path}?{query}" if query else path


def _flash() -> dict[str, object] | None:
    """The message of the last form, from a cookie, which may hold anything."""
    cookie = request.cookies.get(_FLASH)
    if cookie is None:
        return None
    try:
        kind, *lines = json.loads(base64.urlsafe_b64decode(cookie[:4096]))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None
    if kind not in ("good", "warn", "bad") or not all(isinstance(line, str) for line in lines):
        return None
    return {"kind": kind, "lines": lines[:_MAX_FLASH_LINES]}


def _latency(value_ns: float | None) -> str:
    return shown.UNKNOWN if value_ns is None else shown.duration_s(value_ns / 1e9)


def _rate(value: float | None) -> str:
    return shown.UNKNOWN if value is None or math.isnan(value) else shown.rate(value)


def _visible(value: Any) -> Any:
    """Nothing on a page is hidden or reordered by characters that can't be seen."""
    return value if type(value) is not str or value.isprintable() else visible(value)


def _exactly(text: str) -> Markup:
    """``text`` as it is, for a field that a form sends back."""
    return escape(text)


_FILTERS: Final = {
    "age": shown.age,
    "exactly": _exactly,
    "plain": plain_error,
    "plural": plural,
    "number": shown.number,
    "compact": shown.compact,
    "rate": _rate,
    "nbytes": shown.nbytes,
    "duration": shown.duration_s,
    "latency": _latency,
    "when": shown.when,
    "clock": shown.clock,
    "since": lambda at_s: shown.since(at_s, time.time()),
    "iso": shown.iso_time,
}


_BY_CODE: Final[Mapping[str, tuple[str, str]]] = {
    "CROSS_SITE_REQUEST": (
        "Refused",
        "The request came from another site. If you sent it, open the page here and try again.",
    ),
    "INVALID_CSRF_TOKEN": (
        "The form is out of date",
        "Nothing was done: you have signed in or out since the form was loaded. Go back, reload "
        "the page and send the form again.",
    ),
}
_BY_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    403: ("Not allowed", "Your role does not allow this."),
    404: ("Not found", "This page does not exist."),
    405: ("Not found", "This page does not exist."),
}
_OTHER: Final = ("Something went wrong", "The request was invalid, or it failed.")
_PROGRAMS: Final = ("/api/", "/config/", "/debug/", "/events", "/metrics", "/render", "/static/")


def refusal_pages(dashboard: Dashboard) -> Callable[[Response], Awaitable[Response]]:
    """A hook that turns JSON errors of pages into pages, if the request accepts HTML."""
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
