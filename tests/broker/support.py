"""What the tests of the broker's shell share: balances, and a look at what was left behind."""

from __future__ import annotations

import errno

import trio
from trio.testing import wait_all_tasks_blocked

from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.storage.folder import Job, JobDone
from trionsq.storage.log.held import HeldMessages
from trionsq.testing.background import HeldBackground
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.streams import CAPACITY_BYTES, MemoryTransport, memory_connection
from trionsq.wire import commands
from trionsq.wire.bodies import ListBodies
from trionsq.wire.client import MessageFrame
from trionsq.wire.states import MAGIC_V2


def accounted(channel: Channel) -> int:
    """The messages of a channel, by where they are; must be all that it got."""
    core = channel.core
    held = core.depth + core.in_flight_count + core.deferred_count + left_to_state(channel)
    return core.finish_count + held + core.dropped.total()


def left_to_state(channel: Channel) -> int:
    """The deferred messages of a channel that has stopped, if a log's state keeps them."""
    deferred = channel.core.deferred
    return deferred._count - len(deferred) if isinstance(deferred, HeldMessages) else 0


def check_balances(broker: Broker) -> None:
    """Every message of every channel is finished, waiting, in flight, deferred or dropped."""
    for topic in broker.topics.values():
        assert topic.check() is None
        for channel in topic.channels.values():
            core = channel.core
            assert accounted(channel) == core.message_count + core.replayed_count, channel
            assert channel.check() is None or left_to_state(channel)
            assert set(channel.core.in_flight.subscriptions) == {
                client.consumer for client in channel.clients
            }


def check_nobody_left(broker: Broker) -> None:
    """No connection, and no task of one."""
    assert not broker.clients
    assert broker._connections is not None
    assert not broker._connections.child_tasks
    for topic in broker.topics.values():
        for channel in topic.channels.values():
            assert not channel.clients
            assert not channel.core.in_flight.subscriptions
            assert not channel.core.waiting


def publish(broker: Broker, topic: str, *bodies: bytes, defer_ms: int = 0) -> None:
    """Publish without a connection. A round that fails at once refuses it."""
    round_ = broker.topic(topic).publish(ListBodies(list(bodies)), defer_ms)
    if round_ is not None and round_.error is not None:
        raise PublishRefused(round_.error)


def numbered(count: int, size: int = 8) -> list[bytes]:
    """Bodies that can be told apart, each at least ``size`` bytes."""
    return [b"%0*d" % (size, number) for number in range(count)]


def connect(
    broker: Broker, capacity_bytes: int = CAPACITY_BYTES
) -> tuple[Conversation, Client, MemoryTransport]:
    """A new connection: what the client has of it, and both of what the broker has."""
    stream, transport = memory_connection(capacity_bytes)
    client = broker.connect(transport)
    stream.send_nowait(MAGIC_V2)
    return Conversation(stream), client, transport


def full_disk(queue: str = "*") -> SimulatedDisk:
    """A disk without room for the files of some queues, given by a shell pattern."""
    disk = SimulatedDisk()
    disk.fail(errno.ENOSPC, forever=True, only=("create", "write"), name=f"{queue}.diskqueue.*")
    return disk


def is_stuck(topic: Topic) -> bool:
    """Whether a channel had no room for what the topic hands over."""
    return topic.core.error is not None


async def finish(consumer: Conversation, *messages: MessageFrame) -> None:
    """FIN, and wait until the broker has it."""
    await consumer.say(*(commands.finish(message.message_id) for message in messages))
    await wait_all_tasks_blocked()


class Gate(HeldBackground):
    """A background that works at once while it is open, and not at all while it is shut.

    Attributes:
        is_open: whether it works.
        held_up: jobs that came while it was shut.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.held_up = 0
        self._is_working = False
        self._opened = trio.Event()

    def submit(self, job: Job, done: JobDone) -> None:
        super().submit(job, done)
        if not self.is_open:
            self.held_up += 1
        elif not self._is_working:  # else this ``done`` ends first
            self._work()

    def _work(self) -> None:
        self._is_working = True
        try:
            self.run_all()
        finally:
            self._is_working = False

    def shut(self) -> None:
        self.is_open = False

    def open(self) -> None:
        """Do what waits, and work again."""
        self.is_open = True
        self._work()
        self._opened.set()
        self._opened = trio.Event()

    async def wait_idle(self) -> None:
        while len(self):
            await self._opened.wait()


async def consume(
    broker: Broker, topic: str, channel: str, count: int
) -> tuple[Conversation, list[MessageFrame]]:
    """Subscribe, and take some messages without finishing them."""
    consumer = Conversation.begin(broker, capacity_bytes=2**20)
    await consumer.subscribe(topic, channel, ready=2500)
    return consumer, await consumer.messages(count)
