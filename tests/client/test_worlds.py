"""The client over sockets in each of the worlds: trio, asyncio, uvloop."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.client.worlds import WORLDS, World, channel_stats, in_thread, run_in, until
from tests.secured import SECRET, Papers, auth_server, make_papers
from trionsq.client import (
    AuthError,
    Config,
    ConnectError,
    Consumer,
    Message,
    NotConnectedError,
    Producer,
    ProtocolError,
    StoppedError,
    UpgradeError,
)
from trionsq.testing import OpenBroker, broker_in_thread, open_broker

COUNT = 2000
CONFIG = Config(max_in_flight=200, lookupd_poll_interval_s=0.1, backoff_multiplier_s=0.05)

pytestmark = pytest.mark.parametrize("world", WORLDS)


@pytest.fixture(scope="module")
def nsqd() -> Iterator[OpenBroker]:
    """An nsqd in a thread."""
    with broker_in_thread() as opened:
        yield opened


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates."""
    return make_papers(tmp_path_factory.mktemp("papers"))


@pytest.mark.parametrize("style", ["messages", "batches", "run"])
def test_each_message_arrives_once(style: str, world: World, nsqd: OpenBroker) -> None:
    """Every way to publish and every way to consume, and nothing is left at nsqd."""
    topic = f"once-{style}-{world}"
    expected = [b"%d" % number for number in range(COUNT)]
    found: list[bytes] = []

    async def publish() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish_many(topic, expected[:1000])
            await producer.publish_deferred(topic, expected[1000], 0.05)
            replies = [await producer.begin_publish(topic, body) for body in expected[1001:1900]]
            for reply in replies:
                await reply.wait()
            async with anyio.create_task_group() as tasks:
                for body in expected[1900:]:
                    tasks.start_soon(producer.publish, topic, body)

    async def main() -> None:
        async with Consumer(
            topic, "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG
        ) as consumer:

            async def handle(message: Message) -> None:
                await anyio.lowlevel.checkpoint()
                found.append(message.body)
                if len(found) == COUNT:
                    consumer.stop()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                if style == "run":
                    await consumer.run(handle, concurrency=10)
                elif style == "messages":
                    async for message in consumer:
                        await handle(message)
                        message.finish()
                else:
                    async for batch in consumer.batches(finish=True):
                        found.extend(batch.bodies)
                        if len(found) == COUNT:
                            consumer.stop()
            assert consumer.stats().finished == COUNT
            with pytest.raises(StoppedError):
                await consumer.next_batch()

    run_in(world, main)
    assert sorted(found) == sorted(expected)
    stats = channel_stats(nsqd, topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (0, 0, 0)


@pytest.mark.parametrize("compression", ["deflate", "snappy"])
def test_all_layers_at_once(compression: str, world: World, papers: Papers) -> None:
    """Each message arrives once through TLS and compression, behind AUTH; who is not trusted and
    who has no secret is refused."""

    @asynccontextmanager
    async def secured() -> AsyncIterator[OpenBroker]:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(auth_server())
            options: dict[str, Any] = {"auth_http_address": (server.address,)}
            yield await stack.enter_async_context(open_broker(**papers.nsqd_options, **options))

    config = Config(
        max_in_flight=1000, auth_secret=SECRET, tls_v1=True, tls_root_ca_file=papers.ca
    ).parse(compression)
    bodies = [b"%d " % number * (1 + number % 300) for number in range(500)] + [b"7" * 900_000]
    found: list[bytes] = []

    async def main() -> None:
        for wrong, error in (
            (replace(config, tls_root_ca_file=papers.stranger), UpgradeError),
            (replace(config, auth_secret="wrong"), AuthError),
        ):
            async with Producer(address, config=wrong) as producer:
                with pytest.raises(error):
                    await producer.publish("t", b"x")
        async with (
            Producer(address, config=config) as producer,
            Consumer("t", "c", nsqd_tcp_addresses=[address], config=config) as consumer,
        ):
            for first in range(0, len(bodies), 100):
                await producer.publish_many("t", bodies[first : first + 100])
            while len(found) < len(bodies):
                batch = await consumer.next_batch()
                found.extend(batch.bodies)
                batch.finish()

    with in_thread(secured) as opened:
        address = opened.tcp_address
        run_in(world, main)
    assert sorted(found) == sorted(bodies)


@contextmanager
def lookupd(*nsqds: OpenBroker) -> Iterator[ThreadingHTTPServer]:
    """An nsqlookupd that knows these nsqds."""
    addresses = [nsqd.tcp_address.rpartition(":") for nsqd in nsqds]
    producers = [{"broadcast_address": host, "tcp_port": int(port)} for host, _, port in addresses]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"producers": producers}).encode()
            self.send_response(200)
            self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_discovery_and_a_message_that_fails(world: World, nsqd: OpenBroker) -> None:
    """nsqlookupd names the nsqd; while it is gone, the known one goes on. A handler's failure
    requeues the message and pauses the consumer; the message is given up after max_attempts."""
    topic = f"found-{world}"
    handled: list[bytes] = []
    given_up: list[bytes] = []
    config = replace(CONFIG, max_attempts=2, default_requeue_delay_s=0)

    async def main() -> None:
        with lookupd(nsqd) as server:
            async with Producer(nsqd.tcp_address) as producer:
                await producer.publish(topic, b"first")
                address = f"127.0.0.1:{server.server_address[1]}"

                async def give_up(message: Message) -> None:
                    given_up.append(message.body)
                    consumer.stop()

                async def handle(message: Message) -> None:
                    if message.body == b"bad":
                        raise ValueError("bad")
                    handled.append(message.body)
                    server.server_close()
                    await producer.publish(topic, b"bad")

                async with Consumer(
                    topic,
                    "c",
                    lookupd_http_addresses=[address, "127.0.0.1:1"],
                    config=config,
                    on_give_up=give_up,
                ) as consumer:
                    await consumer.run(handle)
                    assert consumer.stats().given_up == 1

    run_in(world, main)
    assert (handled, given_up) == ([b"first"], [b"bad"])


def test_nsqd_restarts(world: World, tmp_path: Path) -> None:
    """What was confirmed is consumed, although nsqd stops in between; the producer reconnects."""
    found: set[bytes] = set()
    confirmed: set[bytes] = set()
    with broker_in_thread(tmp_path) as opened:
        address = opened.tcp_address
    is_down, is_up = threading.Event(), threading.Event()
    failures = 0

    def restart() -> None:
        with broker_in_thread(tmp_path, tcp_address=address):
            is_up.set()
            until(lambda: len(found) >= 200)
        is_down.set()
        until(lambda: failures > 0)
        with broker_in_thread(tmp_path, tcp_address=address):
            until(lambda: len(confirmed) >= 600 and confirmed <= found)
            done.set()

    done = threading.Event()
    thread = threading.Thread(target=restart)
    thread.start()
    is_up.wait()

    async def publish() -> None:
        nonlocal failures
        async with Producer(address) as producer:
            for number in range(600):
                body = b"%d" % number
                while body not in confirmed:
                    try:
                        await producer.publish("t", body)
                    except (ConnectError, NotConnectedError, ProtocolError):
                        failures += 1
                        await anyio.sleep(0.01)
                    else:
                        confirmed.add(body)
                    # The rest is for the second nsqd.
                    while len(confirmed) >= 300 and not is_down.is_set():  # noqa: ASYNC110
                        await anyio.sleep(0.01)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            async with Consumer("t", "c", nsqd_tcp_addresses=[address], config=CONFIG) as consumer:
                while not done.is_set():
                    with anyio.move_on_after(0.05):
                        batch = await consumer.next_batch()
                        found.update(batch.bodies)
                        batch.finish()

    try:
        run_in(world, main)
    finally:
        thread.join()


@pytest.mark.parametrize("style", ["messages", "run", "publish"])
def test_a_timeout_of_anyio_ends_it(style: str, world: World, nsqd: OpenBroker) -> None:
    """After a cancellation the unanswered messages are back at nsqd, and no connection is left."""
    topic = f"cancelled-{style}-{world}"
    found: list[bytes] = []

    async def main() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish_many(topic, [b"%d" % number for number in range(100)])
        with anyio.move_on_after(0.1) as scope:
            async with (
                Producer(nsqd.tcp_address) as producer,
                Consumer(
                    topic, "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG
                ) as consumer,
            ):
                if style == "publish":
                    while True:
                        await producer.publish(topic + "-other", b"x")
                elif style == "run":
                    await consumer.run(lambda _: anyio.sleep_forever(), concurrency=10)
                async for message in consumer:
                    if len(found) < 10:
                        found.append(message.body)
                        message.finish()
        assert scope.cancelled_caught

    run_in(world, main)
    stats = channel_stats(nsqd, topic, "c")
    assert stats["depth"] == 100 - len(found)
    assert (stats["in_flight_count"], stats["clients"]) == (0, [])
