"""Connections to a real nsqd: the TCP protocol and keep-alive HTTP, over plain sockets."""

from __future__ import annotations

import json
import time
from typing import Any, Self

import trio

from tests.processes import split_address
from trionsq.wire import commands
from trionsq.wire.client import ClientDecoder, Frame, Response
from trionsq.wire.frames import HEARTBEAT_DATA

RECEIVE_BYTES_MAX = 256 * 1024


class ConnectionEndedError(Exception):
    """nsqd closed or reset the connection, or does not listen any more."""


class NsqConnection:
    """A client's connection; heartbeats are answered and not shown while frames are read."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = ClientDecoder()
        # When the last two reads that left nothing in the socket ended.
        self._emptied_s = (0.0, 0.0)

    @classmethod
    async def open(cls, address: str) -> NsqConnection:
        """Connect to ``host:port`` and send the magic; raises ConnectionEndedError."""
        connection = cls(await _open_stream(address))
        await connection.send(commands.MAGIC_V2)
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await trio.aclose_forcefully(self._stream)

    @property
    def sent_after_s(self) -> float:
        """nsqd sent the last frames after this time, of `time.monotonic`.

        It may be long before they were read, if this process or nsqd stood still.
        """
        return self._emptied_s[0]

    async def send(self, data: bytes) -> None:
        """Send it all; raises ConnectionEndedError."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise ConnectionEndedError(str(error)) from error

    async def frames(self) -> list[Frame]:
        """What comes next, at least one frame; raises ConnectionEndedError at the end."""
        while True:
            taken = self._decoder.pop_frames()
            frames = [frame for frame in taken if frame != Response(HEARTBEAT_DATA)]
            if len(frames) < len(taken):
                await self.send(commands.nop())
            if frames:
                return frames
            before_s = time.monotonic()
            data = await _received(self._stream)
            if len(data) < RECEIVE_BYTES_MAX:
                self._emptied_s = (self._emptied_s[1], before_s)
            self._decoder.feed(data)

    async def subscribe(self, topic: str, channel: str, ready_count: int) -> None:
        """SUB and, after its OK, RDY; raises ConnectionEndedError or ValueError if refused."""
        await self.send(commands.subscribe(topic, channel))
        answer = await self.frames()
        if answer != [Response(b"OK")]:
            raise ValueError(f"SUB {topic} {channel} was answered by {answer}")
        await self.send(commands.ready(ready_count))


class HttpConnection:
    """A keep-alive HTTP connection for requests whose answer states its length."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()

    @classmethod
    async def open(cls, address: str) -> HttpConnection:
        """Connect to ``host:port``; raises ConnectionEndedError."""
        return cls(await _open_stream(address))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await trio.aclose_forcefully(self._stream)

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer; raises ConnectionEndedError."""
        head = f"{method} {path} HTTP/1.1\r\nHost: nsqd\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            await self._stream.send_all(head.encode() + body)
        except trio.BrokenResourceError as error:
            raise ConnectionEndedError(str(error)) from error
        status_line, *lines = (await self._read_until(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        if headers.get(b"transfer-encoding") == b"chunked":
            return int(status_line.split()[1]), await self._read_chunks()
        return int(status_line.split()[1]), await self._read(int(headers[b"content-length"]))

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int(await self._read_until(b"\r\n"), 16):
            body += await self._read(size)
            await self._read_until(b"\r\n")
        await self._read_until(b"\r\n")
        return body

    async def _read_until(self, mark: bytes) -> bytes:
        while (end := self._received.find(mark)) < 0:
            self._received += await _received(self._stream)
        return (await self._read(end + len(mark)))[:end]

    async def _read(self, count: int) -> bytes:
        while len(self._received) < count:
            self._received += await _received(self._stream)
        data = bytes(self._received[:count])
        del self._received[:count]
        return data


async def http_request(address: str, method: str, path: str) -> bytes:
    """The body of an answer 200 on a connection of its own.

    Raises:
        ConnectionEndedError: no answer.
        ValueError: another status.
    """
    async with await HttpConnection.open(address) as connection:
        status, body = await connection.request(method, path)
    if status != 200:
        raise ValueError(f"{method} {path}: {status} {body!r}")
    return body


async def read_stats(http_address: str) -> list[dict[str, Any]]:
    """``topics`` of /stats; raises what ``http_request`` does."""
    body = await http_request(http_address, "GET", "/stats?format=json&include_mem=false")
    topics: list[dict[str, Any]] = json.loads(body)["topics"]
    return topics


async def _open_stream(address: str) -> trio.SocketStream:
    try:
        return await trio.open_tcp_stream(*split_address(address))
    except OSError as error:
        raise ConnectionEndedError(str(error)) from error


async def _received(stream: trio.SocketStream) -> bytes:
    try:
        data = bytes(await stream.receive_some(RECEIVE_BYTES_MAX))
    except trio.BrokenResourceError as error:
        raise ConnectionEndedError(str(error)) from error
    if not data:
        raise ConnectionEndedError("closed")
    return data
