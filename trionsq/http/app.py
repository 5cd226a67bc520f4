"""The application: the endpoint of each path, common refusals, and /pub and /mpub.

Spec: nsqd-http, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterable

from quart import Response, request
from quart_trio import QuartTrio

from trionsq.broker.broker import Broker
from trionsq.broker.chores import in_turns
from trionsq.broker.topic import PublishRefused, Topic, until_safe
from trionsq.core.keys import KeyReused, PublishKey, digest_steps
from trionsq.http.admin import Administration, Configuration
from trionsq.http.cancelling import Cancelling
from trionsq.http.dead_letters import DeadLetterOffice
from trionsq.http.debug import Debugging
from trionsq.http.drain import Draining
from trionsq.http.in_flight import InFlightEndpoints
from trionsq.http.logread import LogReading
from trionsq.http.metrics import metrics_page
from trionsq.http.peek import Peeking
from trionsq.http.policies import PolicyEndpoints
from trionsq.http.publish import LineSplitter, PublishRules
from trionsq.http.seeking import Seeking
from trionsq.http.settings import Settings
from trionsq.http.stats import Statistics
from trionsq.web import app
from trionsq.web.access import HttpAccess
from trionsq.web.app import Endpoint
from trionsq.web.diagnostics import OPEN_PATHS, Health
from trionsq.web.gate import Gate
from trionsq.web.protocol import HttpError, Query
from trionsq.web.request import next_piece, query, read_body
from trionsq.web.responses import text, tls_required
from trionsq.wire.bodies import Bodies, ListBodies

__all__ = ["create_app"]


def create_app(
    broker: Broker,
    *,
    is_open: bool = True,
    gate: Gate | None = None,
    access: HttpAccess | None = None,
) -> QuartTrio:
    """Return the HTTP API of ``broker``.

    Args:
        broker: the broker.
        is_open: answer requests; if not, refuse them because they have to come by HTTPS.
        gate: refuses requests; /metrics shows how many.
        access: says who may do what; None: all may.
    """
    gate = Gate() if gate is None else gate

    def check(method: str) -> None:
        if broker.exiting and method != "GET":
            raise HttpError(503, "EXITING")

    def require_https(path: str) -> Response | None:
        if is_open or path in OPEN_PATHS:
            return None
        return tls_required(broker.ports.https)

    max_bytes = max(broker.options.max_msg_size, broker.options.max_body_size)
    return app.create_app(
        _endpoints(broker, gate),
        max_body_bytes=max_bytes,
        check=check,
        before=require_https,
        sites=gate.sites,
        authorize=lambda path: None if access is None else access.check(path),
    )


def _endpoints(broker: Broker, gate: Gate) -> Iterable[Endpoint]:
    statistics, publishing = Statistics(broker), Publishing(broker)
    admin, configuration = Administration(broker), Configuration(broker)
    peeking, settings = Peeking(broker, admin), Settings(broker, admin)
    seeking, reading = Seeking(admin), LogReading(broker, admin)
    policies, letters = PolicyEndpoints(broker, admin), DeadLetterOffice(broker, admin)
    draining, flight = Draining(broker), InFlightEndpoints(broker, admin)
    cancelling = Cancelling(broker, admin)
    return [
        ("GET", "/ping", statistics.ping),
        ("GET", "/info", statistics.info),
        ("GET", "/stats", statistics.stats),
        metrics_page(broker, gate, reading.readers).endpoint,
        *Health(lambda: broker.not_ready_reason).endpoints(),
        ("POST", "/pub", publishing.pub),
        ("POST", "/mpub", publishing.mpub),
        # Deprecated names that the original still has.
        ("POST", "/put", publishing.pub),
        ("POST", "/mput", publishing.mpub),
        ("POST", "/topic/create", admin.create_topic),
        ("POST", "/topic/move", admin.move_topic),
        ("POST", "/log/backup", admin.back_up),
        ("POST", "/topic/delete", admin.delete_topic),
        ("POST", "/topic/empty", admin.empty_topic),
        ("POST", "/topic/pause", admin.pause_topic),
        ("POST", "/topic/unpause", admin.unpause_topic),
        ("GET", "/topic/settings", settings.get),
        ("POST", "/topic/settings", settings.post),
        ("POST", "/topic/note_damage", settings.note_damage),
        ("GET", "/topic/log", reading.read),
        ("GET", "/topic/peek", peeking.topic),
        ("GET", "/channel/peek", peeking.channel),
        ("POST", "/channel/deferred/cancel", cancelling.cancel),
        ("POST", "/channel/deferred/requeue", cancelling.requeue),
        ("POST", "/channel/create", seeking.create_channel),
        ("POST", "/channel/seek", seeking.seek_channel),
        ("POST", "/channel/delete", admin.delete_channel),
        ("POST", "/channel/empty", admin.empty_channel),
        ("POST", "/channel/pause", admin.pause_channel),
        ("POST", "/channel/unpause", admin.unpause_channel),
        ("POST", "/channel/finish", flight.finish),
        ("POST", "/channel/requeue", flight.requeue),
        ("GET", "/deadletter", letters.get),
        ("POST", "/deadletter/add", letters.add),
        ("POST", "/deadletter/replay", letters.replay),
        ("POST", "/deadletter/discard", letters.discard),
        ("GET", "/channel/settings", policies.channel_settings),
        ("GET", "/policy", policies.list_all),
        ("GET", "/policy/<name>", policies.get),
        ("PUT", "/policy/<name>", policies.put),
        ("DELETE", "/policy/<name>", policies.delete),
        ("GET", "/config/drain", draining.get),
        ("PUT", "/config/drain", draining.put),
        ("GET", "/config/<opt>", configuration.get),
        ("PUT", "/config/<opt>", configuration.put),
        *Debugging(broker).endpoints(),
    ]


class Publishing:
    """The endpoints of messages, through the framework."""

    def __init__(self, broker: Broker) -> None:
        self._rules = PublishRules(broker)

    async def pub(self) -> Response:
        """POST /pub: the body is one message. The order of the checks is part of the API."""
        too_big = HttpError(413, "MSG_TOO_BIG")
        if (request.content_length or 0) > self._rules.max_msg_bytes:
            raise too_big
        body = await read_body(self._rules.max_msg_bytes)
        if body is None:
            raise too_big
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        values = query()
        topic = self._rules.topic(values)
        defer_ms = self._rules.defer_ms(values)
        return await self._publish(topic, "PUB", ListBodies([body]), defer_ms)

    async def mpub(self) -> Response:
        """POST /mpub: a message on each line, or with lengths. All are queued, or none."""
        if (request.content_length or 0) > self._rules.max_body_bytes:
            raise HttpError(413, "BODY_TOO_BIG")
        values = query()
        topic = self._rules.topic(values)
        bodies = await (self._counted(values) if self._rules.is_binary(values) else self._lines())
        return text("OK") if bodies is None else await self._publish(topic, "MPUB", bodies)

    async def _lines(self) -> Bodies | None:
        splitter = LineSplitter(self._rules.max_msg_bytes, self._rules.max_body_bytes)
        try:
            while piece := await next_piece():
                splitter.feed(piece)
        except OverflowError:
            raise HttpError(413, "BODY_TOO_BIG") from None
        return splitter.finish()

    async def _counted(self, values: Query) -> Bodies | None:
        body = bytearray()
        limit = self._rules.max_body_bytes
        # Bytes beyond the limit are ignored, or belong to a message that is refused anyway.
        while len(body) < limit and (piece := await next_piece()):
            body += piece
        return await in_turns(self._rules.messages(values, bytes(body[:limit])))

    async def _publish(
        self, topic: Topic, command: str, bodies: Bodies, defer_ms: int = 0
    ) -> Response:
        key = self._rules.key(request.headers.getlist("Idempotency-Key"))
        if (prepared := topic.claim_wait()) is not None:
            await prepared.wait()
        digest = b"" if key is None else await in_turns(digest_steps(bodies, defer_ms))
        await topic.wait_for_room(bodies.count)
        is_repeat = False
        try:
            if key is None:
                pending = topic.publish(bodies, defer_ms)
            else:
                pending, is_repeat = topic.publish_once(PublishKey(key, digest), bodies, defer_ms)
            if pending is not None:
                await until_safe(pending)
        except PublishRefused as refused:
            raise self._rules.refusal(topic, command, refused) from refused
        except KeyReused as error:
            raise HttpError(422, "IDEMPOTENCY_KEY_REUSED") from error
        response = text("OK")
        if is_repeat:
            response.headers["Idempotent-Replayed"] = "true"
        return response
