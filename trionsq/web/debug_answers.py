"""Answers of the debug pages: text, JSON, HTML and files, and the parameters that choose them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from quart import Response

from trionsq.web.errors import HttpError
from trionsq.web.query import Query

__all__ = ["as_text", "attachment", "chosen", "html", "number", "wants_json"]


def html(body: str) -> Response:
    """A page for a browser."""
    return Response(body.encode(), 200, content_type="text/html; charset=utf-8")


def attachment(body: bytes, filename: str, content_type: str) -> Response:
    """A file to be saved."""
    response = Response(body, 200, content_type=content_type)
    response.headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    return response


def number(values: Query, name: str, default: float, low: float, high: float) -> float:
    """A parameter between ``low`` and ``high``.

    Raises:
        HttpError: INVALID_ARG_ and its name.
    """
    given = values.get(name.encode())
    try:
        value = default if given is None else float(given)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def chosen(values: Query, name: str, *choices: str) -> str:
    """A parameter that is one of ``choices``; the first is the default.

    Raises:
        HttpError: INVALID_ARG_ and its name.
    """
    value = values.get(name.encode(), choices[0].encode()).decode(errors="replace")
    if value not in choices:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def wants_json(values: Query) -> bool:
    """The parameter ``format``: text or json.

    Raises:
        HttpError: INVALID_ARG_FORMAT.
    """
    return chosen(values, "format", "text", "json") == "json"


def as_text(document: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Lines that show a JSON document to people."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from as_text(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{indent}{key}:"
            for item in value:
                shown = "  ".join(f"{name}={_short(each)}" for name, each in item.items())
                yield f"{indent}  {shown}"
        else:
            yield f"{indent}{key}: {_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(map(_short, value)) or "none"
    return "-" if value is None else str(value)
