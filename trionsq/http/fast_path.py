"""What the connections of the fast path share: known requests, time limits, ready responses.

The fast path serves /pub, /mpub and /ping without the framework; see `fast_connection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from time import time
from typing import Final, Protocol
from wsgiref.handlers import format_date_time

import trio

from trionsq.broker.broker import Broker
from trionsq.http.fast_requests import (
    FastRequest,
    PublishRequest,
    RequestHead,
    Target,
    recognise_head,
)
from trionsq.http.publish import PublishRules
from trionsq.web.limits import Pace
from trionsq.web.protocol import HttpError, json_bytes, parse_query, reason, valid_topic_name
from trionsq.web.sites import SiteGuard
from trionsq.wire.bodies import Bodies

__all__ = ["FastPath", "ReadyResponses", "Wait", "WaitLimits", "WatchedConnection"]

# Request heads that are remembered, and their maximum size: a client repeats the same head.
_MAX_KNOWN: Final = 1024
_MAX_KNOWN_BYTES: Final = 1024
_NO_LIMIT_S: Final = float("inf")
# Seconds between two checks of all connections, unless a limit is shorter.
_TICK_S: Final = 1.0
# Connections that are checked before other tasks run.
_MAX_LOOKS: Final = 500
_TEXT: Final = b"text/plain; charset=utf-8"
_JSON: Final = b"application/json; charset=utf-8"
_NSQ: Final = b"x-nsq-content-type: nsq; version=1.0\r\n"


class Wait(Enum):
    """What a connection waits for; each has its own time limit."""

    REQUEST = "request"
    BODY = "body"
    TOPIC = "topic"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long a peer may leave a connection waiting, in seconds.

    Attributes:
        request_s: for a complete request head.
        body_s: for the next bytes of a body.
        body_pace: the slowest pace of a body.
        peer_s: to accept the next bytes of a response.
        linger_s: to close its half after the last response.
    """

    request_s: float
    body_s: float
    body_pace: Pace
    peer_s: float
    linger_s: float


class WatchedConnection(Protocol):
    """A connection, as its watcher sees it."""

    def check_wait(self, now_s: float) -> None:
        """Give up if the peer has kept the connection waiting for too long."""

    def end_after_response(self) -> None:
        """End now if idle, else after the response."""


class FastPath:
    """What the connections of one broker share.

    Attributes:
        broker: the broker.
        rules: the checks of /pub and /mpub.
        responses: with the date of this second.
        requests: recognised requests by the bytes of their heads.
        linger_s, body_pace: see `WaitLimits`.
    """

    def __init__(self, broker: Broker, limits: WaitLimits, sites: SiteGuard) -> None:
        """``sites`` knows the names of this machine; other hosts' requests go to the framework."""
        self.broker = broker
        self._sites = sites
        self.rules = PublishRules(broker)
        self.responses = ReadyResponses()
        self.requests: dict[bytes, FastRequest] = {}
        self.linger_s = limits.linger_s
        self.body_pace = limits.body_pace
        self.limits_s = {
            Wait.REQUEST: limits.request_s,
            Wait.BODY: limits.body_s,
            Wait.TOPIC: _NO_LIMIT_S,
            Wait.PEER: limits.peer_s,
        }
        self.connections: set[WatchedConnection] = set()

    async def watch_connections(self) -> None:
        """Check the time limits of all connections, for ever."""
        tick_s = min(_TICK_S, min(self.limits_s.values()) / 4)
        while True:
            await trio.sleep(tick_s)
            now_s = trio.current_time()
            for place, connection in enumerate(tuple(self.connections), 1):
                connection.check_wait(now_s)
                if place % _MAX_LOOKS == 0:
                    await trio.lowlevel.checkpoint()

    def end_connections(self) -> None:
        """End idle connections now, the others after their response."""
        for connection in tuple(self.connections):
            connection.end_after_response()

    def recognise_request(self, raw: bytes) -> FastRequest | None:
        """Return the request with this head; None if it is not for the fast path."""
        head = recognise_head(raw)
        if head is None or head.length > self._max_length(head.target):
            return None
        name = self._topic_name(head.query)
        plain = head.target is Target.PUB and head.length > 0 and b"defer" not in head.query
        request = FastRequest(
            head,
            head.length,
            head.close,
            topic=name if plain and b"%" not in head.query else None,
            refused=head.target is Target.MPUB and name is None,
            knows_host=self._sites.knows_host(head.host.decode("latin-1")),
        )
        if len(raw) <= _MAX_KNOWN_BYTES:
            if len(self.requests) >= _MAX_KNOWN:
                self.requests.clear()
            self.requests[raw] = request
        return request

    def _max_length(self, target: Target) -> int:
        rules = self.rules
        return rules.max_msg_bytes if target is Target.PUB else rules.max_body_bytes

    def _topic_name(self, query: bytes) -> str | None:
        try:
            return valid_topic_name(parse_query(query))
        except HttpError:
            return None

    def publish_request(self, head: RequestHead, body: bytes) -> PublishRequest | None:
        """Return the messages of a /pub or /mpub; None if there are none.

        The order of the checks is part of the API.

        Raises:
            HttpError: it is refused.
        """
        rules = self.rules
        if self.broker.exiting:
            raise HttpError(503, "EXITING")
        if head.target is Target.PUB and not body:
            raise HttpError(400, "MSG_EMPTY")
        values = parse_query(head.query)
        topic = rules.topic(values)
        prepared = topic.claim_wait()
        if head.target is Target.PUB:
            return PublishRequest(topic, None, [body], rules.defer_ms(values), head.close, prepared)
        steps = rules.messages(values, body)
        try:
            next(steps)
        except StopIteration as end:
            bodies: Bodies | None = end.value
            if bodies is None:
                return None
            return PublishRequest(topic, bodies, [], 0, head.close, prepared)
        return PublishRequest(topic, None, [], 0, head.close, prepared, steps)


# Responses


class ReadyResponses:
    """The bytes of responses, made once a second and equal to those that hypercorn sends.

    ``close``: the connection ends after the response. Call `renew` once in each turn.
    """

    def __init__(self) -> None:
        self._second = 0
        self._date = b""
        self._cache: dict[object, bytes] = {}

    def renew(self) -> None:
        """Update the date."""
        second = int(time())
        if second != self._second:
            self._second = second
            self._date = format_date_time(second).encode("ascii")
            self._cache.clear()

    def ok(self, close: bool) -> bytes:
        """Return the response to a success."""
        key = ("OK", close)
        return self._cache.get(key) or self._keep(
            key, self._response(200, b"OK", _TEXT, _NSQ, close)
        )

    def ping(self, health: str, close: bool) -> bytes:
        """Return the response to /ping."""
        key = ("ping", health, close)
        if (ready := self._cache.get(key)) is not None:
            return ready
        status = 200 if health == "OK" else 500
        return self._keep(key, self._response(status, health.encode(), _TEXT, b"", close))

    def refusal(self, error: HttpError, close: bool) -> bytes:
        """Return the response to a refusal."""
        key = (error.status, error.code, close)
        if (ready := self._cache.get(key)) is not None:
            return ready
        body = json_bytes({"message": error.code})
        more = [b"%b: %b\r\n" % (name.lower().encode(), value.encode())
                for name, value in error.headers.items()]  # fmt: skip
        headers = _NSQ + b"".join(more)
        return self._keep(key, self._response(error.status, body, _JSON, headers, close))

    def _response(self, status: int, body: bytes, kind: bytes, more: bytes, close: bool) -> bytes:
        return (
            b"HTTP/1.1 %d %b\r\ncontent-length: %d\r\ncontent-type: %b\r\n%bdate: %b\r\n%b\r\n%b"
            % (
                status,
                reason(status),
                len(body),
                kind,
                more,
                self._date,
                b"Connection: close\r\n" if close else b"",
                body,
            )
        )

    def _keep(self, key: object, ready: bytes) -> bytes:
        self._cache[key] = ready
        return ready
