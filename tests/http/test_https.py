"""HTTPS, and what plain HTTP answers where TLS is required; on real sockets."""

from __future__ import annotations

import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.transports.ends import (
    HOST,
    authority,
    client_context,
    issue,
    stranger,
    write_ca,
    write_pair,
)
from trionsq.http import serve
from trionsq.testing.broker import OpenBroker, open_broker
from trionsq.transports import tls

LIMIT_S = 60


class Https:
    """A broker with a certificate for 127.0.0.1, and the connections to it."""

    def __init__(self, opened: OpenBroker) -> None:
        self.broker = opened.broker
        assert opened.https_address == f"{HOST}:{self.broker.ports.https}"
        self.streams: list[trio.SocketStream] = []

    async def plain(self, port: int) -> trio.SocketStream:
        """A connection in clear."""
        stream = await trio.open_tcp_stream(HOST, port)
        self.streams.append(stream)
        return stream

    async def connect(self, context: ssl.SSLContext | None = None) -> trio.SSLStream[Any]:
        """A connection after its handshake."""
        plain = await self.plain(self.broker.ports.https)
        stream = trio.SSLStream(plain, context or client_context(), server_hostname=HOST)
        await stream.do_handshake()
        return stream


@asynccontextmanager
async def secure_broker(folder: Path, **options: Any) -> AsyncIterator[Https]:
    """It listens for HTTPS too."""
    cert, key = write_pair(folder)
    given = {"tls_cert": cert, "tls_key": key, "tls_root_ca_file": write_ca(folder)}
    with trio.fail_after(LIMIT_S):
        async with open_broker(**{**given, **options}) as opened:
            https = Https(opened)
            try:
                yield https
            finally:
                for stream in https.streams:
                    await trio.aclose_forcefully(stream)


async def exchange(stream: trio.abc.Stream, *requests: bytes) -> bytes:
    """All that comes back for requests the last of which asks to close."""
    await stream.send_all(b"".join(requests))
    came = b""
    while data := await stream.receive_some():
        came += data
    return came


def request(method: str, path: str, body: bytes = b"", *, close: bool = False) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return (head + ("Connection: close\r\n" if close else "") + "\r\n").encode() + body


def bodies(came: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in came.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("policy", ["", "require"])
async def test_both_ways_answer_on_one_connection(tmp_path: Path, policy: str) -> None:
    """Fast path and framework, small and large, one after the other; and the end of the stream."""
    async with secure_broker(tmp_path, tls_client_auth_policy=policy) as https:
        stream = await https.connect(client_context(issue(stranger(), "anybody")))
        body = bytes(range(256)) * 4000
        came = await exchange(
            stream,
            request("GET", "/ping"),
            request("POST", "/pub?topic=t", b"x"),
            request("POST", "/pub?topic=t", body),
            request("GET", "/info"),
            request("POST", "/pub?topic=t", body),
            request("GET", "/ping", close=True),
        )
        answers = bodies(came)
        assert [answers[place] for place in (0, 1, 2, 4, 5)] == [b"OK"] * 5
        assert json.loads(answers[3])["version"] == "1.3.0"
        core = https.broker.topics["t"].core
        assert (core.message_count, core.message_bytes) == (3, 2 * len(body) + 1)


async def test_the_policy_holds_for_https(tmp_path: Path) -> None:
    """Whoever has no certificate that can be verified gets no answer."""
    async with secure_broker(tmp_path, tls_client_auth_policy="require-verify") as https:
        for context, is_welcome in (
            (client_context(issue(authority(), "worker")), True),
            (client_context(issue(stranger(), "thief")), False),
            (client_context(), False),
        ):
            try:
                stream = await https.connect(context)
                came = await exchange(stream, request("GET", "/ping", close=True))
            except trio.BrokenResourceError:
                came = b""
            assert came.startswith(b"HTTP/1.1 200") == is_welcome


async def test_slow_handshakes_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on beside each other, and are given up after their time."""
    monkeypatch.setattr(serve, "HANDSHAKE_S", 2 * LIMIT_S)
    async with secure_broker(tmp_path) as https:
        silent = [await https.plain(https.broker.ports.https) for _ in range(20)]
        await silent[0].send_all(b"\x16\x03\x01")
        stream = await https.connect()
        assert (await exchange(stream, request("GET", "/ping", close=True))).endswith(b"OK")
        monkeypatch.setattr(serve, "HANDSHAKE_S", 0.1)
        late = [await https.plain(https.broker.ports.https) for _ in range(20)]
        await late[0].send_all(b"\x16\x03\x01")
        for each in late:
            assert await each.receive_some() == b""


async def test_plain_http_on_the_https_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Is closed, with no more than a line of debug in the log."""
    caplog.set_level(logging.INFO)
    async with secure_broker(tmp_path) as https:
        stream = await https.plain(https.broker.ports.https)
        came = b""
        with suppress(trio.BrokenResourceError):
            came = await exchange(stream, request("GET", "/ping"))
        assert b"HTTP/1.1" not in came
    assert not [text for text in caplog.messages if "failed" in text]


async def test_where_tls_is_required_http_refuses_all(tmp_path: Path) -> None:
    """Every path and method, on one connection; probes pass; the port is the real one."""
    async with secure_broker(tmp_path, tls_required="true") as https:
        stream = await https.plain(https.broker.ports.http)
        came = await exchange(
            stream,
            request("GET", "/ping"),
            request("POST", "/pub?topic=t", b"x"),
            request("OPTIONS", "/pub"),
            request("GET", "/nope"),
            request("GET", "/PING"),
            request("GET", "/live"),
            request("GET", "/stats", close=True),
        )
        refusal = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https.broker.ports.https
        assert bodies(came) == [refusal] * 5 + [b'{"status":"live"}', refusal]
        assert came.count(b"HTTP/1.1 403") == 6
        assert not https.broker.topics
        stream2 = await https.connect()
        assert (await exchange(stream2, request("GET", "/ping", close=True))).endswith(b"OK")


async def test_a_renewed_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    """Without a restart; a connection that there is goes on."""
    async with secure_broker(tmp_path) as https:
        context = client_context()
        context.check_hostname = False
        old = await https.connect(context)
        write_pair(tmp_path, name="renewed")
        seen = HOST
        while seen == HOST:
            await trio.sleep(0.05)
            certificate = (await https.connect(context)).getpeercert()
            seen = dict(pair for (pair,) in certificate["subject"])["commonName"]
        assert seen == "renewed"
        assert (await exchange(old, request("GET", "/ping", close=True))).endswith(b"OK")


async def test_without_a_certificate_nothing_listens() -> None:
    """--https-address has a default, and no effect alone."""
    async with open_broker(https_address="256.0.0.1:nonsense") as opened:
        assert (opened.broker.ports.https, opened.https_address) == (0, "")


async def test_a_client_that_resets_costs_nothing(tmp_path: Path) -> None:
    """Amid a request, with data under way."""
    async with secure_broker(tmp_path) as https:
        for _ in range(5):
            stream = await https.connect()
            await stream.send_all(request("POST", "/pub?topic=t", b"x" * 1000)[:-500])
            sock = stream.transport_stream.socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await stream.transport_stream.aclose()
        stream = await https.connect()
        assert (await exchange(stream, request("GET", "/ping", close=True))).endswith(b"OK")
        assert tls.HANDSHAKE_S == 5.0
