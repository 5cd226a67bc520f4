"""Consuming in a program without an event loop: handlers run in threads."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from types import FrameType
from typing import Final, Generic, TypeAlias

import anyio
import anyio.to_thread

from trionsq.client import consumer as async_consumer
from trionsq.client import message as async_message
from trionsq.client.blocking.background import Background, wait_for
from trionsq.client.blocking.message import Message
from trionsq.client.codecs import Codec, T
from trionsq.client.config import Config
from trionsq.client.message import ConsumerStats

__all__ = ["Consumer", "Handler"]

log = logging.getLogger("trionsq.client")

Handler: TypeAlias = Callable[[Message[T]], object]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Consumer(Generic[T]):
    """Receives the messages of a channel, and calls a handler with each of them.

    ::

        consumer = Consumer("topic", "channel", lookupd_http_addresses=["127.0.0.1:4161"])
        consumer.run(handle, concurrency=10)

    One background thread runs `trionsq.client.Consumer`: see there for its guarantees, for flow
    control and backoff. ``concurrency`` other threads run the handlers.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: Iterable[str] = (),
        lookupd_http_addresses: Iterable[str] = (),
        config: Config | None = None,
        codec: Codec[T] | None = None,
        on_give_up: Callable[[Message], object] | None = None,
        address_filter: Callable[[str], bool] | None = None,
        drain_timeout_s: float = 5.0,
    ) -> None:
        """The arguments are those of `trionsq.client.Consumer`.

        Args:
            codec: makes the ``body`` of each message of its bytes; None: bytes.
            on_give_up: called in a thread with each message that had more than max_attempts or
                whose body the codec refuses, before it is finished; its body is bytes. If it
                raises, the message is requeued instead.

        Raises:
            ValueError: an invalid name or address.
        """
        self._on_give_up = on_give_up
        self._consumer = async_consumer.Consumer(
            topic,
            channel,
            nsqd_tcp_addresses=nsqd_tcp_addresses,
            lookupd_http_addresses=lookupd_http_addresses,
            config=config,
            codec=codec,
            on_give_up=None if on_give_up is None else self._give_up,
            address_filter=address_filter,
            drain_timeout_s=drain_timeout_s,
        )
        self._name = f"{topic}:{channel}"
        self._background = Background(self._consume, f"trionsq-consumer-{self._name}")
        self._is_stopping = False
        # Whether handlers may begin; not after a cancellation.
        self._is_handling = True
        # Ends with None, which the background thread puts: no signal interrupts that one.
        self._work: SimpleQueue[Message[T] | None] = SimpleQueue()
        self._background.ended.add_done_callback(lambda _: self._work.put(None))
        self._threads: list[threading.Thread] = []
        # One for each thread.
        self._ended: list[Future[None]] = []

    def __repr__(self) -> str:
        return f"<blocking {self._consumer!r}>"

    def run(
        self, handler: Handler[T], concurrency: int = 1, *, handle_signals: bool = True
    ) -> None:
        """Call the handler with each message, in ``concurrency`` threads, until `stop`. Once only.

        A message is finished when its handler returns. If the handler raises, the message is
        requeued, the consumer backs off, and the exception is logged. Neither happens if
        ``message.auto_response`` is False.

        In the main thread SIGTERM and SIGINT call `stop`: the method returns when all messages are
        answered. After 30 s nsqd gets back those that have not begun; a handler that runs is always
        waited for. A second signal raises KeyboardInterrupt. Then, or if
        anything else interrupts it, messages without an answer are returned to nsqd, no further
        handler begins, and those that run are not waited for.

        Args:
            handler: a function.
            concurrency: how many messages are handled at once.
            handle_signals: False: leave SIGTERM and SIGINT to the program.

        Raises:
            ConnectError, NotConnectedError, ProtocolError: as ``async with`` of the async consumer.
            RuntimeError: called a second time.
        """
        if self._threads:
            raise RuntimeError("run may be called once")
        for number in range(concurrency):
            self._ended.append(Future())
            thread = threading.Thread(
                target=self._handle_all,
                args=(handler, self._ended[-1]),
                name=f"trionsq-handler-{self._name}-{number}",
                daemon=True,
            )
            self._threads.append(thread)
        is_complete = False
        with self._signals() if handle_signals else contextlib.nullcontext():
            try:
                self._background.start()
                for thread in self._threads:
                    thread.start()
                wait_for(self._background.ended)
                is_complete = True
            finally:
                self._end(is_complete)

    def _end(self, is_complete: bool) -> None:
        self._is_handling = False
        self._background.cancel()
        self._background.join()
        if is_complete:
            for ended, thread in zip(self._ended, self._threads, strict=True):
                wait_for(ended)
                thread.join()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, _: FrameType | None) -> None:
            if self._is_stopping:
                raise KeyboardInterrupt
            log.info("%s: stops, by %s", self._name, signal.Signals(number).name)
            self.stop()

        before = {number: signal.signal(number, stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Begin the orderly end: receive no more messages, handle those received.

        From any thread, a handler's too, and from a signal handler. May be called more than once.
        """
        self._is_stopping = True
        if self._background.is_running:
            self._background.call(self._consumer.stop)

    def stats(self) -> ConsumerStats:
        """Counts of messages, answers and connections."""
        return self._consumer.stats()

    # In the event loop

    async def _consume(self) -> None:
        async with self._consumer as consumer:
            if self._is_stopping:
                consumer.stop()
            call = self._background.call
            async for message in consumer:
                self._work.put(Message(message, call))

    async def _give_up(self, message: async_message.Message) -> None:
        assert self._on_give_up is not None
        await anyio.to_thread.run_sync(self._on_give_up, Message(message, self._background.call))

    # In the handlers' threads

    def _handle_all(self, handler: Handler[T], ended: Future[None]) -> None:
        try:
            self._handle_each(handler)
            self._work.put(None)  # for the other threads
        finally:
            ended.set_result(None)

    def _handle_each(self, handler: Handler[T]) -> None:
        while (message := self._work.get()) is not None:
            # nsqd redelivers the messages of a broken connection.
            if not self._is_handling or not message.is_answerable:
                continue
            try:
                handler(message)
            except Exception:
                log.exception("%s: a handler failed", self._name)
                if message.auto_response:
                    message.requeue()
            except BaseException:
                message.requeue(0, backoff=False)
                raise
            else:
                if message.auto_response:
                    message.finish()
