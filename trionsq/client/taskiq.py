"""A broker for taskiq (https://taskiq-python.github.io), whose tasks travel as NSQ messages.

::

    broker = NsqBroker("tasks", nsqd_tcp_addresses=["127.0.0.1:4150"])

    @broker.task
    async def add(a: int, b: int) -> int: ...

and ``taskiq worker module:broker``. The package taskiq has to be installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from trionsq.client.config import Config
from trionsq.client.consumer import Consumer
from trionsq.client.errors import StoppedError
from trionsq.client.giving_up import GiveUp
from trionsq.client.message import Message
from trionsq.client.producer import Producer

__all__ = ["NsqBroker", "keep_touching"]

# In each message timeout, after which nsqd would deliver a running task's message again.
_TOUCHES: Final = 3


class NsqBroker(AsyncBroker):
    """Sends tasks to a topic; the workers share a channel.

    - A task is done (FIN) when taskiq acknowledges it: by default after it was executed. While it
      is running or waiting in a worker, its message is touched: nsqd's --max-msg-timeout bounds
      that (15 minutes, unless it is changed), then another worker gets it.
    - A worker that stops returns the tasks which it has not begun; those of a killed one come
      again after the message timeout. So a task may be executed twice.
    - The label ``delay`` (seconds) defers a task: ``task.kicker().with_labels(delay=5).kiq()``.
      nsqd bounds it by its --max-req-timeout.
    - What taskiq can't parse is delivered max_attempts times, then it goes to ``on_give_up``.
    """

    def __init__(
        self,
        topic: str = "taskiq",
        channel: str = "workers",
        *,
        nsqd_tcp_addresses: Iterable[str],
        lookupd_http_addresses: Iterable[str] = (),
        config: Config | None = None,
        on_give_up: GiveUp | None = None,
    ) -> None:
        """Args:
            topic, channel: valid names.
            nsqd_tcp_addresses: ``host:port``. Tasks are sent to one of them; workers connect to
                all.
            lookupd_http_addresses: if there are some, workers connect to the nsqds which these
                know of the topic, and only to them.
            config: options; max_in_flight is that of a worker process.
            on_give_up: as for `Consumer`.

        Raises:
            ValueError: an invalid name or address, or no nsqd.
        """
        super().__init__()
        self._topic = topic
        config = config or Config(max_in_flight=100)
        nsqds, lookupds = list(nsqd_tcp_addresses), list(lookupd_http_addresses)
        self._new_producer = partial(Producer[bytes], *nsqds, config=config)
        self._new_consumer = partial(
            Consumer[bytes],
            topic,
            channel,
            nsqd_tcp_addresses=() if lookupds else nsqds,
            lookupd_http_addresses=lookupds,
            config=config,
            on_give_up=on_give_up,
        )
        self._new_producer(), self._new_consumer()  # raise what is wrong
        self._producer: Producer[bytes] | None = None
        self._consumer: Consumer[bytes] | None = None
        self._toucher: asyncio.Task[None] | None = None
        self._open: set[Message] = set()
        # A program may start the broker in which its own worker runs.
        self._opening = asyncio.Lock()

    async def startup(self) -> None:
        """Open the producer, in a worker also the consumer. May be called again.

        Raises as `Consumer.__aenter__`.
        """
        await super().startup()
        async with self._opening:
            if self._producer is None:
                self._producer = await self._new_producer().__aenter__()
        if self.is_worker_process:
            await self._subscribe()

    async def _subscribe(self) -> Consumer[bytes]:
        async with self._opening:
            if self._consumer is None:
                consumer = self._consumer = await self._new_consumer().__aenter__()
                touching = keep_touching(self._open, lambda: consumer.msg_timeout_s)
                self._toucher = asyncio.create_task(touching, name="NsqBroker touches messages")
            return self._consumer

    async def shutdown(self) -> None:
        """Return tasks that are not acknowledged to nsqd, and close the connections."""
        if self._toucher is not None:
            self._toucher.cancel()
            await asyncio.wait([self._toucher])
            self._toucher = None
        if self._consumer is not None:
            await self._consumer.__aexit__(None, None, None)
            self._consumer = None
        self._open.clear()
        if self._producer is not None:
            await self._producer.__aexit__(None, None, None)
            self._producer = None
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task. Raises as `Producer.publish`."""
        if self._producer is None:
            raise StoppedError("the broker was not started")
        if (delay_s := float(message.labels.get("delay") or 0)) > 0:
            await self._producer.publish_deferred(self._topic, message.message, delay_s)
        else:
            await self._producer.publish(self._topic, message.message)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """The tasks of this worker, until `shutdown`. Raises as `Consumer.__aenter__`."""
        consumer = await self._subscribe()
        async for message in consumer:
            self._open.add(message)
            yield AckableMessage(data=message.body, ack=_Ack(self._open, message))


async def keep_touching(messages: set[Message], msg_timeout_s: Callable[[], float]) -> None:
    """Touch messages before their timeout, for ever; remove those whose connection is gone."""
    while True:
        await asyncio.sleep(msg_timeout_s() / _TOUCHES)
        for message in list(messages):
            if not message.touch():
                messages.discard(message)


class _Ack:
    """Finishes a message."""

    def __init__(self, open_messages: set[Message], message: Message) -> None:
        self._open = open_messages
        self._message = message

    def __call__(self, *_: Any) -> None:
        self._open.discard(self._message)
        self._message.finish()
