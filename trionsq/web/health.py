"""/live and /ready, for orchestrators.

Both tell nothing that /ping does not, so they are meant to answer on any listener: where TLS is
required of HTTP (--tls-required), `OPEN_PATHS` are to be let through, for probes have no
certificates as a rule. /metrics is not among them: it names topics, channels and addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quart import Response

from trionsq.web.answers import json_bytes
from trionsq.web.app import Endpoint

__all__ = ["OPEN_PATHS", "Health"]

OPEN_PATHS: Final = frozenset({"/live", "/ready"})


class Health:
    """The endpoints of one daemon."""

    def __init__(self, unready: Callable[[], str | None]) -> None:
        """``unready`` tells why the daemon can't do its work now, None if it can."""
        self._unready = unready

    def endpoints(self) -> list[Endpoint]:
        return [("GET", "/live", self.live), ("GET", "/ready", self.ready)]

    async def live(self) -> Response:
        """GET /live: that this is answered says that the event loop runs; restart if it is not."""
        return _answer(200, {"status": "live"})

    async def ready(self) -> Response:
        """GET /ready: 200, or 503 and the reason; send nothing here while it is not 200."""
        reason = self._unready()
        if reason is None:
            return _answer(200, {"status": "ready"})
        return _answer(503, {"status": "not ready", "reason": reason})


def _answer(status: int, document: dict[str, str]) -> Response:
    return Response(
        json_bytes(document),
        status,
        headers={"Cache-Control": "no-store"},
        content_type="application/json; charset=utf-8",
    )
