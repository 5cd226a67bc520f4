"""Who may ask for the debug pages (--debug-from).

What decides is the address of the connection, not what a proxy says of others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final

from quart import Response, request

from trionsq.debug.exclusive import UnderWayError
from trionsq.web.addresses import is_loopback
from trionsq.web.app import Endpoint
from trionsq.web.errors import HttpError

__all__ = ["guarded", "is_loopback"]

_REFUSED: Final = "/debug is not open to this address, see --debug-from"


def guarded(endpoint: Endpoint, whom: Callable[[], str]) -> Endpoint:
    """``endpoint``, but for those only who may ask.

    ``whom`` is asked at each request: ``loopback``, ``any`` or ``none``. Others are answered 403;
    409 tells that somebody else has it do its work already.
    """
    method, path, function = endpoint

    @wraps(function)
    async def answer() -> Response:
        if not _may_ask(whom()):
            raise HttpError(403, _REFUSED)
        try:
            return await function()
        except UnderWayError as error:
            raise HttpError(409, f"{str(error).upper()}_UNDER_WAY") from None

    return method, path, answer


def _may_ask(whom: str) -> bool:
    # Unix sockets have no address.
    peer = request.scope.get("client")
    return whom == "any" or (whom == "loopback" and (peer is None or is_loopback(peer[0])))
