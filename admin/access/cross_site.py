"""Protection from other sites: the origin of a request, CSRF tokens, and security headers.

Browsers send the origin of a request, and our pages carry a token that other sites can't read. The
token is derived from a secret of this process and the session or user: nothing is stored.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import trio
from quart import request
from werkzeug.datastructures import Headers, MultiDict

from trionsq.hostport import bracket_host, format_address
from trionsq.web.limits import STALL_S
from trionsq.web.protocol import HttpError

__all__ = [
    "FIELD",
    "HEADER",
    "SAFE_METHODS",
    "Tokens",
    "form",
    "request_token",
    "same_origin",
    "security_headers",
]

FIELD: Final = "csrf_token"
HEADER: Final = "X-CSRF-Token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")


class Tokens:
    """Makes and checks tokens. They are valid until the process or their session ends."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def make_token(self, whom: str) -> str:
        """The token for ``whom``, a session or a user."""
        return hmac.digest(self._secret, whom.encode(errors="replace"), "sha256").hex()

    def check_token(self, token: str, whom: str) -> bool:
        """Whether ``token`` is the token for ``whom``; compares in constant time."""
        return hmac.compare_digest(token.encode(errors="replace"), self.make_token(whom).encode())


def same_origin(headers: Headers, hosts: tuple[str, ...]) -> bool:
    """Whether a browser sent the request from a page of ours. True for programs.

    Args:
        headers: of the request.
        hosts: our names, with the port: the Host header and what a proxy forwards.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("Origin")
    if origin is None:
        return True
    try:
        origin_host = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(origin_host) and origin_host in [host.lower() for host in hosts]


async def form() -> MultiDict[str, str]:
    """The fields of the request's form.

    Raises:
        HttpError: INVALID_BODY if the sender stalls.
    """
    with trio.move_on_after(STALL_S):
        return await request.form
    raise HttpError(400, "INVALID_BODY")


async def request_token() -> str:
    """The token of the request, from a header or its form; "" if there is none."""
    token = request.headers.get(HEADER)
    if token is None and request.mimetype in _FORMS:
        token = (await form()).get(FIELD)
    return token or ""


_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
)
_NOT_USED = ("camera", "geolocation", "microphone", "payment", "usb")


def security_headers(graphite_url: str, *, private: bool) -> Mapping[str, str]:
    """The headers of every answer.

    Args:
        graphite_url: where browsers load graphs from; "" if from here or not at all.
        private: whether pages require a sign-in, so that browsers must not store them.
    """
    images = " ".join(["img-src 'self' data:", *_origin(graphite_url)])
    return {
        "Content-Security-Policy": "; ".join([*_POLICY, images]),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        # Not no-referrer: browsers would hide the origin of a form from us.
        "Referrer-Policy": "same-origin",
        "Permissions-Policy": ", ".join(f"{name}=()" for name in _NOT_USED),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        **({"Cache-Control": "no-store"} if private else {}),
    }


def _origin(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return []
    # A host with other characters must not get into the header.
    plain = host.replace("-", "").replace(".", "").replace(":", "").replace("_", "")
    if parts.scheme not in ("http", "https") or not plain.isascii() or not plain.isalnum():
        return []
    address = format_address(host, port) if port else bracket_host(host)
    return [f"{parts.scheme}://{address}"]
