"""/config/drain: the drain of a node begins, is watched, and is cancelled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from quart import Response

from trionsq import durations
from trionsq.broker.broker import Broker
from trionsq.web.protocol import HttpError
from trionsq.web.request import read_body
from trionsq.web.responses import json_document

__all__ = ["Draining"]

_MAX_BODY_BYTES: Final = 1024


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT as an object."""

    limit: str | None = None
    exit: bool = True


class Draining:
    """The endpoints."""

    def __init__(self, broker: Broker) -> None:
        self._drain = broker.drain

    async def get(self) -> Response:
        """GET /config/drain: how far it is."""
        return json_document(self._document())

    async def put(self) -> Response:
        """PUT /config/drain: true begins it, false cancels it, an object has the details."""
        body = await read_body(_MAX_BODY_BYTES)
        try:
            wish = msgspec.json.decode(body or b"", type=bool | _Request)
            limit_ns = None
            if isinstance(wish, _Request) and wish.limit is not None:
                limit_ns = durations.parse(wish.limit)
                if limit_ns < 0:
                    raise ValueError("negative")
        except (ValueError, RecursionError):
            raise HttpError(400, "INVALID_VALUE") from None
        if wish is False:
            self._drain.cancel()
        elif wish is True:
            self._drain.begin()
        else:
            self._drain.begin(limit_ns, exits=wish.exit)
        return await self.get()

    def _document(self) -> Mapping[str, object]:
        drain = self._drain
        if not drain.is_on:
            return {"state": drain.phase.value}
        return {
            "state": drain.phase.value,
            "messages": drain.remaining,
            "seconds": round(drain.passed_s, 3),
            "limit_seconds": None if math.isinf(drain.limit_s) else drain.limit_s,
            "exit": drain.exits,
        }
