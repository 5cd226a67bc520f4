"""Replays against a real nsqd process on real sockets."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import trio
import trustme

from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import AuthServer, Connection, HttpAnswer, ServerUnderTest
from tests.golden.layers import RECEIVE_BYTES_MAX, upgraded
from tests.golden.transcripts import AuthStub, Request, Server
from tests.processes import NsqdFailedError, NsqdProcess, free_address, running_nsqd, split_address

REMOVALS_MAX = 100
SCAN_EVERY_CHANNEL = "--queue-scan-selection-count=1000"
_LOADING_S = 30.0
"""Each scan looks at this many channels, chosen at random: with the default of 20 and the
channels of a hundred cases on one server, a timeout would be noticed seconds too late."""


class SocketConnection:
    """A Connection over a socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        await self._stream.send_all(data)

    async def receive_some(self) -> bytes:
        """See Connection."""
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES_MAX))
        except trio.BrokenResourceError:
            return b""  # a reset: the server closed while bytes of ours lay unread

    async def shutdown_write(self) -> None:
        """See Connection."""
        await self._stream.send_eof()

    async def close(self) -> None:
        """See Connection."""
        await self._stream.aclose()


class ProcessUnderTest:
    """A ServerUnderTest that is a process."""

    def __init__(self, nsqd: NsqdProcess, fixed: Mapping[str, str]) -> None:
        self._nsqd = nsqd
        listening = {name.lower(): address for name, address in nsqd.addresses.items()}
        self.addresses: Mapping[str, str] = {
            f"{name}_addr": address for name, address in {**listening, **fixed}.items()
        }

    async def open_tcp(self) -> Connection:
        """See ServerUnderTest."""
        return await self._connect(self._nsqd.tcp_address)

    async def http(self, request: Request) -> HttpAnswer:
        """See ServerUnderTest."""
        connection: Connection
        if request.https:
            connection = await upgraded(await self._connect(self._nsqd.https_address), "tls")
        else:
            connection = await self._connect(self._nsqd.http_address)
        return await exchange_http(connection, request)

    async def remove_data_path(self) -> None:
        """See ServerUnderTest. nsqd may be writing a file there: then once more."""
        for _ in range(REMOVALS_MAX):
            shutil.rmtree(self._nsqd.data_path, ignore_errors=True)
            if not self._nsqd.data_path.exists():
                return
            await trio.lowlevel.checkpoint()
        raise OSError(f"{self._nsqd.data_path} does not go away")

    def log_tail(self) -> str:
        """See ServerUnderTest."""
        return self._nsqd.log_tail()

    async def _connect(self, address: str) -> SocketConnection:
        try:
            return SocketConnection(await trio.open_tcp_stream(*split_address(address)))
        except OSError as error:
            raise NsqdFailedError(
                f"{error}; nsqd's exit code: {self._nsqd.process.poll()}\n{self.log_tail()}"
            ) from error


@dataclass(slots=True)
class AuthStubServer:
    """The running stub: where it listens and what it was asked."""

    address: str
    requests: list[Mapping[str, object]] = field(default_factory=list)


class SocketPlace:
    """Starts processes and stubs under one temporary directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._certificate: tuple[str, ...] = ()

    @asynccontextmanager
    async def start_server(
        self, wanted: Server, auth_address: str | None
    ) -> AsyncIterator[ServerUnderTest]:
        """See ServerStarter."""
        data_path = self._directory / f"nsqd{next(self._numbers)}"
        data_path.mkdir()
        flags = [flag.replace("{{auth_addr}}", auth_address or "") for flag in wanted.args]
        if not wanted.fresh:
            flags.append(SCAN_EVERY_CHANNEL)
        if wanted.tls:
            flags += self._certificate_flags()
        fixed = {}
        if wanted.fixed_ports:
            fixed = {name: free_address() for name in ("tcp", "http", "https")}
            flags += [f"--{name}-address={address}" for name, address in fixed.items()]
        async with running_nsqd(data_path, flags, https=wanted.tls) as nsqd:
            # It listens before it has read its data path, which a transcript may take away.
            with trio.fail_after(_LOADING_S):
                while not (data_path / "nsqd.dat").exists():  # noqa: ASYNC110
                    await trio.sleep(0.01)
            yield ProcessUnderTest(nsqd, fixed)

    @asynccontextmanager
    async def start_auth(self, stub: AuthStub) -> AsyncIterator[AuthServer]:
        """See AuthStarter."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            host, port = listeners[0].socket.getsockname()[:2]
            server = AuthStubServer(f"{host}:{port}")

            async def answer(stream: trio.SocketStream) -> None:
                async with stream:
                    await _answer_auth(stream, stub, server)

            nursery.start_soon(trio.serve_listeners, answer, listeners)
            yield server
            nursery.cancel_scope.cancel()

    def _certificate_flags(self) -> tuple[str, ...]:
        if not self._certificate:
            issued = trustme.CA().issue_cert("127.0.0.1")
            key, cert = self._directory / "key.pem", self._directory / "cert.pem"
            issued.private_key_pem.write_to_path(key)
            issued.cert_chain_pems[0].write_to_path(cert)
            self._certificate = (f"--tls-cert={cert}", f"--tls-key={key}")
        return self._certificate


async def _answer_auth(stream: trio.SocketStream, stub: AuthStub, server: AuthStubServer) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        data = await stream.receive_some(RECEIVE_BYTES_MAX)
        if not data:
            return
        head += data
    method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    server.requests.append({"method": method, "path": url.path, "query": query})
    body = json.dumps(stub.body).encode()
    answer = f"HTTP/1.1 {stub.status} X\r\nContent-Type: application/json\r\n"
    answer += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await stream.send_all(answer.encode() + body)
