"""What the broker does for each command of a client. See `trionsq.broker.client.Handler`.

Spec: tcp-protocol, sections 8 to 13.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import trio

from trionsq.broker.auth import AuthServers, ClientAuth
from trionsq.broker.chores import Chores
from trionsq.broker.client import Client, Handler, Reply
from trionsq.broker.identify import IdentifyCommand
from trionsq.broker.registry import TopicRegistry
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.core.in_flight import MAX_LOOKUPS, MissedIds
from trionsq.logtext import printable
from trionsq.wire import events, frames
from trionsq.wire.auth import Grant, Question, answer
from trionsq.wire.bodies import Bodies
from trionsq.wire.errors import ProtocolError

__all__ = ["AuthCommands", "Commands"]

log = logging.getLogger("trionsq")


async def _complete_reply(reply: Reply) -> bytes:
    """Wait for a reply if necessary, and return its frames."""
    if reply is None or isinstance(reply, bytes):
        return reply or b""
    return await reply


class Commands:
    """The commands of the clients of a broker.

    Attributes:
        handlers: by the class of the command's event.
    """

    def __init__(
        self,
        registry: TopicRegistry,
        clock: Clock,
        chores: Chores,
        identify: IdentifyCommand,
        *,
        max_msg_timeout_s: float,
        max_channel_consumers: int,
    ) -> None:
        self._registry = registry
        self._topics = registry.topics
        self._clock = clock
        self._chores = chores
        self._max_msg_timeout_s = max_msg_timeout_s
        self._max_channel_consumers = max_channel_consumers
        self.handlers: Mapping[type, Handler] = {
            events.Identify: identify.run,
            events.Auth: self._auth,
            events.Subscribe: self._subscribe,
            events.Ready: self._ready,
            events.StartClose: self._start_close,
            events.Finish: self._finish,
            events.Requeue: self._requeue,
            events.Touch: self._touch,
            events.Publish: self._publish,
            events.PublishMany: self._publish_many,
            events.PublishManyBegins: self._publish_many_begins,
            events.PublishDeferred: self._publish_deferred,
        }

    def _auth(self, client: Client, event: events.Auth) -> Reply:
        # With auth servers `AuthCommands` runs it.
        raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")

    # A new topic

    def _on_new_topic(self, client: Client, event: Any, handler: Callable[..., Reply]) -> Reply:
        """Make the topic, and call the handler again with it when the command may go on."""
        topic = self._registry.topic(event.topic)
        channels_known = topic.claim_wait()
        if channels_known is None:
            return handler(client, event, topic)
        return self._when_channels_known(channels_known, client, event, handler, topic)

    async def _when_channels_known(
        self,
        channels_known: trio.Event,
        client: Client,
        event: Any,
        handler: Callable[..., Reply],
        topic: Topic,
    ) -> bytes:
        await channels_known.wait()
        return await _complete_reply(handler(client, event, topic))

    # Consumers

    def _subscribe(
        self, client: Client, event: events.Subscribe, new_topic: Topic | None = None
    ) -> Reply:
        topic = new_topic or self._topics.get(event.topic)
        if topic is None:
            return self._on_new_topic(client, event, self._subscribe)
        if topic.exiting:
            raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
        channel = topic.channel(event.channel)
        channel.add_client(client, self._max_channel_consumers)
        client.channel = channel
        return frames.OK

    def _ready(self, client: Client, event: events.Ready) -> Reply:
        assert client.channel is not None
        client.channel.core.set_ready(client.consumer, event.count, self._clock.now_s())
        return None

    def _start_close(self, client: Client, event: events.StartClose) -> Reply:
        assert client.channel is not None
        client.channel.core.set_ready(client.consumer, 0, self._clock.now_s())
        return frames.CLOSE_WAIT

    def _finish(self, client: Client, event: events.Finish) -> Reply:
        assert client.channel is not None
        missed = client.channel.core.finish(client.consumer, event.ids, self._clock.now_s())
        return None if missed is None else self._refuse(client, "FIN", missed)

    def _requeue(self, client: Client, event: events.Requeue) -> Reply:
        assert client.channel is not None
        now_s = self._clock.now_s()
        now_ns = self._clock.deferral_ns(now_s)
        done = client.channel.core.requeue(client.consumer, event.id, event.delay_ms, now_s, now_ns)
        return None if done else self._refuse(client, "REQ", _missed(client, event.id))

    def _touch(self, client: Client, event: events.Touch) -> Reply:
        assert client.channel is not None
        done = client.channel.core.touch(
            client.consumer, event.id, self._clock.now_s(), self._max_msg_timeout_s
        )
        return None if done else self._refuse(client, "TOUCH", _missed(client, event.id))

    def _refuse(self, client: Client, command: str, missed: MissedIds) -> Reply:
        """The replies to a command that named messages which are not in flight at the client."""
        if missed.is_known:
            return _refusals(command, missed)
        return self._refuse_later(command, missed)

    async def _refuse_later(self, command: str, missed: MissedIds) -> bytes:
        """Look for the messages at all other consumers, in turns; the client is not read."""
        chore = self._chores.start_later(_search(missed))
        try:
            await chore.wait()
        finally:
            chore.stop()
        return _refusals(command, missed)

    # Producers

    def _publish(
        self, client: Client, event: events.Publish, new_topic: Topic | None = None
    ) -> Reply:
        topic = new_topic or self._topics.get(event.topic)
        if topic is None:
            return self._on_new_topic(client, event, self._publish)
        bodies = event.bodies
        if topic.should_wait(bodies.count):
            return _publish_later(client, topic, bodies, "PUB")
        _publish_to(client, topic, bodies, "PUB")
        return frames.OK * bodies.count

    def _publish_many(
        self, client: Client, event: events.PublishMany, new_topic: Topic | None = None
    ) -> Reply:
        topic = new_topic or self._topics.get(event.topic)
        if topic is None:
            return self._on_new_topic(client, event, self._publish_many)
        if topic.should_wait(event.bodies.count):
            return _publish_later(client, topic, event.bodies, "MPUB")
        _publish_to(client, topic, event.bodies, "MPUB")
        return frames.OK

    def _publish_many_begins(
        self, client: Client, event: events.PublishManyBegins, new_topic: Topic | None = None
    ) -> Reply:
        if new_topic is None and event.topic not in self._topics:
            return self._on_new_topic(client, event, self._publish_many_begins)
        return None

    def _publish_deferred(
        self, client: Client, event: events.PublishDeferred, new_topic: Topic | None = None
    ) -> Reply:
        topic = new_topic or self._topics.get(event.topic)
        if topic is None:
            return self._on_new_topic(client, event, self._publish_deferred)
        if topic.should_wait(event.bodies.count):
            return _publish_later(client, topic, event.bodies, "DPUB", event.delay_ms)
        _publish_to(client, topic, event.bodies, "DPUB", event.delay_ms)
        return frames.OK


def _missed(client: Client, id_: bytes) -> MissedIds:
    assert client.channel is not None
    return client.channel.core.missed_ids(client.consumer, [id_])


def _search(missed: MissedIds) -> Iterator[None]:
    while not missed.search(MAX_LOOKUPS):
        yield


def _refusals(command: str, missed: MissedIds) -> bytes:
    return b"".join([_refusal(command, id_, why) for id_, why in missed.reasons()])


def _refusal(command: str, id_: bytes, why: str) -> bytes:
    text = b"%b %b failed %b" % (command.encode(), id_, why.encode())
    return frames.error(ProtocolError(f"E_{command}_FAILED", text, fatal=False))


async def _publish_later(
    client: Client, topic: Topic, bodies: Bodies, command: str, defer_ms: int = 0
) -> bytes:
    await topic.wait_for_room(bodies.count)
    _publish_to(client, topic, bodies, command, defer_ms)
    return frames.OK * bodies.count if command == "PUB" else frames.OK


def _publish_to(
    client: Client, topic: Topic, bodies: Bodies, command: str, defer_ms: int = 0
) -> None:
    try:
        topic.publish(bodies, defer_ms)
    except PublishRefused as refused:
        raise ProtocolError(f"E_{command}_FAILED", f"{command} failed {refused}") from refused
    client.pub_counts[topic.name] += bodies.count


_Guarded: TypeAlias = (
    events.Subscribe
    | events.Publish
    | events.PublishDeferred
    | events.PublishManyBegins
    | events.PublishMany
)


class AuthCommands:
    """AUTH and the commands that need it, where auth servers decide who may do what.

    Attributes:
        handlers: of all commands, by the class of the command's event.
    """

    def __init__(
        self, handlers: Mapping[type, Handler], servers: AuthServers, clock: Clock
    ) -> None:
        """``handlers``: run the commands of those who may."""
        self._servers = servers
        self._clock = clock
        self._begin_mpub = handlers[events.PublishManyBegins]
        self._run_mpub = handlers[events.PublishMany]
        self._guarded_mpub = self._guard("MPUB", self._run_mpub)
        self.handlers: Mapping[type, Handler] = {
            **handlers,
            events.Auth: self._auth,
            events.Subscribe: self._guard("SUB", handlers[events.Subscribe]),
            events.Publish: self._guard("PUB", handlers[events.Publish]),
            events.PublishDeferred: self._guard("DPUB", handlers[events.PublishDeferred]),
            events.PublishManyBegins: self._guard("MPUB", self._publish_many_begins),
            events.PublishMany: self._publish_many,
        }

    # AUTH

    def _auth(self, client: Client, event: events.Auth) -> Reply:
        if client.auth is not None:
            raise ProtocolError("E_INVALID", "AUTH already set")
        return self._authorize(client, event.secret)

    async def _authorize(self, client: Client, secret: bytes) -> bytes:
        grant: Grant | None = None
        async with trio.open_nursery() as nursery:
            # If the client disconnects, the answer is of no use to anybody.
            nursery.start_soon(
                client.close_at_end_of_input,
                name=f"client {client.peer} end of input during AUTH",
            )
            grant = await self._servers.request_grant(_question(client, secret))
            nursery.cancel_scope.cancel()
        if grant is None:
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
        if not len(grant):
            raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
        client.auth = ClientAuth(secret, grant, self._clock.now_s())
        identity = printable(grant.identity)
        log.info("client(%s) - authorized as %s for %d s", client.peer, identity, grant.ttl_s)
        return frames.response(answer(grant))

    # The commands that need it

    def _guard(self, command: str, handler: Handler) -> Handler:
        """``handler`` for those who may run the command, and a refusal for the others."""
        is_publishing = command != "SUB"

        def guarded(client: Client, event: _Guarded) -> Reply:
            auth = client.auth
            if auth is None:
                raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")
            if self._clock.now_s() >= auth.expires_s:
                return self._run_renewed(client, auth, command, event, handler)
            # A publisher repeats its topic, so the verdict is mostly known.
            if not (is_publishing and auth.grant.verdicts.get(event.topic)):
                _check(auth.grant, command, event)
            return handler(client, event)

        return guarded

    async def _run_renewed(
        self, client: Client, auth: ClientAuth, command: str, event: _Guarded, handler: Handler
    ) -> bytes:
        """Renew the grant, then run the command, even if the client has ended its sending."""
        grant = await self._servers.request_grant(_question(client, auth.secret))
        if grant is None:
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
        auth.renew(grant, self._clock.now_s())
        _check(grant, command, event)
        return await _complete_reply(handler(client, event))

    def _publish_many_begins(self, client: Client, event: events.PublishManyBegins) -> Reply:
        assert client.auth is not None
        client.auth.may_finish_mpub = True
        return self._begin_mpub(client, event)

    def _publish_many(self, client: Client, event: events.PublishMany) -> Reply:
        """An MPUB is checked once: before its body, if that was not there yet."""
        auth = client.auth
        if auth is None or not auth.may_finish_mpub:
            return self._guarded_mpub(client, event)
        auth.may_finish_mpub = False
        return self._run_mpub(client, event)


def _check(grant: Grant, command: str, event: _Guarded) -> None:
    channel = ""
    if isinstance(event, events.Subscribe):
        channel = event.channel
        allowed = grant.may_subscribe(event.topic, channel)
    else:
        allowed = grant.may_publish(event.topic)
    if not allowed:
        text = f'AUTH failed for {command} on "{event.topic}" "{channel}"'
        raise ProtocolError("E_UNAUTHORIZED", text)


def _question(client: Client, secret: bytes) -> Question:
    tls = client.tls
    common_name = "" if tls is None else tls.common_name
    return Question(secret, client.host, tls is not None, common_name)
