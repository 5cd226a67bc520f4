"""Clients over real sockets, whose commands the poller's task runs (trionsq.transports.poller)."""

from __future__ import annotations

import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.testing import open_broker
from trionsq.transports.watches import SocketWatch
from trionsq.wire import commands, frames
from trionsq.wire.states import MAGIC_V2

LIMIT_S = 60.0
ID = slice(18, 34)  # of the message in a frame
POLLER = "input of the clients"


@pytest.fixture(autouse=True)
def polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is left to its own task, however slow the machine is."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_TURN_S", LIMIT_S)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks that looked at input."""
    names: list[str] = []
    advance = Client.advance

    def noted(self: Client) -> object:
        names.append(trio.lowlevel.current_task().name)
        return advance(self)

    monkeypatch.setattr(Client, "advance", noted)
    return names


@asynccontextmanager
async def clients(count: int) -> AsyncIterator[tuple[Broker, list[trio.SocketStream]]]:
    """A broker, and so many clients that have sent the magic."""
    with trio.fail_after(LIMIT_S):
        async with AsyncExitStack() as stack:
            nsqd = await stack.enter_async_context(open_broker(log_level="error"))
            host, port = nsqd.tcp_address.split(":")
            streams = []
            for _ in range(count):
                streams.append(
                    await stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))
                )
                await streams[-1].send_all(MAGIC_V2)
            while polled_count(nsqd.broker) < count:
                await trio.lowlevel.checkpoint()
            yield nsqd.broker, streams


def polled_count(broker: Broker) -> int:
    """Connections that the poller serves; it also hears of the disk's writes."""
    watches = broker.context.poller._watches.values()
    return sum(isinstance(watch, SocketWatch) for watch in watches)


async def receive(stream: trio.SocketStream, expected: bytes) -> None:
    """Read that much, which must be that."""
    received = b""
    while len(received) < len(expected):
        data = await stream.receive_some(len(expected) - len(received))
        assert data, received
        received += data
    assert received == expected


async def test_commands_run_without_a_turn_of_their_client(tasks: list[str]) -> None:
    """Publish, subscribe, receive, finish: only what waits is done in the client's own task."""
    async with clients(2) as (_, (producer, consumer)):
        await producer.send_all(commands.publish("t", b"x"))
        await receive(producer, frames.OK)  # a new topic: the publisher's task waits
        await wait_all_tasks_blocked()
        tasks.clear()
        await consumer.send_all(commands.subscribe("t", "c") + commands.ready(1))
        await receive(consumer, frames.OK)
        for _ in range(30):
            await producer.send_all(commands.publish("t", b"y"))
            await receive(producer, frames.OK)
            message = await consumer.receive_some()
            await consumer.send_all(commands.finish(message[ID]))
        last = await consumer.receive_some()
        assert last.endswith(b"y")
        assert set(tasks) == {POLLER}


async def test_http_is_polled_until_the_framework_takes_over() -> None:
    """One poller for both protocols; a connection that it does not serve any more is not in it."""
    async with clients(2) as (broker, _):
        assert broker.ports.http is not None
        http = await trio.open_tcp_stream("127.0.0.1", broker.ports.http)
        async with http:
            await http.send_all(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await http.receive_some()).startswith(b"HTTP/1.1 200 OK")
            assert polled_count(broker) == 3
            await http.send_all(b"GET /info HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await http.receive_some()).startswith(b"HTTP/1.1 200")
            assert polled_count(broker) == 2


async def test_a_layer_ends_the_polling_of_its_client(tasks: list[str]) -> None:
    """After IDENTIFY with deflate the client waits by itself, for a layer holds input."""
    async with clients(2) as (broker, (first, second)):
        await first.send_all(commands.identify({"deflate": True, "feature_negotiation": True}))
        inflate = zlib.decompressobj(-15)
        received = await first.receive_some()
        while not (plain := inflate.decompress(received[4 + int.from_bytes(received[:4]) :])):
            received += await first.receive_some()
        assert plain == frames.OK
        assert polled_count(broker) == 1
        deflate = zlib.compressobj(wbits=-15)
        data = deflate.compress(commands.publish("t", b"x")) + deflate.flush(zlib.Z_SYNC_FLUSH)
        await first.send_all(data)
        assert inflate.decompress(await first.receive_some()) == frames.OK
        await wait_all_tasks_blocked()
        tasks.clear()
        await second.send_all(commands.publish("t", b"x"))
        await receive(second, frames.OK)
        assert set(tasks) == {POLLER}


async def test_a_defect_ends_one_client_only() -> None:
    """What the poller's task runs for a client fails in that client's task."""
    async with clients(2) as (broker, (first, second)):
        await second.send_all(commands.publish("t", b"x"))
        await receive(second, frames.OK)
        topic = broker.topics["t"]
        gathering, topic.gathering = topic.gathering, None  # type: ignore[assignment]
        await first.send_all(commands.publish("t", b"x"))
        assert await first.receive_some() == b""
        topic.gathering = gathering
        await second.send_all(commands.publish("t", b"x"))
        await receive(second, frames.OK)
        assert broker.client_failures == 1
        assert broker.defects.counts["poller"] == 0
        assert polled_count(broker) == 1


async def test_clients_of_a_deleted_channel_leave_the_poller() -> None:
    """Also the one whose command is behind in the same look at the epoll."""
    async with clients(3) as (broker, (first, second, third)):
        for stream in (first, second):
            await stream.send_all(commands.subscribe("t", "c"))
            await receive(stream, frames.OK)
        third_client = list(broker.clients)[2]
        await wait_all_tasks_blocked()
        broker.topics["t"].delete_channel("c")
        await first.send_all(commands.ready(1))
        await third.send_all(commands.nop())
        while broker.clients != {third_client: None}:
            await trio.lowlevel.checkpoint()
        assert polled_count(broker) == 1


async def test_a_half_closed_client_gets_its_answers() -> None:
    """What came before the end is answered, then the connection ends."""
    async with clients(1) as (broker, (stream,)):
        await stream.send_all(commands.publish("t", b"x") * 3)
        await stream.send_eof()
        await receive(stream, frames.OK * 3)
        assert await stream.receive_some() == b""
        while broker.clients:
            await trio.lowlevel.checkpoint()
        assert polled_count(broker) == 0


async def test_a_reset_ends_its_client() -> None:
    """A connection that breaks leaves nothing behind."""
    async with clients(2) as (broker, (first, _)):
        first.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await first.aclose()
        while len(broker.clients) > 1:
            await trio.lowlevel.checkpoint()
        assert (broker.client_failures, polled_count(broker)) == (0, 1)
