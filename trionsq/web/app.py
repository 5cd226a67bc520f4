"""Makes an application of endpoints; the rules that hold for every path.

Spec: nsqd-http, section 1.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Awaitable, Callable, Iterable
from typing import Final
from urllib.parse import quote

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import RequestRedirect, Rule

from trionsq.web import responses
from trionsq.web.framework import BoundedApp
from trionsq.web.protocol import HttpError
from trionsq.web.sites import SiteGuard, is_loopback

__all__ = ["Endpoint", "create_app", "right_path"]

log = logging.getLogger("trionsq")

Endpoint = tuple[str, str, Callable[..., Awaitable[Response]]]
"""Method, path and the function that answers."""

# Added to each path: "OPTIONS, POST".
_OPTIONS: Final = "OPTIONS"


def create_app(
    endpoints: Iterable[Endpoint],
    *,
    max_body_bytes: int = 0,
    check: Callable[[str], None] = lambda method: None,
    before: Callable[[str], Response | None] = lambda path: None,
    sites: SiteGuard | None = None,
    authorize: Callable[[str], None] = lambda path: None,
) -> QuartTrio:
    """Return an application that answers at ``endpoints``.

    Args:
        endpoints: all endpoints.
        max_body_bytes: the longest body that any of them reads.
        check: gets the method of each request; raises HttpError to refuse it.
        before: gets the path of each request, also of unknown ones; its response, if any, is sent
            instead of any other.
        sites: refuses requests of other sites' pages, at every path.
        authorize: gets the path of each endpoint that is asked for; raises HttpError to refuse.
    """
    app = BoundedApp(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes
    # `trionsq.web.framework` has time limits for both directions.
    app.config["BODY_TIMEOUT"] = app.config["RESPONSE_TIMEOUT"] = None
    app.url_map.merge_slashes = False
    for method, path, function in endpoints:
        app.add_url_rule(
            path,
            f"{method} {path}",
            function,
            methods=[method],
            provide_automatic_options=False,
            strict_slashes=True,
        )
    if sites is not None:
        _guard(app, sites)
    _add_common_rules(app, check, before, authorize)
    return app


def _guard(app: QuartTrio, sites: SiteGuard) -> None:
    async def refuse() -> Response | None:
        scope = request.scope
        server = scope.get("server")
        reason = sites.refusal(
            request.method,
            # Without the one that `BoundedApp` has put there for quart.
            [pair for pair in scope["headers"] if pair[0] != b"host"],
            to_loopback=server is not None and is_loopback(server[0]),
        )
        if reason is None:
            return None
        log.debug("HTTP: %s %s - %s", request.method, request.path, reason)
        return responses.error(403, reason)

    async def allow(response: Response) -> Response:
        response.headers.update(sites.cors(request.scope["headers"]))
        return response

    app.before_request(refuse)
    app.after_request(allow)


def _add_common_rules(
    app: QuartTrio,
    check: Callable[[str], None],
    before: Callable[[str], Response | None],
    authorize: Callable[[str], None],
) -> None:
    # All are coroutines because quart would run plain functions in a thread.
    @app.before_request
    async def method_and_path() -> Response | None:
        if (response := before(request.path)) is not None:
            return response
        routing_error = request.routing_exception
        # werkzeug ignores leading slashes, so it may have found an endpoint nevertheless.
        is_unknown = isinstance(routing_error, NotFound | RequestRedirect)
        if is_unknown or request.scope["path"].startswith("//"):
            return _other_path(app)
        if isinstance(routing_error, MethodNotAllowed):
            return _other_method(routing_error.valid_methods or ())
        if request.method == "HEAD" and request.url_rule is not None:
            # werkzeug adds HEAD to every GET endpoint.
            return _other_method(_methods(app.url_map.iter_rules(), request.url_rule.rule))
        if request.url_rule is not None:
            authorize(request.url_rule.rule)
        check(request.method)
        return None

    @app.errorhandler(HttpError)
    async def refused(error: HttpError) -> Response:
        log.debug("HTTP: %s %s - %s", request.method, request.path, error)
        response = responses.error(error.status, error.code)
        response.headers.update(error.headers)
        return response

    @app.errorhandler(HTTPException)
    async def not_understood(error: HTTPException) -> Response:
        return responses.error(error.code or 400, "INVALID_REQUEST")

    @app.errorhandler(Exception)
    async def failed(error: Exception) -> Response:
        log.error("HTTP: %s %s failed", request.method, request.path, exc_info=error)
        return responses.error(500, "INTERNAL_ERROR")


def _other_method(methods: Iterable[str]) -> Response:
    allow = ", ".join(sorted({_OPTIONS, *methods} - {"HEAD"}))
    if request.method == _OPTIONS:
        return responses.options(allow)
    return responses.error(405, "METHOD_NOT_ALLOWED", allow)


def _methods(rules: Iterable[Rule], path: str) -> Iterable[str]:
    return [method for rule in rules if rule.rule == path for method in rule.methods or ()]


def _other_path(app: QuartTrio) -> Response:
    right = right_path(request.path, request.method, app.url_map.iter_rules())
    if right is None:
        return responses.error(404, "NOT_FOUND")
    query = request.query_string.decode("ascii", "replace")
    return responses.redirect(request.method, f"{right}?{query}" if query else right)


def right_path(path: str, method: str, rules: Iterable[Rule]) -> str | None:
    """Return the endpoint's path that ``path`` misspells in letter case, slashes or dots.

    None if ``method`` has no such path.
    """
    parts = posixpath.normpath(path).strip("/").split("/")
    for rule in rules:
        if method in (rule.methods or ()) and method != "HEAD":
            right = _respelled(parts, rule.rule)
            if right is not None:
                return right
    return None


def _respelled(parts: list[str], rule: str) -> str | None:
    """Return a path in the spelling of ``rule``, with its ``<parameter>`` as in ``parts``.

    None if it is another path.
    """
    rule_parts = rule.strip("/").split("/")
    if len(parts) != len(rule_parts):
        return None
    spelled = []
    for part, right in zip(parts, rule_parts, strict=True):
        if right.startswith("<"):
            spelled.append(quote(part))
        elif part.lower() == right.lower():
            spelled.append(right)
        else:
            return None
    return "/" + "/".join(spelled) + ("/" if rule.endswith("/") else "")
