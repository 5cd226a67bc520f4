"""A producer and a consumer that go about their work beside the nonsense, and miss nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from tests.drill.connection import NsqConnection
from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation
from trionsq.wire import commands
from trionsq.wire.client import Frame, MessageFrame, Response

TOPIC = "steady"
CHANNEL = "steady"
# Nothing takes so long unless it hangs.
PATIENCE_S = 60.0
PAUSE_S = 0.01


class Talk:
    """One connection of the pair, in memory or on a socket."""

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], frames: Callable[[], Awaitable[list[Frame]]]
    ) -> None:
        self.send = send
        self._frames = frames
        self._waiting: deque[Frame] = deque()

    async def frame(self) -> Frame:
        while not self._waiting:
            self._waiting.extend(await self._frames())
        return self._waiting.popleft()

    @classmethod
    def in_memory(cls, broker: Broker) -> Talk:
        talk = Conversation.begin(broker)

        async def frames() -> list[Frame]:
            return [await talk.frame()]

        return cls(talk.say, frames)

    @classmethod
    @asynccontextmanager
    async def on_socket(cls, path: str) -> AsyncIterator[Talk]:
        """On a unix socket."""
        async with NsqConnection(await trio.open_unix_socket(path)) as connection:
            await connection.send(commands.MAGIC_V2)
            yield cls(connection.send, connection.frames)


class SteadyPair:
    """Publishes numbers one by one, and finishes each when it has come.

    Attributes:
        rounds: messages published, delivered and finished so far.
    """

    def __init__(self, producer: Talk, consumer: Talk) -> None:
        self._producer = producer
        self._consumer = consumer
        self.rounds = 0

    async def begin(self) -> None:
        """Subscribe."""
        await self._consumer.send(commands.subscribe(TOPIC, CHANNEL))
        assert await self._consumer.frame() == Response(b"OK")
        await self._consumer.send(commands.ready(10))

    async def round(self) -> None:
        """One message all the way.

        Raises:
            trio.TooSlowError: it did not come.
        """
        with trio.fail_after(PATIENCE_S):
            body = b"%d" % self.rounds
            await self._producer.send(commands.publish(TOPIC, body))
            assert await self._producer.frame() == Response(b"OK")
            message = await self._consumer.frame()
            assert isinstance(message, MessageFrame), message
            assert message.body == body
            await self._consumer.send(commands.finish(message.message_id))
        self.rounds += 1

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Begin, then one round after the other until cancelled."""
        await self.begin()
        task_status.started()
        while True:
            await self.round()
            await trio.sleep(PAUSE_S)
