"""What the broker does for each command of a client.

A handler returns the frames to answer, None for no answer, or an awaitable of the answer if the
command must wait. It raises ProtocolError for a fatal refusal.

Spec: tcp-protocol, sections 8 to 13.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from trionsq.broker.topic import PublishRefused, Topic
from trionsq.broker.upgrade import check_upgrade, is_upgrade, upgrade
from trionsq.core.in_flight import MAX_LOOKUPS, MissedIds
from trionsq.wire import events, frames
from trionsq.wire.bodies import Bodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.identify import Negotiated, answer, negotiate

if TYPE_CHECKING:
    from trionsq.broker.client import Client

__all__ = ["HANDLERS", "Handler", "Reply"]

Reply = bytes | Awaitable[bytes] | None
# mypy can't say that each handler takes its own event.
Handler: TypeAlias = "Callable[[Client, Any], Reply]"


def _identify(client: Client, event: events.Identify) -> Reply:
    features = client.broker.features
    identity = negotiate(event.body, features, client.identity)
    wants_upgrade = is_upgrade(identity)
    if wants_upgrade:
        check_upgrade(client, identity)
    client.identity = identity
    client.parser.heartbeats = identity.heartbeat_interval_ms is not None
    client.consumer.msg_timeout_s = identity.msg_timeout_ms / 1e3
    client.consumer.sample_rate = identity.sample_rate
    client.restart_heartbeats()
    reply = frames.response(answer(identity, features))
    return _upgrade(client, identity, reply) if wants_upgrade else reply


async def _upgrade(client: Client, wanted: Negotiated, answer: bytes) -> bytes:
    client.heartbeats.stop()
    reply = await upgrade(client, wanted, answer)
    client.restart_heartbeats()
    return reply


def _auth(client: Client, event: events.Auth) -> Reply:
    # With auth servers others stand in: see `trionsq.broker.auth_commands`.
    raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")


# A new topic: its handler is called again with it, once it may go on.


def _on_new_topic(client: Client, event: Any, handler: Callable[..., Reply]) -> Reply:
    topic = client.broker.topic(event.topic)
    prepared = topic.claim_wait()
    if prepared is None:
        return handler(client, event, topic)
    return _when_prepared(prepared, client, event, handler, topic)


async def _when_prepared(
    prepared: trio.Event, client: Client, event: Any, handler: Callable[..., Reply], topic: Topic
) -> bytes:
    await prepared.wait()
    reply = handler(client, event, topic)
    if reply is None or isinstance(reply, bytes):
        return reply or b""
    return await reply


def _subscribe(client: Client, event: events.Subscribe, made: Topic | None = None) -> Reply:
    broker = client.broker
    topic = made or broker.topics.get(event.topic)
    if topic is None:
        return _on_new_topic(client, event, _subscribe)
    if topic.exiting:
        raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
    channel = topic.channel(event.channel)
    channel.add_client(client, broker.options.max_channel_consumers)
    client.channel = channel
    return frames.OK


def _ready(client: Client, event: events.Ready) -> Reply:
    assert client.channel is not None
    client.channel.core.set_ready(client.consumer, event.count, client.broker.clock.now_s())
    return None


def _start_close(client: Client, event: events.StartClose) -> Reply:
    assert client.channel is not None
    client.channel.core.set_ready(client.consumer, 0, client.broker.clock.now_s())
    return frames.CLOSE_WAIT


def _finish(client: Client, event: events.Finish) -> Reply:
    assert client.channel is not None
    missed = client.channel.core.finish(client.consumer, event.ids, client.broker.clock.now_s())
    return None if missed is None else _failed(client, "FIN", missed)


def _requeue(client: Client, event: events.Requeue) -> Reply:
    assert client.channel is not None
    clock = client.broker.clock
    done = client.channel.core.requeue(
        client.consumer, event.id, event.delay_ms, clock.now_s(), clock.now_ns()
    )
    return None if done else _failed(client, "REQ", _missed(client, event.id))


def _touch(client: Client, event: events.Touch) -> Reply:
    assert client.channel is not None
    broker = client.broker
    done = client.channel.core.touch(
        client.consumer, event.id, broker.clock.now_s(), broker.max_msg_timeout_s
    )
    return None if done else _failed(client, "TOUCH", _missed(client, event.id))


def _missed(client: Client, id_: bytes) -> MissedIds:
    assert client.channel is not None
    return client.channel.core.missed_ids(client.consumer, [id_])


def _failed(client: Client, command: str, missed: MissedIds) -> Reply:
    """The answers to a command that named messages which are not in flight at the client."""
    if missed.is_known:
        return _failures(command, missed)
    return _failures_later(client, command, missed)


async def _failures_later(client: Client, command: str, missed: MissedIds) -> bytes:
    """To look at all other consumers takes its time; meanwhile the client is not read."""
    chore = client.broker.chores.start_later(_looks(missed))
    try:
        await chore.wait()
    finally:
        chore.stop()
    return _failures(command, missed)


def _looks(missed: MissedIds) -> Iterator[None]:
    while not missed.search(MAX_LOOKUPS):
        yield


def _failures(command: str, missed: MissedIds) -> bytes:
    return b"".join([_failure(command, id_, why) for id_, why in missed.reasons()])


def _failure(command: str, id_: bytes, why: str) -> bytes:
    text = b"%b %b failed %b" % (command.encode(), id_, why.encode())
    return frames.error(ProtocolError(f"E_{command}_FAILED", text, fatal=False))


def _publish(client: Client, event: events.Publish, made: Topic | None = None) -> Reply:
    topic = made or client.broker.topics.get(event.topic)
    if topic is None:
        return _on_new_topic(client, event, _publish)
    bodies = event.bodies
    if topic.should_wait(bodies.count):
        return _publish_later(client, topic, bodies, "PUB")
    _take(client, topic, bodies, "PUB")
    return frames.OK * bodies.count


def _publish_many(client: Client, event: events.PublishMany, made: Topic | None = None) -> Reply:
    topic = made or client.broker.topics.get(event.topic)
    if topic is None:
        return _on_new_topic(client, event, _publish_many)
    if topic.should_wait(event.bodies.count):
        return _publish_later(client, topic, event.bodies, "MPUB")
    _take(client, topic, event.bodies, "MPUB")
    return frames.OK


def _publish_many_begins(
    client: Client, event: events.PublishManyBegins, made: Topic | None = None
) -> Reply:
    if made is None and event.topic not in client.broker.topics:
        return _on_new_topic(client, event, _publish_many_begins)
    return None


def _publish_deferred(
    client: Client, event: events.PublishDeferred, made: Topic | None = None
) -> Reply:
    topic = made or client.broker.topics.get(event.topic)
    if topic is None:
        return _on_new_topic(client, event, _publish_deferred)
    if topic.should_wait(event.bodies.count):
        return _publish_later(client, topic, event.bodies, "DPUB", event.delay_ms)
    _take(client, topic, event.bodies, "DPUB", event.delay_ms)
    return frames.OK


async def _publish_later(
    client: Client, topic: Topic, bodies: Bodies, command: str, defer_ms: int = 0
) -> bytes:
    await topic.wait_for_room(bodies.count)
    _take(client, topic, bodies, command, defer_ms)
    return frames.OK * bodies.count if command == "PUB" else frames.OK


def _take(client: Client, topic: Topic, bodies: Bodies, command: str, defer_ms: int = 0) -> None:
    try:
        topic.publish(bodies, defer_ms)
    except PublishRefused as refused:
        raise ProtocolError(f"E_{command}_FAILED", f"{command} failed {refused}") from refused
    client.pub_counts[topic.name] += bodies.count


HANDLERS: Mapping[type, Handler] = {
    events.Identify: _identify,
    events.Auth: _auth,
    events.Subscribe: _subscribe,
    events.Ready: _ready,
    events.StartClose: _start_close,
    events.Finish: _finish,
    events.Requeue: _requeue,
    events.Touch: _touch,
    events.Publish: _publish,
    events.PublishMany: _publish_many,
    events.PublishManyBegins: _publish_many_begins,
    events.PublishDeferred: _publish_deferred,
}
