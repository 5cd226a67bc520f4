"""A consumer and a producer on asyncio are cancelled at each step of their tasks, by `Task.cancel`:
no message is lost, nothing stays open. `tests/cancellation.py` does the same for trio.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from tests.client.worlds import channel_stats, run_in, until
from tests.soak import more_in_soak, swept
from trionsq.client import Config, Consumer, Message, Producer
from trionsq.testing import OpenBroker, broker_in_thread

BODIES = [b"%d" % number for number in range(12)]
CONFIG = Config(max_in_flight=4, lookupd_poll_interval_s=0.1)
_TOPICS = itertools.count(1)


@pytest.fixture(scope="module")
def nsqd() -> Iterator[OpenBroker]:
    """An nsqd in a thread."""
    with broker_in_thread(msg_timeout_ns=10**9) as opened:
        yield opened


class Steps:
    """Counts the steps of a task and of those that it starts; cancels the first at one of them."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self.root: asyncio.Task[None] | None = None
        self._at = at

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work`` in a task of its own, up to its end or its cancellation."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.root = asyncio.create_task(work())
        try:
            await asyncio.wait([self.root])
        finally:
            loop.set_task_factory(None)
        if not self.root.cancelled():
            self.root.result()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(work, self), loop=loop, **options)

    def note(self) -> None:
        """A step begins."""
        self.count += 1
        if self.count == self._at and self.root is not None:
            self.root.cancel()


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are counted."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._work = work
        self._steps = steps

    def send(self, value: Any) -> Any:
        self._steps.note()
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._steps.note()
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)  # anyio looks at its state

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


class Life:
    """What a program does with messages, and what it has finished."""

    def __init__(self, nsqd: OpenBroker) -> None:
        self.nsqd = nsqd
        self.topic = f"swept-{next(_TOPICS)}"
        self.finished: list[bytes] = []

    def _consumer(self) -> Consumer:
        addresses = [self.nsqd.tcp_address]
        return Consumer(self.topic, "c", nsqd_tcp_addresses=addresses, config=CONFIG)

    async def handlers(self) -> None:
        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            if message.finish():
                self.finished.append(message.body)
            if len(self.finished) == len(BODIES):
                consumer.stop()

        async with self._consumer() as consumer:
            await consumer.run(handle, concurrency=2)

    async def batches(self) -> None:
        async with self._consumer() as consumer, asyncio.timeout(20):
            async for batch in consumer.batches():
                await asyncio.sleep(0)
                if batch.finish():
                    self.finished += batch.bodies
                if len(self.finished) == len(BODIES):
                    break


@pytest.mark.parametrize("style", ["handlers", "batches"])
@more_in_soak
def test_a_consumer_cancelled_at_any_step(style: str, nsqd: OpenBroker) -> None:
    """Each message was finished or is at nsqd; the connection is closed; no task is left."""

    def live(at: int) -> int:
        life, steps = Life(nsqd), Steps(at)

        async def main() -> None:
            async with Producer(nsqd.tcp_address) as producer:
                await producer.publish_many(life.topic, BODIES)
            work: Callable[[], Coroutine[Any, Any, None]] = getattr(life, style)
            await steps.run(work)

        run_in("asyncio", main)
        _check(life, at)
        return steps.count

    count = live(0)
    assert count > 30
    for at in swept(count):
        live(at)


def _check(life: Life, at: int) -> None:
    nsqd, topic = life.nsqd, life.topic

    def has_settled() -> bool:
        try:
            stats = channel_stats(nsqd, topic, "c")
        except ValueError:
            return not life.finished  # cancelled before SUB: there is no channel
        if stats["clients"] or stats["in_flight_count"] or stats["deferred_count"]:
            return False
        # A message may have been finished by a FIN that the cancelled end has not sent.
        return bool(stats["depth"] >= len(BODIES) - len(set(life.finished)))

    try:
        until(has_settled)
    except AssertionError as error:
        error.add_note(f"cancelled at step {at}: {channel_stats(nsqd, topic, 'c')}")
        raise


@more_in_soak
def test_a_producer_cancelled_at_any_step(nsqd: OpenBroker) -> None:
    """What was confirmed is at nsqd; the connection is closed; no task is left."""

    def live(at: int) -> int:
        topic, steps = f"swept-{next(_TOPICS)}", Steps(at)
        confirmed: list[bytes] = []

        async def publish() -> None:
            async with Producer(nsqd.tcp_address) as producer:
                for body in BODIES[:4]:
                    await producer.publish(topic, body)
                    confirmed.append(body)
                replies = [await producer.begin_publish(topic, body) for body in BODIES[4:]]
                for body, reply in zip(BODIES[4:], replies, strict=True):
                    await reply.wait()
                    confirmed.append(body)

        async def main() -> None:
            await steps.run(publish)

        run_in("asyncio", main)
        if confirmed:
            assert nsqd.broker.topic(topic).core.message_count >= len(confirmed)
        return steps.count

    count = live(0)
    assert count > 30
    for at in swept(count):
        live(at)
    until(lambda: not nsqd.broker.clients)
