"""The responses of the JSON API: success with warnings, errors, and JSON of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import msgspec
from quart import Response

from admin.cluster.queries import AllFailed
from admin.cluster.turns import compute
from admin.dashboard import Dashboard, Role
from trionsq.web.protocol import HttpError, json_bytes
from trionsq.web.responses import encoded_document

__all__ = ["encode_json", "long_response", "require_role", "response", "upstream_errors"]

_PIECE_ITEMS: Final = 200

# They occur in strings only. NSQ escapes them, so that JSON is safe inside HTML.
_ESCAPED = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def require_role(dashboard: Dashboard, role: Role) -> None:
    """Raise HttpError FORBIDDEN unless the sender of the request has that role."""
    if not dashboard.access.allows(role):
        raise HttpError(403, "FORBIDDEN")


@contextmanager
def upstream_errors() -> Iterator[None]:
    """Turn AllFailed inside the context into HttpError UPSTREAM_ERROR."""
    try:
        yield
    except AllFailed as failure:
        raise HttpError(502, f"UPSTREAM_ERROR: {failure}") from None


def response(warnings: Iterable[str], **members: Any) -> Response:
    """A success: its members, then ``message``, which has the warnings."""
    return encoded_document(encode_json({**members, "message": _message(warnings)}))


async def long_response(
    warnings: Iterable[str], rows: int, members: Callable[[], Mapping[str, Any]]
) -> Response:
    """As `response`; ``members`` goes through so many ``rows``, in a thread if they are many."""
    message = _message(warnings)
    return encoded_document(
        await compute(rows, lambda: encode_json({**members(), "message": message}))
    )


def _message(warnings: Iterable[str]) -> str:
    text = "\n".join(warnings)
    return f"WARNING: {text}" if text else ""


def encode_json(value: Mapping[str, object]) -> bytes:
    """``value`` as JSON. Long members are encoded in pieces: other threads may run in between."""
    members = [_encoded(key) + b":" + b"".join(_pieces(member)) for key, member in value.items()]
    return b"{%b}" % b",".join(members)


def _pieces(value: object) -> Iterator[bytes]:
    if isinstance(value, list) and len(value) > _PIECE_ITEMS:
        yield b"["
        for first in range(0, len(value), _PIECE_ITEMS):
            yield (b"," if first else b"") + _encoded(value[first : first + _PIECE_ITEMS])[1:-1]
        yield b"]"
    elif isinstance(value, dict) and len(value) > _PIECE_ITEMS:
        yield b"{"
        items = iter(value.items())
        comma = b""
        while piece := dict(islice(items, _PIECE_ITEMS)):
            yield comma + _encoded(piece)[1:-1]
            comma = b","
        yield b"}"
    else:
        yield _encoded(value)


def _encoded(value: object) -> bytes:
    try:
        document = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json_bytes(value)  # it accepts lone surrogates
    for raw, escaped in _ESCAPED:
        document = document.replace(raw, escaped)
    return document
