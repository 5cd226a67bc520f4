"""Both ends of a connection with layers over them, in memory and without tasks."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import trustme

from trionsq.testing.streams import MemoryTransport, Pipe
from trionsq.transports.compression import DeflateLayer, SnappyLayer
from trionsq.transports.tls import Engine, SslEngine, TlsLayer
from trionsq.transports.transport import Layer, LayeredTransport, Transport

STEPS_MAX = 100_000
HOST = "127.0.0.1"


@cache
def authority() -> trustme.CA:
    """Issues all certificates but those of a stranger."""
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@cache
def stranger() -> trustme.CA:
    """Whom nobody trusts."""
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def issue(ca: trustme.CA, name: str = HOST) -> trustme.LeafCert:
    """A certificate for a host, or for a common name."""
    return ca.issue_cert(name, common_name=name, key_type=trustme.KeyType.ECDSA)


def write_pair(folder: Path, ca: trustme.CA | None = None, name: str = HOST) -> tuple[str, str]:
    """A certificate and its key as files, written over what is there: their paths."""
    issued = issue(ca or authority(), name)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return str(cert), str(key)


def write_ca(folder: Path, ca: trustme.CA | None = None) -> str:
    """A certificate authority as a file: its path."""
    path = folder / "ca.pem"
    path.write_bytes((ca or authority()).cert_pem.bytes())
    return str(path)


@cache
def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issue(authority()).configure_cert(context)
    return context


def client_context(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """Trusts the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


@cache
def _client_context() -> ssl.SSLContext:
    return client_context()


def client_engine(context: ssl.SSLContext | None = None) -> SslEngine:
    return SslEngine(context or _client_context(), server_side=False, server_hostname=HOST)


def shaken(server: Engine, client: Engine) -> tuple[Engine, Engine]:
    """Both after the handshake, which both have to take."""
    for _ in range(10):
        done = 0
        for engine, other in ((client, server), (server, client)):
            try:
                engine.handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            other.put_received(engine.take_unsent())
        if done == 2:
            return server, client
    raise AssertionError("no handshake")


def memory_pair(capacity_bytes: int) -> tuple[MemoryTransport, MemoryTransport]:
    """The two ends of a connection, both as transports."""
    there, back = Pipe(capacity_bytes), Pipe(capacity_bytes)
    return MemoryTransport(there, back), MemoryTransport(back, there)


def _tls(one: Transport, other: Transport) -> tuple[LayeredTransport, LayeredTransport]:
    engines = shaken(SslEngine(server_context(), server_side=True), client_engine())
    return (
        LayeredTransport(one, TlsLayer(engines[0])),
        LayeredTransport(other, TlsLayer(engines[1])),
    )


Ends = tuple[LayeredTransport, LayeredTransport]


def _both(layer: Callable[[], Layer]) -> Callable[[Transport, Transport], Ends]:
    return lambda one, other: (
        LayeredTransport(one, layer()),
        LayeredTransport(other, layer()),
    )


_deflate = _both(lambda: DeflateLayer(6))
_snappy = _both(SnappyLayer)

STACKS: dict[str, Callable[[Transport, Transport], Ends]] = {
    "tls": _tls,
    "deflate": _deflate,
    "snappy": _snappy,
    "tls, deflate": lambda one, other: _deflate(*_tls(one, other)),
    "tls, snappy": lambda one, other: _snappy(*_tls(one, other)),
}
"""What may lie over a connection, by its name."""


def send(sender: Transport, data: bytes) -> Iterator[None]:
    """Send all, as whoever has to wait: gives way whenever the transport takes no more."""
    view = memoryview(data)
    while True:
        view = view[sender.send_nowait(view) :]
        if not view:
            return
        yield


def receive(receiver: Transport, nbytes_max: int = 128 * 1024) -> tuple[bytes, bool]:
    """What is there, and whether the stream has ended."""
    parts: list[bytes] = []
    nothing = 0
    for _ in range(STEPS_MAX):
        data = receiver.receive_nowait(nbytes_max)
        if data:
            parts.append(data)
            nothing = 0
            continue
        nothing += 1
        # The longest chunk takes two reads.
        if data == b"" or nothing > 2:
            return b"".join(parts), data == b""
    raise AssertionError("no end to it")
