"""Idempotent publishes to an nsqd that is killed, over connections that break. Real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from tests.processes import free_address, running_nsqd
from tests.soak import by_level, more_in_soak
from trionsq.client import Config, Consumer, Producer
from trionsq.hostport import parse_address
from trionsq.httpget import post

COUNT = by_level(test=1_000, short=20_000, full=100_000)
KILLS = by_level(test=1, short=4, full=20)
TASKS = 20
# Answers between two that get lost: each takes the connection along, and so up to TASKS others.
ANSWERS = 500
FLAGS = ["--storage=log", "--durability=always"]


class BreakingProxy:
    """Takes connections to nsqd, and breaks each in place of an answer.

    Attributes:
        sent: publishes that went through, repeats included.
    """

    def __init__(self, nsqd_address: str, random: Random) -> None:
        self.sent = 0
        self._nsqd = parse_address(nsqd_address)
        self._random = random

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its address."""
        async with trio.open_nursery() as nursery:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, self._serve, [listener])
            yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
            nursery.cancel_scope.cancel()

    async def _serve(self, client: trio.SocketStream) -> None:
        try:
            async with (
                await trio.open_tcp_stream(*self._nsqd) as nsqd,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._forward, client, nsqd)
                await self._answer(nsqd, client)
                nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # nsqd is not there, or was killed

    async def _forward(self, client: trio.SocketStream, nsqd: trio.SocketStream) -> None:
        tail = b""
        async for data in client:
            self.sent += (tail + data).count(b"PUB t ")
            tail = bytes(data[-5:])
            await nsqd.send_all(data)

    async def _answer(self, nsqd: trio.SocketStream, client: trio.SocketStream) -> None:
        left = self._random.randrange(1, 2 * ANSWERS)
        async for data in nsqd:
            left -= data.count(b"OK")
            if left <= 0:
                return
            await client.send_all(data)


class Progress:
    """How many publishes were answered, and who waits for how many."""

    def __init__(self) -> None:
        self.done = self._wanted = 0
        self._reached = trio.Event()

    def note(self) -> None:
        self.done += 1
        if self.done == self._wanted:
            self._reached.set()

    async def wait(self, count: int) -> None:
        if self.done < count:
            self._wanted, self._reached = count, trio.Event()
            await self._reached.wait()


@more_in_soak
async def test_each_message_is_stored_once(tmp_path: Path) -> None:
    """Whatever gets lost: nsqd by kill -9, connections, answers. The publisher sees nothing of it,
    and at the end each message is there exactly once."""
    random = Random(7)
    tcp_address = free_address()
    flags = [*FLAGS, f"--tcp-address={tcp_address}"]
    proxy, progress = BreakingProxy(tcp_address, random), Progress()
    numbers = iter(range(COUNT))

    async def publish(producer: Producer) -> None:
        for number in numbers:
            await producer.publish("t", b"%d" % number)
            progress.note()

    async with (
        proxy.listening() as address,
        trio.open_nursery() as nursery,
        Producer(address, idempotent=True, retry_s=200) as producer,
    ):
        for life in range(KILLS):
            async with running_nsqd(tmp_path, flags) as nsqd:
                if not life:
                    for command in ("topic/create?topic=t", "channel/create?topic=t&channel=c"):
                        url = f"http://{nsqd.http_address}/{command}"
                        assert (await post(url, b"", request_timeout_s=60.0)).status == 200
                    for _ in range(TASKS):
                        nursery.start_soon(publish, producer)
                most = COUNT * (life + 1) // (KILLS + 1)
                await progress.wait(most - random.randrange(COUNT // (KILLS + 1) // 2))
                os.kill(nsqd.process.pid, 9)
                await nsqd.process.wait()
        async with running_nsqd(tmp_path, flags):
            await progress.wait(COUNT)
            assert proxy.sent > COUNT
            await _each_once(tcp_address)


async def _each_once(tcp_address: str) -> None:
    found: dict[bytes, int] = {}
    config = Config(max_in_flight=2500)
    async with Consumer("t", "c", nsqd_tcp_addresses=[tcp_address], config=config) as messages:
        with trio.move_on_after(60) as waiting:
            async for message in messages:
                found[message.body] = found.get(message.body, 0) + 1
                message.finish()
                if len(found) == COUNT:
                    # Whatever is there twice comes before an orderly end, or has come.
                    waiting.deadline = min(waiting.deadline, trio.current_time() + 0.5)
    assert len(found) == COUNT
    assert set(found.values()) == {1}
