"""What browsers are told not to do with the pages: strict, the same for all answers."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from trionsq.hostport import bracket_host, format_address

__all__ = ["security_headers"]

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
        graphite_url: whence graphs come as images; "" if from here or not at all.
        private: pages are for those who have signed in: browsers are not to keep them.
    """
    images = " ".join(["img-src 'self' data:", *_origin(graphite_url)])
    return {
        "Content-Security-Policy": "; ".join([*_POLICY, images]),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        # Not no-referrer: with that browsers hide from us where a form comes from.
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
    # Of a name that is not plain nothing may get into the header.
    plain = host.replace("-", "").replace(".", "").replace(":", "").replace("_", "")
    if parts.scheme not in ("http", "https") or not plain.isascii() or not plain.isalnum():
        return []
    address = format_address(host, port) if port else bracket_host(host)
    return [f"{parts.scheme}://{address}"]
