"""What only asyncio has: cancellation that comes once, its task groups and timeouts, Ctrl-C, and
objects that are opened in one task and closed in another.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.client.worlds import ASYNCIO, World, channel_stats, run_in, until
from trionsq.client import Config, Consumer, Message, Producer, StoppedError
from trionsq.testing import OpenBroker, broker_in_thread

CONFIG = Config(max_in_flight=20, lookupd_poll_interval_s=0.1)

pytestmark = pytest.mark.parametrize("world", ASYNCIO)


@pytest.fixture(scope="module")
def nsqd() -> Iterator[OpenBroker]:
    """An nsqd in a thread."""
    with broker_in_thread() as opened:
        yield opened


def consumer_of(nsqd: OpenBroker, topic: str) -> Consumer:
    """A consumer of this nsqd."""
    return Consumer(topic, "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG)


async def publish(nsqd: OpenBroker, topic: str, count: int = 30) -> None:
    """Publish so many messages."""
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, [b"%d" % number for number in range(count)])


def check_returned(nsqd: OpenBroker, topic: str, depth: int = 30) -> None:
    """All unanswered messages are at nsqd again, by REQ; no connection is left."""
    stats = channel_stats(nsqd, topic, "c")
    assert (stats["depth"], stats["in_flight_count"]) == (depth, 0)
    assert (stats["clients"], stats["timeout_count"]) == ([], 0)


def test_a_timeout_of_asyncio(world: World, nsqd: OpenBroker) -> None:
    """`asyncio.timeout` raises TimeoutError, and the messages go back."""
    topic = f"timeout-{world}"
    handled: list[Message] = []

    async def main() -> None:
        async def handle(message: Message) -> None:
            handled.append(message)
            if len(handled) == 5:
                timeout.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(3600)
            handled.clear()

        await publish(nsqd, topic)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600) as timeout, consumer_of(nsqd, topic) as consumer:
                await consumer.run(handle, concurrency=5)
        assert len(handled) == 5
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    run_in(world, main)
    check_returned(nsqd, topic)


def test_a_task_group_of_asyncio(world: World, nsqd: OpenBroker) -> None:
    """A task that fails ends the consumer and the producer beside it."""
    topic = f"group-{world}"

    received = asyncio.Event()

    async def consume() -> None:
        async with consumer_of(nsqd, topic) as consumer:
            await consumer.next_batch()
            received.set()
            await asyncio.sleep(3600)

    async def produce() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            while True:
                await producer.publish(topic + "-other", b"x")

    async def fail() -> None:
        await received.wait()
        raise ValueError("on purpose")

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            for work in (consume, produce, fail):
                group.create_task(work())

    async def main() -> None:
        await publish(nsqd, topic)
        with pytest.raises(ExceptionGroup) as caught:
            await together()
        assert caught.group_contains(ValueError, match="on purpose")

    run_in(world, main)
    check_returned(nsqd, topic)


def test_a_second_cancellation_cuts_the_drain_short(world: World, nsqd: OpenBroker) -> None:
    """Each await of the end is cancelled once more: the connections are closed all the same."""
    topic = f"twice-{world}"

    async def live(entered: asyncio.Event) -> None:
        async with consumer_of(nsqd, topic) as consumer, Producer(nsqd.tcp_address) as producer:
            await producer.ping()
            await consumer.next_batch()
            entered.set()
            await asyncio.sleep(3600)

    async def main() -> None:
        for turns in range(12):
            await publish(nsqd, topic, 1)
            entered = asyncio.Event()
            task = asyncio.create_task(live(entered))
            await entered.wait()
            task.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in(world, main)
    until(lambda: not channel_stats(nsqd, topic, "c")["clients"])


def test_a_publish_is_cancelled_and_others_go_on(world: World, nsqd: OpenBroker) -> None:
    """A cancelled publish takes no other one's answer: each knows of its own message."""
    topic = f"cancelled-publish-{world}"

    async def main() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            tasks = [asyncio.create_task(producer.publish(topic, b"%d" % n)) for n in range(300)]
            for number, task in enumerate(tasks):
                if number % 3 == 0:
                    task.cancel()
                if number % 50 == 0:
                    await asyncio.sleep(0)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(results):
                assert result is None or (
                    number % 3 == 0 and type(result).__name__ == "CancelledError"
                )
            with pytest.raises(ValueError, match="topic name is not valid"):
                await producer.publish("not a topic", b"x")
            await producer.publish(topic, b"last")

    run_in(world, main)


def test_opened_in_one_task_and_closed_in_another(world: World, nsqd: OpenBroker) -> None:
    """As the cells of a notebook do, and the fixtures of some test tools."""
    topic = f"cells-{world}"

    async def main() -> None:
        producer = Producer(nsqd.tcp_address)
        await asyncio.create_task(producer.__aenter__())
        await asyncio.create_task(producer.publish(topic, b"x"))
        consumer = consumer_of(nsqd, topic)
        await asyncio.create_task(consumer.__aenter__())
        batch = await asyncio.create_task(consumer.next_batch())
        assert batch.bodies == [b"x"]
        batch.finish()
        await asyncio.create_task(consumer.__aexit__(None, None, None))
        await asyncio.create_task(producer.__aexit__(None, None, None))
        with pytest.raises(StoppedError):
            await producer.publish(topic, b"x")

    run_in(world, main)
    check_returned(nsqd, topic, depth=0)


def test_stop_is_a_signal_handler(world: World, nsqd: OpenBroker) -> None:
    """``loop.add_signal_handler(SIGTERM, consumer.stop)`` drains, as programs on asyncio do it."""
    topic = f"sigterm-{world}"

    async def main() -> None:
        await publish(nsqd, topic)
        loop = asyncio.get_running_loop()
        handled = 0

        async def handle(_: Message) -> None:
            nonlocal handled
            if not handled:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.001)
            handled += 1

        async with consumer_of(nsqd, topic) as consumer:
            loop.add_signal_handler(signal.SIGTERM, consumer.stop)
            try:
                await consumer.run(handle, concurrency=5)
            finally:
                loop.remove_signal_handler(signal.SIGTERM)
            assert handled == consumer.stats().finished > 0

    run_in(world, main)
    assert channel_stats(nsqd, topic, "c")["in_flight_count"] == 0


def test_what_crashes_inside_is_raised_at_the_end(world: World, nsqd: OpenBroker) -> None:
    """An address filter that raises stops the consumer: who waits gets StoppedError, and the end
    of the body raises the error."""

    def refuse(_: str) -> bool:
        raise ZeroDivisionError("filter")

    async def consume() -> None:
        lookupds = ["127.0.0.1:1"]
        async with Consumer(
            "t", "c", lookupd_http_addresses=lookupds, address_filter=refuse, config=CONFIG
        ) as consumer:
            assert consumer._tasks is not None
            consumer._tasks.start_soon(consumer._connect_to, [nsqd.tcp_address])
            with pytest.raises(StoppedError):
                await consumer.next_batch()

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await consume()
        assert caught.group_contains(ZeroDivisionError)

    run_in(world, main)


def test_an_object_that_is_made_before_the_loop_runs(world: World, nsqd: OpenBroker) -> None:
    """A module may make its producer and its consumer when it is imported."""
    topic = f"early-{world}"
    producer, consumer = Producer(nsqd.tcp_address), consumer_of(nsqd, topic)

    async def main() -> None:
        async with producer, consumer:
            await producer.publish(topic, b"x")
            assert (await consumer.next_batch()).finish()

    run_in(world, main)


def test_ctrl_c(world: World, nsqd: OpenBroker) -> None:
    """SIGINT ends the program as KeyboardInterrupt, and the messages of its handlers go back."""
    topic = f"interrupted-{world}"

    async def fill() -> None:
        await publish(nsqd, topic)

    run_in(world, fill)
    command = [sys.executable, "-m", "tests.client.asyncio_program", nsqd.tcp_address, topic, world]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        process.send_signal(signal.SIGINT)
        try:
            _, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
    assert complaints.splitlines()[-1] == b"KeyboardInterrupt"
    assert b"never retrieved" not in complaints
    assert process.returncode in (1, -signal.SIGINT)
    check_returned(nsqd, topic)
