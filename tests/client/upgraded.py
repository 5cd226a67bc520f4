"""An nsqd for tests that offers TLS, snappy and deflate and requires a secret."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path

import trio
import trustme

from tests.client.network import ADDRESS, Network
from trionsq.client import Config
from trionsq.testing.streams import MemoryTransport
from trionsq.transports.compression import DeflateLayer, SnappyLayer
from trionsq.transports.tls import SslEngine, start_tls
from trionsq.transports.transport import Layer, LayeredTransport, Transport
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError

HOST = ADDRESS.partition(":")[0]
SECRET = "hush"


@cache
def authority() -> trustme.CA:
    """The trusted authority."""
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@cache
def stranger() -> trustme.CA:
    """An authority that is not trusted."""
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def server_context(ca: trustme.CA | None = None, name: str = HOST) -> ssl.SSLContext:
    """A TLS context with a certificate for the name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (ca or authority()).issue_cert(name).configure_cert(context)
    return context


def trusting(folder: Path, **options: object) -> Config:
    """Options with TLS and the trusted authority."""
    path = folder / "ca.pem"
    authority().cert_pem.write_to_path(str(path))
    return Config(tls_v1=True, tls_root_ca_file=str(path), **options)  # type: ignore[arg-type]


class CutTransport:
    """A transport that returns only as many bytes at once as the test says. See `Transport`."""

    def __init__(self, inner: MemoryTransport, sizes: list[int]) -> None:
        self._inner = inner
        self._sizes: Iterator[int] = cycle(sizes)
        self.peer, self.host = inner.peer, inner.host
        self.wait_readable, self.wait_writable = inner.wait_readable, inner.wait_writable
        self.end_sending, self.close = inner.end_sending, inner.close

    def receive_nowait(self, nbytes_max: int) -> bytes | None:
        return self._inner.receive_nowait(min(nbytes_max, next(self._sizes)))

    def send_nowait(self, data: bytes | memoryview) -> int:
        return self._inner.send_nowait(data[: next(self._sizes)])


@dataclass
class Secured:
    """One connection to an nsqd which grants what it is asked for, up to ``stop_at``.

    Attributes:
        context: for TLS; None: it has none.
        wants_secret: whether AUTH is needed.
        stop_at: the step instead of which ``instead`` is done: ``tls``, ``tls_ok``, ``deflate``,
            ``snappy``, ``auth``.
        instead: bytes to say in the layer of that moment, and then nothing; b"" closes.
        identity: what the client said of itself.
        secret: what it sent.
        layers: what lies over the connection.
        published: bodies.
    """

    context: ssl.SSLContext | None = None
    wants_secret: bool = False
    stop_at: str = ""
    instead: bytes | None = None
    identity: dict[str, object] = field(default_factory=dict)
    secret: bytes = b""
    layers: list[str] = field(default_factory=list)
    published: list[bytes] = field(default_factory=list)

    async def serve(self, transport: Transport) -> None:
        """Serve until the client closes."""
        self._transport = transport
        self._heard = b""
        try:
            await self._begin()
            while True:
                assert (await self._line()).startswith(b"PUB ")
                self.published.append(await self._body())
                await self._say(frames.response(b"OK %d" % len(self.published)))
        except (OSError, EOFError, _StoppedError):
            pass
        finally:
            transport.close()

    async def _begin(self) -> None:
        assert await self._take(4) == b"  V2"
        assert await self._line() == b"IDENTIFY"
        self.identity = json.loads(await self._body())
        wanted = {name: bool(self.identity[name]) for name in ("tls_v1", "deflate", "snappy")}
        wanted["tls_v1"] &= self.context is not None
        answer = frames.response(
            json.dumps({**wanted, "auth_required": self.wants_secret}).encode()
        )
        layers: dict[str, Layer] = {"deflate": DeflateLayer(6), "snappy": SnappyLayer()}
        if wanted["tls_v1"]:
            await self._say(answer)
            answer = b""
            await self._stop("tls")
            assert self.context is not None
            assert not self._heard
            engine = SslEngine(self.context, server_side=True)
            self._transport = await start_tls(self._transport, engine)
            self.layers.append("tls")
            await self._stop("tls_ok")
            answer = frames.OK
        for name, layer in layers.items():
            if wanted[name]:
                # What is in clear yet and the first word of the layer arrive in one piece.
                if self.stop_at == name:
                    await self._say(answer)
                    await self._stop(name)
                await self._say(answer + layer.encode(frames.OK))
                self._transport = LayeredTransport(self._transport, layer)
                self.layers.append(name)
                answer = b""
        await self._say(answer)
        if self.wants_secret:
            assert await self._line() == b"AUTH"
            self.secret = await self._body()
            await self._stop("auth")
            if self.secret != SECRET.encode():
                await self._say(frames.error(ProtocolError("E_AUTH_FAILED", "AUTH failed")))
                raise _StoppedError
            await self._say(frames.response(b'{"identity":"","permission_count":1}'))

    async def _stop(self, step: str) -> None:
        if self.stop_at != step:
            return
        if self.instead is None:
            await self._hear_forever()
        elif self.instead:
            await self._say(self.instead)
            await self._hear_forever()
        raise _StoppedError

    async def _hear_forever(self) -> None:
        while True:
            await self._hear()

    async def _say(self, data: bytes) -> None:
        while data := data[self._transport.send_nowait(data) :]:
            await self._transport.wait_writable()

    async def _line(self) -> bytes:
        while b"\n" not in self._heard:
            await self._hear()
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    async def _take(self, nbytes: int) -> bytes:
        while len(self._heard) < nbytes:
            await self._hear()
        taken, self._heard = self._heard[:nbytes], self._heard[nbytes:]
        return taken

    async def _body(self) -> bytes:
        return await self._take(int.from_bytes(await self._take(4), "big"))

    async def _hear(self) -> None:
        await self._transport.wait_readable()
        data = self._transport.receive_nowait(65536)
        if data == b"":
            raise EOFError
        self._heard += data or b""


class _StoppedError(Exception):
    """This nsqd stops here."""


class SecuredNetwork(Network):
    """A network whose host at ADDRESS is such an nsqd; connections are served in turn."""

    def __init__(
        self, nursery: trio.Nursery, *nsqds: Secured, sizes: list[int] | None = None
    ) -> None:
        super().__init__()
        self._waiting = list(nsqds)
        self._sizes = sizes or [65536]
        self.hosts[ADDRESS] = lambda transport: nursery.start_soon(
            self._waiting.pop(0).serve, transport
        )

    async def dial_cut(self, host: str, port: int, local_address: str) -> CutTransport:
        """See `trionsq.client.handshake.Dial`; received bytes come in pieces."""
        return CutTransport(await self.dial(host, port, local_address), self._sizes)
