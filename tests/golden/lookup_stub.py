"""A stub nsqlookupd on real sockets: it writes down what comes, and answers as it is told."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

__all__ = ["LookupStub", "lookup_stub"]

_RECEIVE_NBYTES = 4096


@dataclass(slots=True)
class LookupStub:
    """The running stub.

    Attributes:
        tcp_address: what nsqd is given.
        http_port: where it is asked for channels.
        channels: that it answers with.
        seen: a line for each thing that came, in order.
        heard: wakes whoever waits for more of them.
    """

    tcp_address: str = ""
    http_port: int = 0
    channels: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    heard: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    connections: set[trio.SocketStream] = field(default_factory=set)

    def note(self, line: str) -> None:
        """Write down what came."""
        self.seen.append(line)
        self.heard.unpark_all()

    async def drop_connections(self) -> None:
        """End all connections from this side; each is written down as an eof, as if it had come."""
        for stream in tuple(self.connections):
            self.connections.discard(stream)
            await stream.aclose()
            self.note("eof")

    async def serve_tcp(self, stream: trio.SocketStream) -> None:
        """One connection of an nsqd."""
        self.connections.add(stream)
        reader = _Reader(stream)
        try:
            self.note(f"magic {(await reader.exactly(4)).decode()}")
            while True:
                line = (await reader.line()).decode()
                if line == "IDENTIFY":
                    (size,) = struct.unpack(">i", await reader.exactly(4))
                    fields = json.loads(await reader.exactly(size))
                    line = f"IDENTIFY {json.dumps(_masked(fields))}"
                    answer = json.dumps(
                        {"broadcast_address": "127.0.0.1", "http_port": self.http_port}
                    ).encode()
                else:
                    answer = b"OK"
                self.note(line)
                await stream.send_all(struct.pack(">i", len(answer)) + answer)
        except (EOFError, trio.BrokenResourceError):
            self.note("eof")
        except trio.ClosedResourceError:
            return  # dropped from this side
        finally:
            self.connections.discard(stream)
            await stream.aclose()

    async def serve_http(self, stream: trio.SocketStream) -> None:
        """One question for channels."""
        async with stream:
            reader = _Reader(stream)
            method, target, _ = (await reader.line()).decode().split(" ")
            accept = ""
            while header := (await reader.line()).decode().strip():
                name, _, value = header.partition(":")
                if name.lower() == "accept":
                    accept = value.strip()
            self.note(f"HTTP {method} {target} Accept: {accept}")
            body = json.dumps({"channels": self.channels}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            await stream.send_all(head.encode() + body)


def _masked(fields: dict[str, object]) -> dict[str, object]:
    """As the recording has it: what differs from run to run is left out."""
    masks = {"hostname": "<str>", "http_port": "<int>", "tcp_port": "<int>", "version": "<version>"}
    for name, mask in masks.items():
        is_right = isinstance(fields[name], int if mask == "<int>" else str) and fields[name]
        fields[name] = mask if is_right else fields[name]
    return dict(sorted(fields.items()))


class _Reader:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def _more(self) -> None:
        data = await self._stream.receive_some(_RECEIVE_NBYTES)
        if not data:
            raise EOFError
        self._buffer += data

    async def exactly(self, nbytes: int) -> bytes:
        while len(self._buffer) < nbytes:
            await self._more()
        data, self._buffer = self._buffer[:nbytes], self._buffer[nbytes:]
        return data

    async def line(self) -> bytes:
        while b"\n" not in self._buffer:
            await self._more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@asynccontextmanager
async def lookup_stub() -> AsyncIterator[LookupStub]:
    """A stub that listens inside the context."""
    stub = LookupStub()
    async with trio.open_nursery() as nursery:
        [tcp] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        [http] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stub.tcp_address = f"127.0.0.1:{tcp.socket.getsockname()[1]}"
        stub.http_port = http.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, stub.serve_tcp, [tcp])
        nursery.start_soon(trio.serve_listeners, stub.serve_http, [http])
        yield stub
        nursery.cancel_scope.cancel()
