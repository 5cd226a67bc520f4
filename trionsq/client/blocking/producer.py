"""Publishing from any thread of a program without an event loop."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self

from trionsq.client import producer as async_producer
from trionsq.client.blocking.publishing import Entry, Publishing
from trionsq.client.codecs import Codec, T
from trionsq.client.config import Config
from trionsq.client.errors import ClientError, StoppedError
from trionsq.client.handshake import dial_tcp
from trionsq.client.repeating import KeyedCommand
from trionsq.hostport import parse_address
from trionsq.transports.transport import BaseSocketTransport, Transport
from trionsq.wire import commands

__all__ = ["Producer", "QueueFullError"]

log = logging.getLogger("trionsq.client")

# How long the thread may take to close its connection.
_CLOSE_S: Final = 3.0


class QueueFullError(ClientError):
    """``max_unconfirmed`` messages wait for nsqd, and the producer was made to raise then."""


class Producer(Generic[T]):
    """Publishes to one nsqd at a time, from any number of threads.

    ::

        with Producer("127.0.0.1:4150") as producer:
            producer.publish("topic", b"body")

    It has one background thread, which starts with the first publish and runs
    `trionsq.client.Producer`: see there for addresses, guarantees and ``idempotent``.

    A program may make it when a module is imported, and fork later, as gunicorn does: each process
    has a thread and a connection of its own, and what waits at the fork is the parent's. At the
    exit of the program, messages that wait for nsqd are waited for, up to ``close_timeout_s``.
    Children of `multiprocessing` and processes that a signal kills have no such exit: call `close`
    there. Not to be used in an event loop, which it would block.
    """

    def __init__(
        self,
        *nsqd_tcp_addresses: str,
        config: Config | None = None,
        codec: Codec[T] | None = None,
        idempotent: bool = False,
        retry_s: float = 30.0,
        max_unconfirmed: int = 10_000,
        when_full: Literal["wait", "raise"] = "wait",
        close_timeout_s: float = 10.0,
    ) -> None:
        """Args:
            nsqd_tcp_addresses: ``host:port``, one or more.
            config: options.
            codec: makes bytes of what is published, in the thread that publishes; None: bodies are
                bytes. What it raises, the publish raises, and nothing was sent.
            idempotent, retry_s: as for `trionsq.client.Producer`.
            max_unconfirmed: publishes that may wait for nsqd's answer, of all threads together.
            when_full: what a further one does: ``wait``, or ``raise`` QueueFullError.
            close_timeout_s: how long `close` and the exit of the program wait for nsqd, in seconds.

        Raises:
            ValueError: no address, or an invalid one; max_unconfirmed below 1.
        """
        if not nsqd_tcp_addresses:
            raise ValueError("a producer needs the address of an nsqd")
        for address in nsqd_tcp_addresses:
            parse_address(address)
        if max_unconfirmed < 1:
            raise ValueError("max_unconfirmed must be at least 1")
        self.config = config or Config()
        self._codec = codec
        self._addresses = nsqd_tcp_addresses
        self._idempotent = idempotent
        self._retry_s = retry_s
        self._max_unconfirmed = max_unconfirmed
        self._when_full = when_full
        self._close_timeout_s = close_timeout_s
        self._is_closed = False
        self._begin_process()
        _PRODUCERS[id(self)] = weakref.ref(self, partial(_forget, id(self)))

    def _begin_process(self) -> None:
        """Have no thread, no connection and nothing queued."""
        self._changed = threading.Condition()
        self._begun = 0
        self._waiting = 0
        self._work: Publishing | None = None
        self._sockets: list[BaseSocketTransport] = []

    def __repr__(self) -> str:
        state = " closed" if self._is_closed else ""
        return f"<Producer {', '.join(self._addresses)}:{state} {self.unconfirmed} unconfirmed>"

    def __enter__(self) -> Self:
        self.config.check_files()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def unconfirmed(self) -> int:
        """How many publishes of this process wait for nsqd's answer."""
        return self._begun - self._work.answered if self._work is not None else 0

    def publish(self, topic: str, body: T, timeout_s: float | None = None) -> None:
        """Publish a message, and wait until nsqd has confirmed it.

        Args:
            topic: its name.
            body: at least a byte, or a value for the codec.
            timeout_s: how long to wait, in seconds; None: as long as the connection and the time
                limits of the options allow.

        Raises:
            ValueError: an invalid name or an empty body; nothing was sent.
            ProtocolError: nsqd refused the message.
            ConnectError: no nsqd can be reached.
            NotConnectedError: the connection broke before the answer; of an idempotent producer
                it is an UnknownOutcomeError, after ``retry_s``.
            QueueFullError: see ``when_full``; nothing was sent.
            StoppedError: the producer is closed, or was closed before the answer.
            TimeoutError: no answer in time; nsqd may have the message, or get it later.
        """
        command = partial(commands.publish, topic, self._encoded(body))
        self._begin(command, timeout_s).result(timeout_s)

    def publish_many(self, topic: str, bodies: Sequence[T], timeout_s: float | None = None) -> None:
        """Publish all messages or none, with one command (MPUB): the fastest way. As `publish`."""
        command = partial(commands.publish_many, topic, tuple(map(self._encoded, bodies)))
        self._begin(command, timeout_s).result(timeout_s)

    def publish_deferred(
        self, topic: str, body: T, delay_s: float, timeout_s: float | None = None
    ) -> None:
        """Publish a message that is delivered after ``delay_s`` seconds or later. As `publish`."""
        delay_ms = round(delay_s * 1000)
        command = partial(commands.publish_deferred, topic, delay_ms, self._encoded(body))
        self._begin(command, timeout_s).result(timeout_s)

    def begin_publish(self, topic: str, body: T) -> Future[None]:
        """Publish a message in the background: ``.result()`` later waits for nsqd's confirmation.

        The result raises as `publish`. Messages of one thread go to nsqd in their order.

        Raises:
            ValueError, QueueFullError, StoppedError: as `publish`.
        """
        return self._begin(partial(commands.publish, topic, self._encoded(body)), None)

    def _encoded(self, body: T) -> bytes:
        # Without a codec T is bytes, which mypy can't know.
        return body if self._codec is None else self._codec.encode(body)  # type: ignore[return-value]

    def _begin(self, command: KeyedCommand, timeout_s: float | None) -> Future[None]:
        if not self._idempotent:
            data = command(b"", b"")  # an invalid one raises here

            def command(_key: bytes, _epoch: bytes) -> bytes:
                return data

        else:
            command(b"key", b"")
        entry = Entry(command)
        with self._changed:
            self._wait_for_room(timeout_s)
            work = self._work
            if work is None or work.background.ended.done():
                work = self._start()
            self._begun += 1
            work.queue.append(entry)
            work.wake()
        return entry.confirmed

    def _wait_for_room(self, timeout_s: float | None) -> None:
        if not self._is_closed and self.unconfirmed >= self._max_unconfirmed:
            if self._when_full == "raise":
                raise QueueFullError(f"{self._max_unconfirmed} messages wait for nsqd")
            if not self._wait(lambda: self.unconfirmed < self._max_unconfirmed, timeout_s):
                raise TimeoutError(f"{self._max_unconfirmed} messages wait for nsqd")
        if self._is_closed:
            raise StoppedError("the producer was closed")

    def _wait(self, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until answers have made it so, or the producer is closed; False after the time."""
        # Counted before the first look: an answer after that look notifies.
        self._waiting += 1
        was_closed = self._is_closed
        try:
            return self._changed.wait_for(
                lambda: is_so() or self._is_closed != was_closed, timeout_s
            )
        finally:
            self._waiting -= 1

    def _start(self) -> Publishing:
        producer = async_producer.Producer(
            *self._addresses,
            config=self.config,
            idempotent=self._idempotent,
            retry_s=self._retry_s,
            dial=self._dial,
        )
        self._begun = 0
        self._work = Publishing(producer, self._changed, self._note_answer)
        self._work.background.start()
        return self._work

    async def _dial(self, host: str, port: int, local_address: str) -> Transport:
        transport = await dial_tcp(host, port, local_address)
        assert isinstance(transport, BaseSocketTransport)
        # Those of before are closed.
        self._sockets = [transport]
        return transport

    def _note_answer(self) -> None:
        # Mostly nobody waits, and the lock is left alone.
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for nsqd's answers to what was published, then close the connection.

        Whoever still waits after that gets StoppedError. May be called again, and from any thread.

        Args:
            timeout_s: how long to wait, in seconds; None: ``close_timeout_s``.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            work = self._work
            if work is None:
                return
            limit_s = self._close_timeout_s if timeout_s is None else timeout_s
            self._wait(lambda: not self.unconfirmed, limit_s)
            lost = self.unconfirmed
        if lost:
            log.error("%r: closed before nsqd has confirmed them", self)
        work.stop()
        work.background.join(_CLOSE_S)


# Processes

_PRODUCERS: Final[dict[int, weakref.ref[Producer[Any]]]] = {}
# After a fork, what the parent's threads work with: to free it would reach into their event loop.
_INHERITED: Final[list[Publishing]] = []


def _forget(key: int, _: object) -> None:
    _PRODUCERS.pop(key, None)


def _living() -> list[Producer[Any]]:
    producers = [reference() for reference in list(_PRODUCERS.values())]
    return [producer for producer in producers if producer is not None]


def _begin_child() -> None:
    for producer in _living():
        if producer._work is not None:
            _INHERITED.append(producer._work)
        for transport in producer._sockets:
            transport.abandon()
        producer._begin_process()


def _close_all() -> None:
    for producer in _living():
        producer.close()


os.register_at_fork(after_in_child=_begin_child)
atexit.register(_close_all)
