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

# Heads that are remembered, and how long they may be: a client says the same again and again.
_MAX_KNOWN: Final = 1024
_MAX_KNOWN_BYTES: Final = 1024
_NO_LIMIT_S: Final = float("inf")
# How often waits are looked at, unless a limit is shorter.
_TICK_S: Final = 1.0
# Connections that are looked at before other tasks get their turn.
_MAX_LOOKS: Final = 500
_TEXT: Final = b"text/plain; charset=utf-8"
_JSON: Final = b"application/json; charset=utf-8"
_NSQ: Final = b"x-nsq-content-type: nsq; version=1.0\r\n"


class Wait(Enum):
    """What a connection waits for, which decides how long it may."""

    REQUEST = "request"
    BODY = "body"
    TOPIC = "topic"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long a peer may leave a connection waiting, in seconds.

    Attributes:
        request_s: for a request, head and all.
        body_s: for the next bytes of a body.
        body_pace: how slowly a whole body may come.
        peer_s: to take the next bytes of an answer.
        linger_s: to close its half after the last answer.
    """

    request_s: float
    body_s: float
    body_pace: Pace
    peer_s: float
    linger_s: float


class WatchedConnection(Protocol):
    """A connection, as those see it who do not speak on it."""

    def check_wait(self, now_s: float) -> None:
        """Give up waiting if it has lasted too long."""

    def end_after_response(self) -> None:
        """End now if idle, else after the answer."""


class FastPath:
    """What the connections of one broker share.

    Attributes:
        broker: is asked.
        rules: of /pub and /mpub.
        responses: of this second.
        requests: heads that were recognised, by their bytes.
        linger_s, body_pace: see `WaitLimits`.
    """

    def __init__(self, broker: Broker, limits: WaitLimits, sites: SiteGuard) -> None:
        """``sites`` says which hosts are this machine's; other requests go to the framework."""
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
        """Look at all connections now and then, and end the waits that last too long."""
        tick_s = min(_TICK_S, min(self.limits_s.values()) / 4)
        while True:
            await trio.sleep(tick_s)
            now_s = trio.current_time()
            for place, connection in enumerate(tuple(self.connections), 1):
                connection.check_wait(now_s)
                if place % _MAX_LOOKS == 0:
                    await trio.lowlevel.checkpoint()

    def end_connections(self) -> None:
        """End idle connections now, the others after their answer."""
        for connection in tuple(self.connections):
            connection.end_after_response()

    def recognise_request(self, raw: bytes) -> FastRequest | None:
        """The request whose head this is; None if it is not one for the fast path."""
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
        """What a /pub or /mpub asks to be queued; None if that is nothing.

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
    """The responses of the fast path; ``close`` says that the connection ends after them.

    `renew` is to be called before those of a turn are asked for.
    """

    def __init__(self) -> None:
        self._second = 0
        self._date = b""
        self._made: dict[object, bytes] = {}

    def renew(self) -> None:
        """Let the date be that of now."""
        second = int(time())
        if second != self._second:
            self._second = second
            self._date = format_date_time(second).encode("ascii")
            self._made.clear()

    def ok(self, close: bool) -> bytes:
        """Success."""
        key = ("OK", close)
        return self._made.get(key) or self._keep(key, self._answer(200, b"OK", _TEXT, _NSQ, close))

    def ping(self, health: str, close: bool) -> bytes:
        """The answer to /ping."""
        key = ("ping", health, close)
        if (ready := self._made.get(key)) is not None:
            return ready
        status = 200 if health == "OK" else 500
        return self._keep(key, self._answer(status, health.encode(), _TEXT, b"", close))

    def refusal(self, error: HttpError, close: bool) -> bytes:
        """A refusal."""
        key = (error.status, error.code, close)
        if (ready := self._made.get(key)) is not None:
            return ready
        body = json_bytes({"message": error.code})
        return self._keep(key, self._answer(error.status, body, _JSON, _NSQ, close))

    def _answer(self, status: int, body: bytes, kind: bytes, more: bytes, close: bool) -> bytes:
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
        self._made[key] = ready
        return ready
