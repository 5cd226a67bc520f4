"""Publishing: nsqd confirms each message, or an error is raised.

Spec: client, section 2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self

import anyio
from anyio.abc import TaskGroup

from trionsq.client.codecs import Codec, T
from trionsq.client.config import Config
from trionsq.client.connection import Connection
from trionsq.client.errors import (
    ClientError,
    ConnectError,
    NotConnectedError,
    ProtocolError,
    StoppedError,
)
from trionsq.client.handshake import Dial, dial_tcp
from trionsq.client.nursery import ShieldedNursery
from trionsq.client.repeating import KeyedCommand, Repeater
from trionsq.client.reply import Reply
from trionsq.wire import commands

__all__ = ["Producer"]

log = logging.getLogger("trionsq.client")

# How long nsqd may take to close its end.
_CLOSE_S: Final = 1.0


class Producer(Generic[T]):
    """Publishes to one nsqd at a time.

    ::

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("topic", b"body")

    It connects at the first publish, and again after the connection was lost; with several
    addresses it goes on to the next one that can be reached. Any number of tasks may publish at
    once: their commands share one connection and do not wait for each other's answers.

    When a publish returns, nsqd has accepted the message. When it raises NotConnectedError or is
    cancelled, nsqd may have accepted the message or not. The producer never retries by itself, but
    for one case: what an nsqd refuses because it is drained goes to the next one.

    With ``idempotent=True`` it does: each publish has a key, and is sent again over new connections
    to the same nsqd, which stores it once. If nsqd does not come back within ``retry_s``, or has
    forgotten its keys, the publish raises UnknownOutcomeError. An nsqd that does not offer this is
    a NotIdempotentError. docs/idempotency.md says what nsqd promises.
    """

    def __init__(
        self,
        *nsqd_tcp_addresses: str,
        config: Config | None = None,
        codec: Codec[T] | None = None,
        idempotent: bool = False,
        retry_s: float = 30.0,
        dial: Dial = dial_tcp,
    ) -> None:
        """Args:
            nsqd_tcp_addresses: ``host:port``, one or more.
            config: options.
            codec: makes bytes of what is published; None: bodies are bytes. What it raises, the
                publish raises, and nothing was sent.
            idempotent: repeat a publish whose answer was lost; it is stored once.
            retry_s: for how long, in seconds; less than nsqd's --idempotency-window.
            dial: makes connections; for tests.

        Raises:
            ValueError: no address.
        """
        if not nsqd_tcp_addresses:
            raise ValueError("a producer needs the address of an nsqd")
        self.config = config or Config()
        self._codec = codec
        self._addresses = nsqd_tcp_addresses
        self._next = 0
        self._dial = dial
        self._nursery = ShieldedNursery(self._stop)
        self._tasks: TaskGroup | None = None
        self._connect_lock: anyio.Lock | None = None
        self._connection: Connection | None = None
        self._is_stopped = False
        self._repeater = Repeater(self._connected, retry_s) if idempotent else None

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else repr(self._connection)
        return f"<Producer {', '.join(self._addresses)}: {state}>"

    async def __aenter__(self) -> Self:
        self.config.check_files()
        self._connect_lock = anyio.Lock()
        self._tasks = await self._nursery.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection. Publishes of other tasks that still wait raise StoppedError."""
        self._stop()
        try:
            if self._connection is not None and self._connection.is_open:
                self._connection.end()
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await self._connection.ended.wait()
        finally:
            await self._nursery.close()

    def _stop(self) -> None:
        self._is_stopped = True

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd of the last connection; empty before the first one.

        If only one task publishes, the nsqd that accepted its last message.
        """
        return self._connection.address if self._connection is not None else ""

    async def publish(self, topic: str, body: T) -> None:
        """Publish a message.

        Raises:
            ValueError: an invalid name or an empty body; nothing was sent.
            ProtocolError: nsqd refused the message, and closes the connection.
            ConnectError: no nsqd can be reached.
            NotConnectedError: the connection broke before the answer; of an idempotent producer
                it is an UnknownOutcomeError, after ``retry_s``.
            StoppedError: used outside ``async with``.
        """
        data = self._encoded(body)
        if self._repeater is None:
            await self._execute(commands.publish(topic, data))
        else:
            await self._repeater.publish(partial(commands.publish, topic, data))

    async def publish_many(self, topic: str, bodies: Sequence[T]) -> None:
        """Publish all messages or none, with one command (MPUB). This is the fastest way.

        Raises as `publish`.
        """
        encoded = self._encoded_all(bodies)
        if self._repeater is None:
            await self._execute(commands.publish_many(topic, encoded))
        else:
            await self._repeater.publish(partial(commands.publish_many, topic, encoded))

    async def publish_deferred(self, topic: str, body: T, delay_s: float) -> None:
        """Publish a message that is delivered after ``delay_s`` seconds or later.

        Raises as `publish`; ProtocolError also if the delay exceeds nsqd's --max-req-timeout.
        """
        delay_ms, data = round(delay_s * 1000), self._encoded(body)
        if self._repeater is None:
            await self._execute(commands.publish_deferred(topic, delay_ms, data))
        else:
            await self._repeater.publish(partial(commands.publish_deferred, topic, delay_ms, data))

    async def begin_publish(self, topic: str, body: T) -> Reply[bytes]:
        """Send a message without waiting for nsqd's answer: ``await reply.wait()`` later returns
        or raises.

        For one task with many unconfirmed messages. Waits only for a connection, while 1 MiB is
        unsent, and while 65,536 messages are unconfirmed. Raises as `publish`, but no
        ProtocolError. An idempotent producer has a task for each message.
        """
        data = self._encoded(body)
        if self._repeater is not None:
            return await self._begin_repeating(partial(commands.publish, topic, data))
        command = commands.publish(topic, data)
        return (self._ready_connection() or await self._connected()).request(command)

    async def begin_command(self, command: KeyedCommand) -> Reply[bytes]:
        """Send a command as `begin_publish` does a message; it has a key if idempotent."""
        if self._repeater is not None:
            return await self._begin_repeating(command)
        data = command(b"", b"")
        return (self._ready_connection() or await self._connected()).request(data)

    async def _begin_repeating(self, command: KeyedCommand) -> Reply[bytes]:
        assert self._repeater is not None
        command(b"key", b"")  # an invalid one raises here
        await self._connected()
        assert self._tasks is not None
        reply = Reply[bytes]()
        self._tasks.start_soon(_fulfil, reply, self._repeater, command)
        return reply

    async def ping(self) -> None:
        """Connect if there is no connection, and send NOP. Raises as `publish`."""
        (self._ready_connection() or await self._connected()).put(commands.nop())

    # Without a codec T is bytes, which mypy can't know.

    def _encoded(self, body: T) -> bytes:
        return body if self._codec is None else self._codec.encode(body)  # type: ignore[return-value]

    def _encoded_all(self, bodies: Sequence[T]) -> Sequence[bytes]:
        if self._codec is None:
            return bodies  # type: ignore[return-value]
        return [self._codec.encode(body) for body in bodies]

    async def _execute(self, command: bytes) -> None:
        for left in range(len(self._addresses) - 1, -1, -1):
            reply = (self._ready_connection() or await self._connected()).request(command)
            try:
                await reply.wait()
                return
            except ProtocolError as error:
                if not error.is_draining or not left:
                    raise
            except NotConnectedError as error:
                if self._is_stopped:
                    raise StoppedError("the producer was stopped") from error
                raise

    def _ready_connection(self) -> Connection | None:
        """The connection if it can send a command at once: saves the coroutine of `_connected`."""
        connection = self._connection
        return connection if connection is not None and connection.has_room else None

    async def _connected(self) -> Connection:
        """A connection with room for a command."""
        while True:
            if self._is_stopped or self._tasks is None:
                raise StoppedError("the producer was stopped, or `async with` was not used")
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._connect(self._tasks)
            await connection.room()
            if connection.is_open:
                return connection

    def _next_addresses(self) -> Iterator[str]:
        if self._repeater is not None and self._repeater.unanswered:
            yield self.nsqd_address  # what may be stored can be repeated there only
            return
        for _ in self._addresses:
            # If this connection breaks later, the next one goes to the next address.
            self._next += 1
            yield self._addresses[(self._next - 1) % len(self._addresses)]

    async def _connect(self, tasks: TaskGroup) -> Connection:
        assert self._connect_lock is not None
        async with self._connect_lock:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            failures = []
            for address in self._next_addresses():
                try:
                    connection = await Connection.open(
                        address, self.config, self._dial, idempotent=self._repeater is not None
                    )
                except ConnectError as error:
                    failures.append(error)
                    log.warning("%s", error)
                    continue
                if self._is_stopped:
                    connection.discard()
                    raise StoppedError("the producer was stopped")
                await tasks.start(connection.run)
                self._connection = connection
                return connection
            if len(failures) == 1:
                raise failures[0]
            raise ConnectError("; ".join(map(str, failures)))


async def _fulfil(reply: Reply[bytes], repeater: Repeater, command: KeyedCommand) -> None:
    try:
        await repeater.publish(command)
    except (ClientError, ProtocolError) as error:
        reply.set_error(error)
    else:
        reply.set_value(b"OK")
    finally:
        if not reply.is_done:
            reply.set_error(StoppedError("the producer was stopped"))
