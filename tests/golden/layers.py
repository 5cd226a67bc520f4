"""The client side of the upgrades: TLS, deflate and snappy laid over a Connection."""

from __future__ import annotations

import ssl
import zlib
from typing import Protocol

import snappy
import trio

from tests.golden.interfaces import Connection

RECEIVE_BYTES_MAX = 65536


class Transform(Protocol):
    """A byte stream's two directions, without I/O."""

    def outgoing(self, data: bytes) -> bytes:
        """What goes on the wire for ``data``."""

    def incoming(self, data: bytes) -> bytes:
        """What ``data`` from the wire says, as far as it is complete."""


class Deflate:
    """Raw deflate, one stream each way, sync flush after each write."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(wbits=-zlib.MAX_WBITS)

    def outgoing(self, data: bytes) -> bytes:
        """See Transform."""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def incoming(self, data: bytes) -> bytes:
        """See Transform."""
        return self._decompressor.decompress(data)


class Snappy:
    """The snappy framing format."""

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()

    def outgoing(self, data: bytes) -> bytes:
        """See Transform."""
        return bytes(self._compressor.add_chunk(data))

    def incoming(self, data: bytes) -> bytes:
        """See Transform."""
        return bytes(self._decompressor.decompress(data))


class PushedBackConnection:
    """A connection that first gives back what was already read of it."""

    def __init__(self, inner: Connection, unread: bytes) -> None:
        self._inner = inner
        self._unread = unread

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        await self._inner.send_all(data)

    async def receive_some(self) -> bytes:
        """See Connection."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        return await self._inner.receive_some()

    async def shutdown_write(self) -> None:
        """See Connection."""
        await self._inner.shutdown_write()

    async def close(self) -> None:
        """See Connection."""
        await self._inner.close()


class TransformedConnection:
    """A connection whose bytes go through a transform."""

    def __init__(self, inner: Connection, transform: Transform) -> None:
        self._inner = inner
        self._transform = transform

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        await self._inner.send_all(self._transform.outgoing(data))

    async def receive_some(self) -> bytes:
        """See Connection."""
        while True:
            data = await self._inner.receive_some()
            if not data:
                return b""
            if plain := self._transform.incoming(data):
                return plain

    async def shutdown_write(self) -> None:
        """See Connection."""
        await self._inner.shutdown_write()

    async def close(self) -> None:
        """See Connection."""
        await self._inner.close()


class TlsConnection:
    """TLS over a connection, the handshake done by ``start``."""

    def __init__(
        self, inner: Connection, context: ssl.SSLContext, hostname: str | None = None
    ) -> None:
        self._inner = inner
        self._from_peer = ssl.MemoryBIO()
        self._to_peer = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from_peer, self._to_peer, server_hostname=hostname)

    async def start(self) -> None:
        """Shake hands; raises ssl.SSLError, or trio.BrokenResourceError at an early end."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise trio.BrokenResourceError("closed amid the TLS handshake") from None
            else:
                await self._flush()
                return

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        self._tls.write(data)
        await self._flush()

    async def receive_some(self) -> bytes:
        """See Connection."""
        while True:
            try:
                return self._tls.read(RECEIVE_BYTES_MAX)
            except ssl.SSLWantReadError:
                if not await self._fill():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def shutdown_write(self) -> None:
        """See Connection."""
        await self._inner.shutdown_write()

    async def close(self) -> None:
        """See Connection."""
        await self._inner.close()

    async def _flush(self) -> None:
        if data := self._to_peer.read():
            await self._inner.send_all(data)

    async def _fill(self) -> bool:
        data = await self._inner.receive_some()
        self._from_peer.write(data)
        return bool(data)


def client_tls_context() -> ssl.SSLContext:
    """A client that checks no certificate: the server's is made up for the test."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def upgraded(inner: Connection, layer: str) -> Connection:
    """``inner`` with the named layer over it.

    Raises:
        ValueError: a layer that no transcript has.
    """
    match layer:
        case "tls":
            tls = TlsConnection(inner, client_tls_context())
            await tls.start()
            return tls
        case "deflate":
            return TransformedConnection(inner, Deflate())
        case "snappy":
            return TransformedConnection(inner, Snappy())
    raise ValueError(f"unknown layer {layer!r}")
