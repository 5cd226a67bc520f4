"""A while of disorder: publishers, consumers and an operator who do whatever a seed says."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import trio

from tests.broker.support import Gate, connect
from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.topic import Topic
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.streams import MemoryTransport
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, MessageFrame

STEADY, MOODY = "steady", "moody"
CAPACITIES_NBYTES = (120, 1000, 64 * 1024)
BODY_NBYTES_MAX = 400
FAILING = (
    ("write",),
    ("create",),
    ("sync",),
    ("rename",),
    ("unlink",),
    ("write", "create", "sync"),
)


class Chaos:
    """All that goes on with one topic that has two channels.

    The operator leaves the channel ``steady`` alone but for pausing it; what goes into it must
    come out. ``moody`` is emptied and deleted as well.

    Attributes:
        acknowledged: bodies whose publishing was answered by OK.
        sent: bodies that may have been published.
        finished: bodies for which a FIN was sent on the steady channel.
        happened: how often each kind of thing was done, faults included.
        transports: of all connections.
    """

    def __init__(self, broker: Broker, random: Random) -> None:
        self.broker = broker
        self.random = random
        self.acknowledged: set[bytes] = set()
        self.sent: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.happened: Counter[str] = Counter()
        self.transports: list[MemoryTransport] = []
        self._number = 0

    def connect(self) -> tuple[Conversation, Client, MemoryTransport]:
        """A connection that holds little or much."""
        connection = connect(self.broker, self.random.choice(CAPACITIES_NBYTES))
        self.transports.append(connection[2])
        return connection

    async def pause(self, most_s: float = 0.3) -> None:
        """Let some time pass, or none."""
        await trio.sleep(self.random.choice((0.0, 0.01, self.random.uniform(0, most_s))))

    # Publishers

    async def publisher(self) -> None:
        """Publish on one connection after another."""
        while True:
            talk, client, transport = self.connect()
            try:
                await talk.say(commands.identify({"heartbeat_interval": 1000}))
                await talk.frame()
                while self.random.random() < 0.95:
                    await self._publish(talk)
                    await self.pause()
                await self._end(talk, client, transport)
            except (trio.BrokenResourceError, UnexpectedFrame):
                self.happened["publisher cut off"] += 1
            talk.close()
            await self.pause()

    def _bodies(self, count: int) -> list[bytes]:
        bodies = []
        for _ in range(count):
            self._number += 1
            size = self.random.choice((8, self.random.randrange(8, BODY_NBYTES_MAX)))
            bodies.append(b"%0*d" % (size, self._number))
        self.sent.update(bodies)
        return bodies

    async def _publish(self, talk: Conversation) -> None:
        kind = self.random.choice(("PUB", "MPUB", "DPUB"))
        bodies = self._bodies(self.random.choice((1, 3, 10)))
        if kind == "MPUB":
            await talk.say(commands.publish_many("t", bodies))
            await self._answer(talk, bodies)
            return
        delay_ms = self.random.randrange(1500)
        for body in bodies:
            await talk.say(
                commands.publish("t", body)
                if kind == "PUB"
                else commands.publish_deferred("t", delay_ms, body)
            )
        for body in bodies:
            await self._answer(talk, [body])

    async def _answer(self, talk: Conversation, bodies: list[bytes]) -> None:
        frame = await talk.frame()
        if isinstance(frame, ErrorFrame):
            assert frame.code.endswith("PUB_FAILED"), frame
            self.happened["refused"] += 1
            raise UnexpectedFrame(frame.code)
        self.acknowledged.update(bodies)

    # Consumers

    async def consumer(self, channel: str) -> None:
        """Consume on one connection after another."""
        while True:
            talk, client, transport = self.connect()
            try:
                identity = {"heartbeat_interval": 1000, "msg_timeout": 1000}
                await talk.say(commands.identify(identity))
                await talk.frame()
                await talk.subscribe("t", channel, ready=self.random.choice((1, 5, 200)))
                with trio.move_on_after(self.random.uniform(0, 4)):
                    while True:
                        await self._consume(talk, channel)
                await self._end(talk, client, transport)
            except (trio.BrokenResourceError, UnexpectedFrame):
                self.happened["consumer cut off"] += 1
            talk.close()
            await self.pause()

    async def _consume(self, talk: Conversation, channel: str) -> None:
        frame = await talk.frame()
        if not isinstance(frame, MessageFrame):
            assert "_FAILED" in str(frame), frame
            self.happened["too late"] += 1
            return
        what = self.random.choice(("FIN",) * 8 + ("REQ", "TOUCH", "RDY", "ignore", "sleep"))
        self.happened[what] += 1
        match what:
            case "REQ":
                await talk.say(commands.requeue(frame.message_id, self.random.choice((0, 1, 700))))
            case "TOUCH":
                await talk.say(commands.touch(frame.message_id))
            case "RDY":
                await talk.say(commands.ready(self.random.choice((0, 1, 50))))
                await talk.say(commands.ready(self.random.choice((1, 50))))
            case "sleep":
                await self.pause(1.5)
            case "FIN":
                if channel == STEADY:
                    self.finished.add(frame.body)
                await talk.say(commands.finish(frame.message_id))

    async def _end(self, talk: Conversation, client: Client, transport: MemoryTransport) -> None:
        how = self.random.choice(
            ("close", "half close", "break in", "break out", "stall", "sleep", "closed", "CLS")
        )
        self.happened[how] += 1
        match how:
            case "half close":
                talk.stream.end_sending()
                await talk.end()
            case "break in":
                transport.incoming.break_with(ConnectionResetError("chaos"))
            case "break out":
                transport.outgoing.break_with(BrokenPipeError("chaos"))
            case "stall":
                transport.outgoing.stall()
                await trio.sleep(self.random.uniform(0, 3))
                transport.outgoing.resume()
            case "sleep":
                await trio.sleep(3)
                assert transport.is_closed
            case "closed":
                client.close()
            case "CLS" if client.channel is not None:
                await talk.say(b"CLS\n")
                await self.pause()

    # The operator

    async def operator(self) -> None:
        """Pause, empty and delete."""
        while True:
            await self.pause(0.5)
            topic = self.broker.topics["t"]
            steady = topic.channels[STEADY]
            moody = topic.channel(MOODY)
            what = self.random.choice(("topic", "steady", "moody", "empty", "delete"))
            self.happened[what] += 1
            match what:
                case "empty":
                    moody.empty()
                case "delete":
                    topic.delete_channel(MOODY)
                case _:
                    paused: Topic | Channel = topic
                    if what != "topic":
                        paused = steady if what == "steady" else moody
                    paused.pause()
                    await self.pause(0.5)
                    paused.unpause()

    # The disk

    async def saboteur(self, disk: SimulatedDisk, gate: Gate) -> None:
        """Let the disk fail, or its background stand still, for a while.

        Reading works: what can't be read for some seconds is given up.
        """
        while True:
            await self.pause(2)
            if self.random.random() < 0.3:
                gate.shut()
            else:
                disk.fail(
                    self.random.choice((errno.EIO, errno.ENOSPC)),
                    at=self.random.randrange(1, 5),
                    forever=self.random.random() < 0.7,
                    only=self.random.choice(FAILING),
                )
            await self.pause(2)
            disk.heal()
            gate.open()
