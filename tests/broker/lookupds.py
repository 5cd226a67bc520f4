"""nsqlookupds in memory, which do what a test tells them, and an nsqd that is given their names."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from trionsq.broker.broker import Broker
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryStream, MemoryTransport, memory_connection
from trionsq.wire import lookup

__all__ = ["HTTP_PORT", "TCP_PORT", "Lookupd", "Network", "cluster", "sized"]

TCP_PORT = 4160
HTTP_PORT = 4161


def sized(data: bytes) -> bytes:
    """An answer as it goes over the wire."""
    return struct.pack(">i", len(data)) + data


class Lookupd:
    """One nsqlookupd. Commands are named by their first word, the request for channels is HTTP.

    Attributes:
        is_up: connections are accepted.
        seen: commands and requests, in order, over all connections; ``(magic)`` and ``(eof)`` too.
        seen_s: when each of them came.
        dialed: how often it was connected to, by port, in vain or not.
        channels: that it answers with.
        answers: what is answered instead, by command; sizes and all.
        stalls: commands that are not answered; "connect" and "connect HTTP" never end.
        deadly: commands at which the connection is closed without an answer.
        faults: how often one of these three happened, by command.
        transports, streams: the two ends of each connection that nsqd keeps, its own and nsqd's.
        identity: what the last IDENTIFY said.
    """

    def __init__(self, host: str, nursery: trio.Nursery) -> None:
        self.host = host
        self.is_up = True
        self.seen: list[str] = []
        self.seen_s: list[float] = []
        self.dialed: Counter[int] = Counter()
        self.channels: list[str] = []
        self.answers: dict[str, bytes] = {}
        self.stalls: set[str] = set()
        self.deadly: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.transports: list[MemoryTransport] = []
        self.streams: list[MemoryStream] = []
        self.identity: dict[str, object] = {}
        self._nursery = nursery

    async def dial(self, port: int) -> trio.abc.Stream:
        """What nsqd connects by."""
        self.dialed[port] += 1
        what = "connect" if port == TCP_PORT else "connect HTTP"
        await trio.lowlevel.checkpoint()
        if what in self.stalls:
            self.faults[what] += 1
            await trio.sleep_forever()
        if not self.is_up:
            raise ConnectionRefusedError("refused")
        stream, transport = memory_connection()
        if port == TCP_PORT:
            self.transports.append(transport)
            self.streams.append(stream)
        self._nursery.start_soon(self._serve, transport, port)
        return stream

    def go_down(self) -> None:
        """Close all connections and refuse new ones, as a process that ended."""
        self.is_up = False
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        for transport in self.transports:
            # Not by closing: a task may wait for it.
            transport.outgoing.end()
            transport.incoming.end()
            transport.incoming.abandon()

    @property
    def open_connections(self) -> int:
        """Connections that nsqd has not let go of."""
        return sum(not stream._is_closed for stream in self.streams)

    def take_seen(self) -> list[str]:
        """What came since the last time."""
        seen = list(self.seen)
        self.seen.clear()
        self.seen_s.clear()
        return seen

    def _note(self, what: str) -> None:
        self.seen.append(what)
        self.seen_s.append(trio.current_time())

    async def _serve(self, transport: MemoryTransport, port: int) -> None:
        reader = _Reader(transport)
        try:
            if port == HTTP_PORT:
                await self._answer_http(reader)
            else:
                await self._converse(reader)
        except (EOFError, OSError):
            if port == TCP_PORT:
                self._note("(eof)")
        finally:
            transport.close()

    async def _converse(self, reader: _Reader) -> None:
        magic = await reader.exactly(4)
        assert magic == lookup.MAGIC_V1
        self._note("(magic)")
        while True:
            line = (await reader.until(b"\n")).decode()
            command = line.split(" ")[0]
            answer = sized(b"OK")
            if command == "IDENTIFY":
                (size,) = struct.unpack(">i", await reader.exactly(4))
                self.identity = json.loads(await reader.exactly(size))
                info = {"broadcast_address": self.host, "http_port": HTTP_PORT}
                answer = sized(json.dumps(info).encode())
            self._note(line)
            await self._answer(reader.transport, command, answer)

    async def _answer_http(self, reader: _Reader) -> None:
        request = (await reader.until(b"\r\n\r\n")).decode().split("\r\n")
        self._note(f"HTTP {request[0]}")
        assert "accept: application/vnd.nsq; version=1.0" in [line.lower() for line in request]
        body = json.dumps({"channels": self.channels}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        await self._answer(reader.transport, "HTTP", head + body)

    async def _answer(self, transport: MemoryTransport, command: str, answer: bytes) -> None:
        if command in self.stalls:
            self.faults[command] += 1
            await trio.sleep_forever()
        if command in self.deadly:
            self.faults[command] += 1
            raise EOFError
        if command in self.answers:
            self.faults[command] += 1
            answer = self.answers[command]
        while answer:
            answer = answer[transport.send_nowait(answer) :]
            if answer:
                await transport.wait_writable()


class _Reader:
    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self._buffer = b""

    async def _more(self) -> None:
        while (data := self.transport.receive_nowait(4096)) is None:
            await self.transport.wait_readable()
        if not data:
            raise EOFError
        self._buffer += data

    async def exactly(self, nbytes: int) -> bytes:
        while len(self._buffer) < nbytes:
            await self._more()
        data, self._buffer = self._buffer[:nbytes], self._buffer[nbytes:]
        return data

    async def until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            await self._more()
        data, _, self._buffer = self._buffer.partition(mark)
        return data


class Network:
    """nsqlookupds by host name."""

    def __init__(self, nursery: trio.Nursery, hosts: Iterable[str]) -> None:
        self.lookupds = {host: Lookupd(host, nursery) for host in hosts}

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        """As `trio.open_tcp_stream`."""
        if host not in self.lookupds:
            raise OSError(f"{host} is not known")
        return await self.lookupds[host].dial(port)

    def connect(self, broker: Broker) -> None:
        """Give the nsqd all of them."""
        broker.ports.tcp, broker.ports.http = 4150, 4151
        broker.lookups.dial = self.dial
        broker.live_options.change_lookupds(tuple(f"{host}:{TCP_PORT}" for host in self.lookupds))


@asynccontextmanager
async def cluster(
    *hosts: str, topics: Iterable[str] = (), **options: Any
) -> AsyncIterator[tuple[Broker, list[Lookupd]]]:
    """An nsqd that is registered at an nsqlookupd on each host.

    Args:
        hosts: names without meaning.
        topics: there before the nsqlookupds are.
        options: of the nsqd.
    """
    async with trio.open_nursery() as nursery:
        async with nsqd_in_memory(**options) as broker:
            for topic in topics:
                broker.topic(topic)
            network = Network(nursery, hosts)
            network.connect(broker)
            await wait_all_tasks_blocked()
            yield broker, list(network.lookupds.values())
        nursery.cancel_scope.cancel()
