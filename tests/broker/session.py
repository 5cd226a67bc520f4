"""A session in which a client awaits in every way there is, to be cancelled at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from tests.broker.support import connect, numbered
from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.streams import MemoryTransport
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame

MEM_QUEUE_SIZE = 12
VICTIM_CAPACITY_NBYTES = 1024
BIG_NBYTES = 500


@dataclass
class Ledger:
    """What the clients of a session know for sure.

    Attributes:
        sent: bodies that may have been published.
        acknowledged: bodies whose publishing was answered by OK.
        finished: bodies for which a FIN was sent.
        seen: bodies that the bystander got, each time it did.
    """

    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)
    seen: list[bytes] = field(default_factory=list)


@contextmanager
def until_cut_off() -> Iterator[None]:
    """A client that is closed in the middle of what it does stops there."""
    try:
        yield
    except (UnexpectedFrame, trio.BrokenResourceError):
        return


class Session:
    """The victim, and a bystander with a channel of its own on both topics.

    Attributes:
        ledger: what the clients know.
        transports: of all connections.
        is_complete: whether the victim came to the end of its script.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ledger = Ledger()
        self.transports: list[MemoryTransport] = []
        self.is_complete = False

    def connect(self, capacity_bytes: int = 2**20) -> tuple[Conversation, Client]:
        """A connection whose transport is remembered."""
        talk, client, transport = connect(self.broker, capacity_bytes)
        self.transports.append(transport)
        return talk, client

    def prepare(self) -> None:
        """Make the topics with all their channels, so that each gets everything."""
        for topic in ("t", "u"):
            for channel in ("victim", "bystander"):
                self.broker.topic(topic).channel(channel)

    async def bystander(self, topic: str) -> None:
        """Finish all messages of a channel, until cut off."""
        talk, _ = self.connect()
        with until_cut_off():
            await talk.subscribe(topic, "bystander", ready=100)
            while True:
                frame = await talk.frame()
                assert isinstance(frame, MessageFrame)
                self.ledger.seen.append(frame.body)
                await talk.say(commands.finish(frame.message_id))

    async def victim(self, talk: Conversation) -> None:
        """The script; stops where it is cut off."""
        with until_cut_off():
            await self._begin(talk)
            await self._publish(talk)
            await self._consume(talk)
            await self._read_slowly(talk)
            await self._leave(talk)
            self.is_complete = True

    async def _begin(self, talk: Conversation) -> None:
        await talk.say(commands.identify({"heartbeat_interval": 1000, "msg_timeout": 3000}))
        await talk.frame()
        await talk.subscribe("t", "victim")
        await trio.sleep(1.2)
        await talk.say(commands.nop())

    async def _publish(self, talk: Conversation) -> None:
        await self._publish_one(talk, b"t", b"one")
        bodies = [b"many%d" % number for number in range(3)]
        self.ledger.sent.update(bodies)
        data = commands.publish_many("t", bodies)
        for first in range(0, len(data), 7):
            await talk.say(data[first : first + 7])
            await trio.lowlevel.checkpoint()
        await talk.response()
        self.ledger.acknowledged.update(bodies)
        self.ledger.sent.add(b"later")
        await talk.say(commands.publish_deferred("t", 500, b"later"))
        await talk.response()
        self.ledger.acknowledged.add(b"later")
        await self._publish_more_than_fits(talk)

    async def _publish_one(self, talk: Conversation, topic: bytes, body: bytes) -> None:
        self.ledger.sent.add(body)
        await talk.say(commands.publish(topic.decode(), body))
        await talk.response()
        self.ledger.acknowledged.add(body)

    async def _publish_more_than_fits(self, talk: Conversation) -> None:
        # The victim's channel of this topic is emptied on the way, so only the topic is full.
        topic = self.broker.topic("u")
        topic.delete_channel("victim")
        bodies = [b"full" + body for body in numbered(3 * MEM_QUEUE_SIZE)]
        self.ledger.sent.update(bodies)
        await talk.say(*(commands.publish("u", body) for body in bodies))
        for body in bodies:
            await talk.response()
            self.ledger.acknowledged.add(body)

    async def _consume(self, talk: Conversation) -> None:
        await talk.say(commands.ready(3))
        first, second, third = await talk.messages(3)
        self.ledger.finished.add(first.body)
        await talk.say(commands.finish(first.message_id), commands.requeue(second.message_id, 100))
        await talk.message()
        await talk.say(commands.touch(third.message_id), commands.ready(0))
        # The requeued message is due, those in flight time out.
        for _ in range(4):
            await trio.sleep(1)
            await talk.say(commands.nop())

    async def _read_slowly(self, talk: Conversation) -> None:
        for number in range(4):
            await self._publish_one(talk, b"t", b"%0*d" % (BIG_NBYTES, number))
        await talk.say(commands.ready(20))
        await trio.sleep(0.5)
        # Answers that nobody reads: the ioloop waits until they are written.
        await talk.say(*([commands.finish(b"0" * 16)] * 10))
        await trio.sleep(0.5)
        for _ in range(12):
            await talk.frame()

    async def _leave(self, talk: Conversation) -> None:
        await talk.say(b"CLS\n")
        await talk.say(b"NONSENSE\n" + b"x" * 100)
        await talk.end()
