"""What the connections of the short way share: what requests ask, how long they may wait."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.topic import Topic
from trionsq.http import head as heads
from trionsq.http.head import Head, Target
from trionsq.http.ready import ReadyAnswers
from trionsq.http.rules import PublishRules
from trionsq.web.errors import HttpError
from trionsq.web.pace import Pace
from trionsq.web.parameters import parse_query, valid_topic_name
from trionsq.web.sites import SiteGuard
from trionsq.wire.bodies import Bodies

__all__ = ["Publish", "Request", "ShortWay", "Wait", "WaitLimits", "Waiting"]

# Heads that are remembered, and how long they may be: a client says the same again and again.
_KNOWN_MAX: Final = 1024
_KNOWN_NBYTES_MAX: Final = 1024
_NO_LIMIT_S: Final = float("inf")
# How often waits are looked at, unless a limit is shorter.
_TICK_S: Final = 1.0
# Connections that are looked at before other tasks get their turn.
_LOOKS_MAX: Final = 500


class Wait(Enum):
    """What a connection waits for, which decides how long it may."""

    REQUEST = "request"
    BODY = "body"
    TOPIC = "topic"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Request:
    """A head, and what can be decided from it once and for all.

    Attributes:
        topic: a valid name, if this is a /pub that has only its body to be looked at.
        refused: it is refused whatever its body, so that this need not be waited for.
        knows_host: its Host header is a name of this machine.
    """

    head: Head
    length: int
    close: bool
    topic: str | None
    refused: bool
    knows_host: bool


@dataclass(slots=True)
class Publish:
    """Messages that are about to be queued: of one /mpub, or of a run of /pub.

    Attributes:
        prepared: to be waited for, if the request made the topic.
        steps: to be done before `bodies` are known, if the body is large.
    """

    topic: Topic
    bodies: Bodies | None
    run: list[bytes]
    defer_ms: int
    close: bool
    prepared: trio.Event | None = None
    steps: Generator[None, None, Bodies | None] | None = None

    @property
    def count(self) -> int:
        return len(self.run) if self.bodies is None else self.bodies.count

    def joins(self, topic: Topic) -> bool:
        """Whether a /pub to ``topic`` can be one of the run."""
        return self.topic is topic and bool(self.run) and not self.defer_ms


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


class Waiting(Protocol):
    """A connection, as those see it who do not speak on it."""

    def look(self, now_s: float) -> None:
        """Give up waiting if it has lasted too long."""

    def end(self) -> None:
        """End now if idle, else after the answer."""


class ShortWay:
    """What the connections of one broker share.

    Attributes:
        broker: is asked.
        rules: of /pub and /mpub.
        answers: of this second.
        requests: heads that were recognised, by their bytes.
        linger_s, body_pace: see `WaitLimits`.
    """

    def __init__(self, broker: Broker, limits: WaitLimits, sites: SiteGuard) -> None:
        """``sites`` says which hosts are this machine's; other requests go to the framework."""
        self.broker = broker
        self._sites = sites
        self.rules = PublishRules(broker)
        self.answers = ReadyAnswers()
        self.requests: dict[bytes, Request] = {}
        self.linger_s = limits.linger_s
        self.body_pace = limits.body_pace
        self.limits_s = {
            Wait.REQUEST: limits.request_s,
            Wait.BODY: limits.body_s,
            Wait.TOPIC: _NO_LIMIT_S,
            Wait.PEER: limits.peer_s,
        }
        self.connections: set[Waiting] = set()

    async def watch(self) -> None:
        """Look at all connections now and then, and end the waits that last too long."""
        tick_s = min(_TICK_S, min(self.limits_s.values()) / 4)
        while True:
            await trio.sleep(tick_s)
            now_s = trio.current_time()
            for place, connection in enumerate(tuple(self.connections), 1):
                connection.look(now_s)
                if place % _LOOKS_MAX == 0:
                    await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """End idle connections now, the others after their answer."""
        for connection in tuple(self.connections):
            connection.end()

    def recognise(self, raw: bytes) -> Request | None:
        """The request whose head this is; None if it is not one for the short way."""
        head = heads.recognise(raw)
        if head is None or head.length > self._length_max(head.target):
            return None
        name = self._topic_name(head.query)
        plain = head.target is Target.PUB and head.length > 0 and b"defer" not in head.query
        request = Request(
            head,
            head.length,
            head.close,
            topic=name if plain and b"%" not in head.query else None,
            refused=head.target is Target.MPUB and name is None,
            knows_host=self._sites.knows_host(head.host.decode("latin-1")),
        )
        if len(raw) <= _KNOWN_NBYTES_MAX:
            if len(self.requests) >= _KNOWN_MAX:
                self.requests.clear()
            self.requests[raw] = request
        return request

    def _length_max(self, target: Target) -> int:
        rules = self.rules
        return rules.msg_size_max if target is Target.PUB else rules.body_size_max

    def _topic_name(self, query: bytes) -> str | None:
        try:
            return valid_topic_name(parse_query(query))
        except HttpError:
            return None

    def prepare(self, head: Head, body: bytes) -> Publish | None:
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
            return Publish(topic, None, [body], rules.defer_ms(values), head.close, prepared)
        steps = rules.messages(values, body)
        try:
            next(steps)
        except StopIteration as end:
            bodies: Bodies | None = end.value
            return None if bodies is None else Publish(topic, bodies, [], 0, head.close, prepared)
        return Publish(topic, None, [], 0, head.close, prepared, steps)
