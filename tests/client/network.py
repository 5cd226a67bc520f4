"""Hosts that a client can connect to: brokers in memory, and peers that a test controls."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from typing import Self

import trio

from trionsq.broker.broker import Broker
from trionsq.testing.streams import MemoryStream, MemoryTransport, Pipe
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError

ADDRESS = "nsqd.test:4150"
IDENTIFIED = b'{"max_rdy_count":2500,"version":"1.3.0","auth_required":false}'


class Peer:
    """nsqd's end of a connection, controlled by a test."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self._heard = b""

    async def line(self) -> bytes:
        """Wait for the next command line; without its newline."""
        while b"\n" not in self._heard:
            await self._hear()
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    async def take(self, nbytes: int) -> bytes:
        """Wait for this many bytes."""
        while len(self._heard) < nbytes:
            await self._hear()
        taken, self._heard = self._heard[:nbytes], self._heard[nbytes:]
        return taken

    async def body(self) -> bytes:
        """Wait for a size and this many bytes."""
        return await self.take(int.from_bytes(await self.take(4), "big"))

    async def _hear(self) -> None:
        data = await self.stream.receive_some()
        if not data:
            raise EOFError("the client closed")
        self._heard += data

    async def say(self, *data: bytes) -> None:
        """Send bytes."""
        await self.stream.send_all(b"".join(data))

    async def refuse(self, code: str, text: str = "") -> None:
        """Send an error frame."""
        await self.say(frames.error(ProtocolError(code, text)))

    async def identify(self, answer: bytes = IDENTIFIED) -> bytes:
        """Receive the magic and IDENTIFY, and answer. Returns the JSON."""
        assert await self.take(4) == b"  V2"
        assert await self.line() == b"IDENTIFY"
        body = await self.body()
        await self.say(frames.response(answer))
        return body

    async def subscribe(self) -> Self:
        """Do everything that comes before RDY."""
        await self.identify()
        assert (await self.line()).startswith(b"SUB ")
        await self.say(frames.OK)
        return self

    async def deliver(self, *bodies: bytes, attempts: int = 1, first: int = 0) -> list[bytes]:
        """Send messages. Returns their ids, which count from ``first``."""
        ids = [b"%016x" % (first + index) for index in range(len(bodies))]
        for message_id, body in zip(ids, bodies, strict=True):
            await self.say(frames.message_frame(1, attempts, message_id, body))
        return ids

    async def gone(self) -> None:
        """Wait until the client has closed."""
        try:
            while True:
                await self._hear()
        except (EOFError, trio.BrokenResourceError):
            pass


class Network:
    """What a client dials into.

    Attributes:
        hosts: what serves a connection, by address. No entry: refused.
        dialled: address and time of each attempt.
        links: the client's ends so far.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, Callable[[MemoryTransport], object]] = {}
        self.dialled: list[tuple[str, float]] = []
        self.links: list[MemoryTransport] = []
        self._peers: dict[str, trio.MemoryReceiveChannel[Peer]] = {}

    @classmethod
    def of(cls, broker: Broker, address: str = ADDRESS) -> Network:
        """A network of one broker."""
        network = cls()
        network.hosts[address] = broker.connect
        return network

    def held(self, address: str = ADDRESS) -> Self:
        """Let the test control this host; see `peer`."""
        send, self._peers[address] = trio.open_memory_channel[Peer](math.inf)

        def serve(transport: MemoryTransport) -> None:
            send.send_nowait(Peer(MemoryStream(transport.incoming, transport.outgoing)))

        self.hosts[address] = serve
        return self

    async def peer(self, address: str = ADDRESS) -> Peer:
        """nsqd's end of the next connection to a held host."""
        return await self._peers[address].receive()

    async def dial(self, host: str, port: int, local_address: str) -> MemoryTransport:
        """See `trionsq.client.handshake.Dial`."""
        address = f"{host}:{port}"
        self.dialled.append((address, trio.current_time()))
        await trio.lowlevel.checkpoint()
        if address not in self.hosts:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        up, down = Pipe(65536), Pipe(65536)
        self.links.append(MemoryTransport(down, up))
        self.hosts[address](MemoryTransport(up, down))
        return self.links[-1]
