"""Fake nsqds and nsqlookupds on real sockets: they answer as told, lie, hang, die."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import trio

from admin.daemon import running_nsqadmin
from admin.dashboard import Dashboard
from admin.options import NsqadminOptions
from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import HttpAnswer
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import Request

__all__ = ["Asked", "FakeNode", "Says", "ask", "fake_node", "nsqadmin", "producer", "stats_of"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Says = Callable[[Asked], "tuple[int, bytes] | bytes | None"]
"""Status and body; or raw bytes, after which the connection ends; None: no answer ever."""


@dataclass(slots=True)
class FakeNode:
    """A node. ``most`` is how many requests were under way at once."""

    says: Says
    address: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    under_way: int = 0
    most: int = 0
    pause: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    @property
    def paths(self) -> list[str]:
        """Of all that came: ``POST /topic/create topic=t``."""
        return [
            " ".join([a.method, a.path, *(f"{key}={value}" for key, value in a.query.items())])
            for a in self.asked
        ]

    async def serve(self, stream: trio.abc.Stream) -> None:
        """One connection."""
        self.connections += 1
        rest = b""
        try:
            while True:
                while b"\r\n\r\n" not in rest:
                    if not (data := await stream.receive_some(65536)):
                        return
                    rest += data
                head, _, rest = rest.partition(b"\r\n\r\n")
                asked, rest = await _rest_of(stream, head, rest)
                self.asked.append(asked)
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                try:
                    await self.pause()
                    answer = self.says(asked)
                    if answer is None:
                        await trio.sleep(math.inf)
                finally:
                    self.under_way -= 1
                if isinstance(answer, bytes):
                    await stream.send_all(answer)
                    return
                assert answer is not None
                status, body = answer
                line = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
                await stream.send_all(line.encode() + body)
        except trio.BrokenResourceError:
            return


async def _rest_of(stream: trio.abc.Stream, head: bytes, rest: bytes) -> tuple[Asked, bytes]:
    line, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value for key, _, value in (each.partition(": ") for each in lines)}
    length = int(headers.get("content-length", "0"))
    while len(rest) < length:
        rest += await stream.receive_some(65536)
    method, target, _ = line.split(" ")
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    return Asked(method, url.path, query, headers, rest[:length]), rest[length:]


@asynccontextmanager
async def fake_node(says: Says) -> AsyncIterator[FakeNode]:
    """A node that listens inside the context."""
    node = FakeNode(says)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        node.address = "{}:{}".format(*listeners[0].socket.getsockname()[:2])
        nursery.start_soon(trio.serve_listeners, node.serve, listeners)
        yield node
        nursery.cancel_scope.cancel()


def producer(address: str, *topics: str, **more: Any) -> dict[str, Any]:
    """An nsqd as nsqlookupd shows it, that is asked at ``address``."""
    host, _, port = address.rpartition(":")
    return {
        "remote_address": "10.0.0.1:5000",
        "hostname": f"host{port}",
        "broadcast_address": host,
        "tcp_port": int(port) + 1,
        "http_port": int(port),
        "version": "1.3.0",
        "tombstones": [False] * len(topics),
        "topics": list(topics),
        **more,
    }


def stats_of(topic: str, depth: int, *channels: str) -> bytes:
    """nsqd's /stats with one topic; each channel has the depth too."""
    return json.dumps(
        {
            "version": "1.3.0",
            "health": "OK",
            "topics": [
                {
                    "topic_name": topic,
                    "depth": depth,
                    "message_count": 10,
                    "channels": [{"channel_name": name, "depth": depth} for name in channels],
                }
            ],
        }
    ).encode()


@asynccontextmanager
async def nsqadmin(**options: Any) -> AsyncIterator[Dashboard]:
    """A real nsqadmin on a free port, open to all."""
    given = {"http_address": "127.0.0.1:0", **options}
    async with running_nsqadmin(NsqadminOptions(**given)) as dashboard:
        yield dashboard


async def ask(
    dashboard: Dashboard, method: str, path: str, body: bytes = b"", **headers: str
) -> HttpAnswer:
    """One request to nsqadmin; header names with _ for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(method, path, named, body)
    async with await trio.open_tcp_stream("127.0.0.1", dashboard.http_port) as stream:
        with trio.fail_after(60):
            return await exchange_http(SocketConnection(stream), request)
