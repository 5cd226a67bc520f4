"""Who may ask for what over HTTP, where a file of users says so.

The user is found by ``Authorization: Bearer TOKEN``, by Basic with the token as the password, or by
the client certificate.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from quart import request

from trionsq.daemon.acl import AclUser, Authenticator, TooManyAttempts
from trionsq.logtext import printable
from trionsq.web.protocol import HttpError, Query, parse_query

__all__ = ["HttpAccess", "Rule", "client_certificate"]

log = logging.getLogger("trionsq")

Rule = Callable[[AclUser, str, str, Query], bool]
"""Whether a user may use a route: method, its path in the table of routes, and the parameters."""

OPEN: Final = frozenset({"/ping", "/live", "/ready"})
"""Health checks have no token."""

client_certificate: ContextVar[str] = ContextVar("client_certificate", default="")
"""Common name of the client's certificate, in the tasks of its connection."""

_MAX_LOGGED: Final = 500


class HttpAccess:
    """The check of each request of a daemon."""

    def __init__(self, authenticator: Authenticator, rule: Rule) -> None:
        self._authenticator = authenticator
        self._rule = rule

    def check(self, path: str) -> None:
        """Check the current request, for the route ``path``; log changes with their user.

        Raises:
            HttpError: UNAUTHORIZED, FORBIDDEN or TOO_MANY_ATTEMPTS.
        """
        if path in OPEN:
            return
        peer = request.scope.get("client")
        host = "" if peer is None else peer[0]
        try:
            name, token = _credentials(request.headers.get("Authorization", ""))
            user = self._authenticator.authenticate(host, token, client_certificate.get())
        except TooManyAttempts as error:
            wait = {"Retry-After": str(math.ceil(error.wait_s))}
            raise HttpError(429, "TOO_MANY_ATTEMPTS", wait) from None
        if user is None or (name and name != user.name):
            log.info("HTTP: %s %s of %s - no known user", request.method, path, host or "@")
            raise HttpError(401, "UNAUTHORIZED", {"WWW-Authenticate": 'Bearer realm="nsq"'})
        if not self._rule(user, request.method, path, parse_query(request.query_string)):
            log.info("HTTP: %s %s of %s - refused to %s", request.method, path, host, user.name)
            raise HttpError(403, "FORBIDDEN")
        if request.method != "GET" and not _publishes(path):
            asked = printable(request.full_path.rstrip("?"))[:_MAX_LOGGED]
            log.info("HTTP: %s %s by %s from %s", request.method, asked, user.name, host or "@")


def _publishes(path: str) -> bool:
    return path in ("/pub", "/mpub", "/put", "/mput")


def _credentials(header: str) -> tuple[str, bytes | None]:
    """Return the name of the user, if Basic gives it, and the token."""
    kind, _, value = header.strip().partition(" ")
    value = value.strip()
    if kind.lower() == "bearer":
        return "", value.encode()
    if kind.lower() != "basic":
        return "", None
    try:
        name, _, token = base64.b64decode(value, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return "", b"?"  # a wrong one
    return name.decode(errors="replace"), token
