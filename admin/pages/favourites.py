"""The favourites of a browser: names of topics, and ``topic/channel``, in a cookie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

from quart import Response, request

from trionsq.wire.names import is_valid_name

__all__ = ["MAX_FAVOURITES", "favourites", "keep_favourite"]

MAX_FAVOURITES: Final = 25
"""The oldest goes first; a cookie has 4 KiB, and a name up to 64 characters."""

_COOKIE: Final = "nsqadmin_favourites"
_YEAR_S: Final = 365 * 86_400


def favourites() -> Sequence[str]:
    """The favourites of the request, the oldest first; the cookie may hold anything."""
    names = unquote(request.cookies.get(_COOKIE, "")[:4096]).split("|")
    return [name for name in names if _is_name(name)][-MAX_FAVOURITES:]


def keep_favourite(response: Response, name: str, path: str, *, on: bool) -> None:
    """Let the browser remember or forget a favourite; ``path`` is the dashboard's."""
    names = [each for each in favourites() if each != name]
    if on and _is_name(name):
        names = [*names, name][-MAX_FAVOURITES:]
    response.set_cookie(
        _COOKIE,
        quote("|".join(names), safe="/"),
        max_age=_YEAR_S,
        path=path or "/",
        httponly=True,
        samesite="Lax",
    )


def _is_name(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= 2 and all(is_valid_name(part.encode(errors="replace")) for part in parts)
