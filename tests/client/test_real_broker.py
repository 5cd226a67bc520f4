"""The client library against a real nsqd, over sockets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from trionsq.client import Config, Consumer, NotConnectedError, Producer
from trionsq.client.errors import ConnectError
from trionsq.testing import open_broker

COUNT = 100_000


async def until(is_so: Callable[[], bool]) -> None:
    """Wait up to 60 s until the condition holds."""
    with trio.fail_after(60):
        while not is_so():  # noqa: ASYNC110 - nothing tells
            await trio.sleep(0.01)


async def test_a_hundred_thousand_messages() -> None:
    """Two consumers receive each message exactly once."""
    found: set[bytes] = set()
    total = 0
    async with open_broker(mem_queue_size=COUNT) as nsqd, trio.open_nursery() as nursery:

        async def consume() -> None:
            nonlocal total
            config = Config(max_in_flight=1000)
            addresses = [nsqd.tcp_address]
            async with Consumer("t", "c", nsqd_tcp_addresses=addresses, config=config) as consumer:
                async for batch in consumer.batches():
                    total += len(batch)
                    found.update(batch.bodies)
                    batch.finish()
                    if total == COUNT:
                        nursery.cancel_scope.cancel()

        for _ in range(2):
            nursery.start_soon(consume)
        async with Producer(nsqd.tcp_address) as producer:
            for first in range(0, COUNT, 500):
                await producer.publish_many("t", [b"%d" % n for n in range(first, first + 500)])
    assert total == len(found) == COUNT


async def test_nsqd_restarts_under_load(tmp_path: Path) -> None:
    """Every confirmed message is consumed, although nsqd stops and starts again."""
    confirmed: set[bytes] = set()
    found: set[bytes] = set()
    refused = 0
    async with open_broker(tmp_path) as nsqd:
        address = nsqd.tcp_address

    async def publish() -> None:
        nonlocal refused
        async with Producer(address) as producer:
            with publishing:
                for number in range(1_000_000):
                    body = b"%d" % number
                    try:
                        await producer.publish("t", body)
                    except (ConnectError, NotConnectedError):
                        refused += 1
                        await trio.sleep(0.01)
                    else:
                        confirmed.add(body)

    async def consume() -> None:
        config = Config(max_in_flight=50, lookupd_poll_interval_s=0.05)
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], config=config) as consumer:
            async for message in consumer:
                found.add(message.body)
                message.finish()

    publishing = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        async with open_broker(tmp_path, tcp_address=address):
            nursery.start_soon(consume)
            nursery.start_soon(publish)
            await until(lambda: len(found) >= 500)
        before = len(confirmed)
        await until(lambda: refused > 0)
        async with open_broker(tmp_path, tcp_address=address):
            await until(lambda: len(confirmed) >= before + 500)
            publishing.cancel()
            await until(lambda: confirmed <= found)
            nursery.cancel_scope.cancel()
