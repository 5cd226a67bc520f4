"""What the cookie of a session is called: never like that of another dashboard.

Browsers keep cookies by host. They do not tell ports apart, and one that came by HTTPS is not
replaced by HTTP: under one name, signing in here would be signing out there, or not work at all.
"""

from __future__ import annotations

from typing import Final

from quart import request

__all__ = ["COOKIE", "came_by_https", "cookie_name"]

COOKIE: Final = "nsqadmin_session"
_SCHEMES: Final = ("X-Scheme", "X-Forwarded-Proto")


def cookie_name(port: int) -> str:
    """The name for the request that is being answered.

    It has the port where we listen, the one that the browser sees if that is another (a tunnel, a
    proxy), and whether it sees HTTPS. ``port`` below 1: none.
    """
    host = request.headers.get(":authority", "")
    seen = host.rpartition(":")[2] if not host.endswith("]") else ""
    parts = [COOKIE]
    if port > 0:
        parts.append(str(port))
    if seen.isascii() and seen.isdigit() and ":" in host and len(seen) <= 5 and seen != str(port):
        parts.append(seen)
    if came_by_https():
        parts.append("tls")
    return "_".join(parts)


def came_by_https() -> bool:
    """Whether the browser sees HTTPS. Believed of everybody: who lies gets a cookie sent less."""
    given = (request.scope.get("scheme"), *(request.headers.get(name) for name in _SCHEMES))
    return "https" in given
