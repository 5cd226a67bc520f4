"""GET /events: server-sent events, one stream for each browser.

After each poll a stream sends an event ``tick`` with the sequence of the poll as id and the totals
as JSON. Pages then fetch their live part again. ``?after=N`` (or Last-Event-ID, when a browser
reconnects) leaves out the polls that the page has seen. A stream ends at shutdown, with the session
of its request, and after `LIFE_S`. A slow reader gets fewer ticks; a reader that stalls is
disconnected, as on any connection.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody

from admin.watch.poller import Poller
from admin.watch.snapshot import Snapshot, WatchEndedError
from trionsq.web.app import Endpoint
from trionsq.web.responses import error

__all__ = ["KEEP_ALIVE_S", "LIFE_S", "MAX_STREAMS", "Events", "TickStream", "endpoints", "tick"]

MAX_STREAMS: Final = 256
"""Maximum event streams. Further requests get 503; their pages are not live, and try again."""
KEEP_ALIVE_S: Final = 15.0
"""Interval without an event after which a comment is sent, so that proxies stay connected."""
LIFE_S: Final = 900.0
"""Lifetime of a stream; browsers reconnect by themselves."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
_COMMENT: Final = b":\n\n"


def endpoints(poller: Poller, standing: Callable[[], Callable[[], bool]]) -> list[Endpoint]:
    """GET /events of ``poller``; ``standing`` as in `Events`."""
    events = Events(poller, standing=standing)
    return [("GET", "/events", events.stream)]


def _anybody() -> Callable[[], bool]:
    return lambda: True


class Events:
    """The streams of one dashboard."""

    def __init__(
        self,
        poller: Poller,
        *,
        streams_max: int = MAX_STREAMS,
        standing: Callable[[], Callable[[], bool]] = _anybody,
    ) -> None:
        """``standing`` returns, for a request, a function: whether its sender may stay."""
        self.poller = poller
        self.standing = standing
        self.streams_max = streams_max
        self.streams = 0
        self._tick = (0, b"")

    async def stream(self) -> Response:
        """GET /events."""
        if self.streams >= self.streams_max:
            refused = error(503, "TOO_MANY_STREAMS")
            refused.headers["Retry-After"] = "30"
            return refused
        last_id = request.headers.get("Last-Event-ID") or request.args.get("after", "")
        after = (
            int(last_id) if last_id.isascii() and last_id.isdecimal() and len(last_id) < 16 else 0
        )
        response = Response(TickStream(self, after, self.standing()), 200, headers=_HEADERS)
        response.content_type = "text/event-stream; charset=utf-8"
        return response

    def tick(self, snapshot: Snapshot) -> bytes:
        """The event for a snapshot, built once for all streams."""
        if self._tick[0] != snapshot.sequence:
            self._tick = snapshot.sequence, tick(snapshot)
        return self._tick[1]


def tick(snapshot: Snapshot) -> bytes:
    """The event ``tick`` for ``snapshot``, as bytes of the stream."""
    total = snapshot.total
    counts = Counter(problem.severity for problem in snapshot.problems)
    document = {
        "sequence": snapshot.sequence,
        "taken": round(snapshot.taken_s, 3),
        "poll_s": round(snapshot.poll_s, 3),
        "depth": total.depth,
        "in_flight": total.in_flight,
        "deferred": total.deferred,
        "messages": total.messages,
        "clients": total.clients,
        "rate_in": _rounded(total.rate_in),
        "rate_out": _rounded(total.rate_out),
        "nodes": len(snapshot.nodes),
        "nodes_up": total.nodes,
        "topics": len(snapshot.topics),
        "channels": len(snapshot.channels),
        "problems": {name: counts[name] for name in ("critical", "warning", "notice")},
    }
    text = json.dumps(document, separators=(",", ":"))
    return f"event: tick\nid: {snapshot.sequence}\ndata: {text}\n\n".encode()


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)


class TickStream(ResponseBody):
    """The body of one stream: an async context manager, and an iterator inside it."""

    def __init__(
        self, events: Events, after: int, may_stay: Callable[[], bool] = lambda: True
    ) -> None:
        self._events = events
        self._may_stay = may_stay
        self._poller = events.poller
        self._after = after
        self._open = ExitStack()
        self._ends_s = 0.0
        self._greeted = False

    async def __aenter__(self) -> Self:
        if self._events.streams < self._events.streams_max:
            self._events.streams += 1
            self._open.callback(self._leave)
            self._open.enter_context(self._poller.watch())
            self._ends_s = trio.current_time() + LIFE_S
        snapshot = self._poller.snapshot
        if snapshot is None or self._after > snapshot.sequence:
            # The sequence of an earlier nsqadmin at this address.
            self._after = 0
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if trio.current_time() >= self._ends_s or not self._may_stay():
            raise StopAsyncIteration
        if not self._greeted:
            # Sends the headers: a browser is "connected" only after the first byte.
            self._greeted = True
            return _COMMENT
        with trio.move_on_after(KEEP_ALIVE_S):
            try:
                snapshot = await self._poller.changed(self._after)
            except WatchEndedError:
                raise StopAsyncIteration from None
            self._after = snapshot.sequence
            if not self._may_stay():
                raise StopAsyncIteration
            return self._events.tick(snapshot)
        return _COMMENT

    def _leave(self) -> None:
        self._events.streams -= 1
