"""What the broker does for each command of a client. See `trionsq.broker.client.Handler`.

Spec: tcp-protocol, sections 8 to 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import trio

from trionsq.broker.answers import Answer, OwedAnswer, OwedAnswers, Reply, complete_reply
from trionsq.broker.chores import Chores, in_turns
from trionsq.broker.client import Client, Handler
from trionsq.broker.identify import IdentifyCommand
from trionsq.broker.registry import TopicRegistry
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.core.in_flight import MAX_LOOKUPS, MissedIds
from trionsq.core.keys import KeyReused, KeyUnknown, PublishKey, digest_now, digest_steps
from trionsq.wire import events, frames
from trionsq.wire.bodies import Bodies
from trionsq.wire.errors import DRAINING, ProtocolError

__all__ = ["Commands"]

# To make a topic takes as long as so many commands.
_COMMANDS_OF_A_TOPIC: Final = 16


def _alone(handler: Handler) -> Handler:
    """``handler`` for a command after whose answer the connection is another one.

    It waits until nothing else is owed: layers begin behind the answer to IDENTIFY, and messages
    behind that to SUB.
    """

    def run(client: Client, event: Any) -> Reply:
        if client.owed is None:
            return handler(client, event)
        return _run_after(client.owed, client, event, handler)

    return run


async def _run_after(owed: OwedAnswers, client: Client, event: Any, handler: Handler) -> Answer:
    await owed.wait_released()
    return await complete_reply(handler(client, event))


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
            events.Identify: _alone(identify.run),
            events.Auth: self._auth,
            events.Subscribe: _alone(self._subscribe),
            events.Ready: self._ready,
            events.StartClose: self._start_close,
            events.Finish: self._finish,
            events.Requeue: self._requeue,
            events.GiveUp: self._give_up,
            events.Touch: self._touch,
            events.Publish: self._publish,
            events.PublishMany: self._publish_many,
            events.PublishManyBegins: self._publish_many_begins,
            events.PublishDeferred: self._publish_deferred,
            events.PublishOnce: self._publish_once,
        }

    def _auth(self, client: Client, event: events.Auth) -> Reply:
        # With auth servers `AuthCommands` runs it.
        raise ProtocolError("E_AUTH_DISABLED", "AUTH disabled")

    # A new topic

    def _on_new_topic(self, client: Client, event: Any, handler: Callable[..., Reply]) -> Reply:
        """Make the topic, and call the handler again with it when the command may go on.

        A drain does not let publishers make one.
        """
        if client.context.drain.is_on and not isinstance(event, events.Subscribe):
            return _refuse_new(client, event)
        topic = self._registry.topic(event.topic)
        client.parser.pause_sooner(_COMMANDS_OF_A_TOPIC)
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
    ) -> Answer:
        await channels_known.wait()
        return await complete_reply(handler(client, event, topic))

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
        client.channel.retire_client(client)
        return self._end_deliveries() if client.pump.inbox.count else frames.CLOSE_WAIT

    async def _end_deliveries(self) -> Answer:
        """CLOSE_WAIT, behind the delivery that trio has handed to the pump."""
        # The pump runs in the next batch of tasks, of which this one may be an earlier.
        for _ in range(2):
            await trio.lowlevel.checkpoint()
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

    def _give_up(self, client: Client, event: events.GiveUp) -> Reply:
        assert client.channel is not None
        given_up = client.channel.given_up
        now_s = self._clock.now_s()
        if given_up is not None and given_up.ask(client.consumer, event.id, event.reason, now_s):
            return None
        return self._requeue(client, events.Requeue(event.id, event.delay_ms))

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
        if bodies.count == 1 and not topic.refusal:
            gathered = topic.gathering.add_message(bodies)
            if gathered is not None:
                client.pub_counts[topic.name] += 1
                if gathered.is_safe:
                    return frames.OK
                return OwedAnswer(gathered, frames.OK, "PUB", bodies.nbytes)
        if topic.should_wait(bodies.count):
            return _publish_later(client, topic, bodies, "PUB", 0, frames.OK * bodies.count)
        return _publish_to(client, topic, bodies, "PUB", 0, frames.OK * bodies.count)

    def _publish_many(
        self, client: Client, event: events.PublishMany, new_topic: Topic | None = None
    ) -> Reply:
        topic = new_topic or self._topics.get(event.topic)
        if topic is None:
            return self._on_new_topic(client, event, self._publish_many)
        if topic.should_wait(event.bodies.count):
            return _publish_later(client, topic, event.bodies, "MPUB")
        return _publish_to(client, topic, event.bodies, "MPUB")

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
        return _publish_to(client, topic, event.bodies, "DPUB", event.delay_ms)

    def _publish_once(
        self, client: Client, event: events.PublishOnce, new_topic: Topic | None = None
    ) -> Reply:
        topic = new_topic or self._topics.get(event.topic)
        if topic is None:
            return self._on_new_topic(client, event, self._publish_once)
        digest = digest_now(event.bodies, event.delay_ms)
        if digest is None or topic.should_wait(event.bodies.count):
            return _publish_once_later(client, topic, event)
        return _publish_once_to(client, topic, event, digest)


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


def _refuse_drained(client: Client, command: str, count: int = 1) -> bytes:
    """The replies to publishes during a drain.

    The connection stays for a while: a client may have sent more, and each publish is answered.
    """
    client.context.drain.note_refused(client)
    error = ProtocolError(f"E_{command}_FAILED", f"{command} failed {DRAINING}", fatal=False)
    return frames.error(error) * count


def _refuse_new(client: Client, event: Any) -> Reply:
    match event:
        case events.Publish():
            return _refuse_drained(client, "PUB", event.bodies.count)
        case events.PublishDeferred():
            return _refuse_drained(client, "DPUB")
        case events.PublishOnce():
            return _refuse_drained(client, event.command)
        case events.PublishManyBegins():
            return None  # its end is refused
    return _refuse_drained(client, "MPUB")


async def _publish_later(
    client: Client,
    topic: Topic,
    bodies: Bodies,
    command: str,
    defer_ms: int = 0,
    answer: bytes = frames.OK,
) -> Answer:
    await topic.wait_for_room(bodies.count)
    return _publish_to(client, topic, bodies, command, defer_ms, answer)


def _publish_to(
    client: Client,
    topic: Topic,
    bodies: Bodies,
    command: str,
    defer_ms: int = 0,
    answer: bytes = frames.OK,
) -> Answer:
    try:
        pending = topic.publish(bodies, defer_ms)
    except PublishRefused as refused:
        if topic.refusal == DRAINING:
            return _refuse_drained(client, command, bodies.count if command == "PUB" else 1)
        raise ProtocolError(f"E_{command}_FAILED", f"{command} failed {refused}") from refused
    client.pub_counts[topic.name] += bodies.count
    return answer if pending is None else OwedAnswer(pending, answer, command, bodies.nbytes)


async def _publish_once_later(client: Client, topic: Topic, event: events.PublishOnce) -> Answer:
    digest = await in_turns(digest_steps(event.bodies, event.delay_ms))
    await topic.wait_for_room(event.bodies.count)
    return _publish_once_to(client, topic, event, digest)


def _publish_once_to(
    client: Client, topic: Topic, event: events.PublishOnce, digest: bytes
) -> Answer:
    command, bodies, key = event.command, event.bodies, PublishKey(event.key, digest)
    try:
        epoch = event.epoch.decode()
        pending, is_repeat = topic.publish_once(key, bodies, event.delay_ms, epoch)
    except PublishRefused as refused:
        if topic.refusal == DRAINING:
            return _refuse_drained(client, command)
        raise ProtocolError(f"E_{command}_FAILED", f"{command} failed {refused}") from refused
    except KeyReused as reused:
        text = f"{command} key stands for other messages"
        raise ProtocolError("E_KEY_REUSED", text) from reused
    except KeyUnknown as unknown:
        text = f"{command} the keys of that time are forgotten"
        raise ProtocolError("E_KEY_UNKNOWN", text) from unknown
    if not is_repeat:
        client.pub_counts[topic.name] += bodies.count
    if pending is None:
        return frames.OK
    return OwedAnswer(pending, frames.OK, command, bodies.nbytes)
