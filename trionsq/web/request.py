"""The request that is being answered: its parameters and its body."""

from __future__ import annotations

import logging
import math

import trio
from quart import request

from trionsq.web.framework import BoundedBody
from trionsq.web.protocol import HttpError, Query, parse_query

__all__ = ["chosen", "next_piece", "number", "query", "read_body", "wants_json"]

log = logging.getLogger("trionsq")


def query() -> Query:
    """Return the parameters of the current request; raises as `parse_query`."""
    return parse_query(request.query_string)


async def next_piece() -> bytes:
    """Wait for the next piece of the request's body; ``b""`` at its end.

    Raises:
        HttpError: INTERNAL_ERROR if the sender stalls or is too slow.
        OverflowError: the body is larger than any endpoint allows; the rest was discarded.
    """
    body = request.body
    assert isinstance(body, BoundedBody)
    try:
        piece = await body.next_piece()
    except trio.TooSlowError:
        log.info(
            "HTTP: %s %s - request body too slow, gave up after %d bytes",
            request.method,
            request.path,
            body.received_bytes,
        )
        raise HttpError(500, "INTERNAL_ERROR") from None
    if not piece and body.overflowed:
        raise OverflowError("the body is larger than any may be")
    return piece


async def read_body(max_bytes: int) -> bytes | None:
    """Read the whole body; None as soon as it is larger than ``max_bytes``.

    Raises:
        HttpError: INTERNAL_ERROR if the sender stalls or is too slow.
    """
    body = bytearray()
    try:
        while piece := await next_piece():
            body += piece
            if len(body) > max_bytes:
                return None
    except OverflowError:
        return None
    return bytes(body)


# Parameters


def number(values: Query, name: str, default: float, low: float, high: float) -> float:
    """Return a parameter between ``low`` and ``high``.

    Raises:
        HttpError: INVALID_ARG_ and its name.
    """
    text = values.get(name.encode())
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def chosen(values: Query, name: str, *choices: str) -> str:
    """Return a parameter that is one of ``choices``; the first is the default.

    Raises:
        HttpError: INVALID_ARG_ and its name.
    """
    value = values.get(name.encode(), choices[0].encode()).decode(errors="replace")
    if value not in choices:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def wants_json(values: Query) -> bool:
    """Whether the parameter ``format`` is json, not text.

    Raises:
        HttpError: INVALID_ARG_FORMAT.
    """
    return chosen(values, "format", "text", "json") == "json"
