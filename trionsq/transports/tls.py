"""TLS as a layer: the handshake, and records as the transport wants them.

Spec: tcp-protocol, section 8 (upgrade order); nsqd-http, section 5 (TLS fields of /stats).
"""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trionsq.transports.layered import BrokenStreamError, UpgradedTransport
from trionsq.transports.transport import Transport

__all__ = ["Engine", "SslEngine", "TlsInfo", "TlsLayer", "reason_of", "start_tls", "weakness_of"]

_RECEIVE_NBYTES: Final = 64 * 1024
_RECORD_NBYTES_MAX: Final = 16 * 1024
# A handshake that needs more is none.
_HANDSHAKE_NBYTES_MAX: Final = 1024 * 1024
_SHORT: Final = "OpenSSL refuses {} as too weak: RSA keys need 2048 bits or more, ECDSA keys P-256"
_SHORT_KEY: Final = _SHORT.format("the certificate's key")
_SHORT_CA_KEY: Final = _SHORT.format("the key of an issuer's certificate")
_OLD_SIGNATURE: Final = (
    "OpenSSL refuses the certificate's signature as too weak: have it signed with SHA-256"
)
# By OpenSSL's reason when it loads a certificate, and by its code when it verifies a peer's.
_WEAK: Final = {
    "EE_KEY_TOO_SMALL": _SHORT_KEY,
    "CA_KEY_TOO_SMALL": _SHORT_CA_KEY,
    "CA_MD_TOO_WEAK": _OLD_SIGNATURE,
}
_WEAK_CODES: Final = {66: _SHORT_KEY, 67: _SHORT_CA_KEY, 68: _OLD_SIGNATURE}


@dataclass(frozen=True, slots=True)
class TlsInfo:
    """What was agreed on.

    Attributes:
        version: ``TLSv1.2`` and the like, OpenSSL's name.
        cipher: OpenSSL's name of the cipher suite.
        common_name: of the subject of the peer's certificate; empty if it showed none.
    """

    version: str
    cipher: str
    common_name: str


class Engine(Protocol):
    """The part of an `ssl.SSLObject` with its two memory buffers that is needed here.

    Methods raise ssl.SSLWantReadError if the peer has to say more first, ssl.SSLZeroReturnError at
    the peer's end, ssl.SSLError for what is wrong.
    """

    def handshake(self) -> None: ...
    def read(self, nbytes_max: int) -> bytes: ...
    def write(self, data: memoryview) -> int: ...
    def shutdown(self) -> None: ...
    def info(self) -> TlsInfo: ...

    def feed(self, data: bytes) -> None:
        """Take what was received."""

    def take(self) -> bytes:
        """Take what is to be sent."""


class SslEngine:
    """See `Engine`: the standard library's."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )

    def handshake(self) -> None:
        self._object.do_handshake()

    def read(self, nbytes_max: int) -> bytes:
        return self._object.read(nbytes_max)

    def write(self, data: memoryview) -> int:
        return self._object.write(data)

    def shutdown(self) -> None:
        self._object.unwrap()

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def take(self) -> bytes:
        return self._outgoing.read()

    def info(self) -> TlsInfo:
        cipher = self._object.cipher()
        return TlsInfo(
            self._object.version() or "",
            cipher[0] if cipher else "",
            _common_name(self._object.getpeercert() or {}),
        )


def _common_name(certificate: dict[str, Any]) -> str:
    for names in certificate.get("subject", ()):
        for key, value in names:
            if key == "commonName":
                return str(value)
    return ""


class TlsLayer:
    """See `trionsq.transports.layered.Layer`: what follows a handshake."""

    __slots__ = ("_engine", "at_end", "has_more")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The handshake may have brought the first records.
        self.has_more = True
        self.at_end = False

    def __repr__(self) -> str:
        return "TLS"

    def encode(self, data: bytes | memoryview) -> bytes:
        engine = self._engine
        view = memoryview(data)
        parts: list[bytes] = []
        while view:
            view = view[engine.write(view[:_RECORD_NBYTES_MAX]) :]
            # Piece by piece: OpenSSL keeps buffers of the size that they once had.
            parts.append(engine.take())
        return b"".join(parts)

    def decode(self, data: bytes, nbytes_max: int) -> bytes:
        engine = self._engine
        records: list[bytes] = []
        fed = 0
        self.has_more = False
        while True:
            if fed < len(data):
                # As much as it can turn into text, again so that its buffer stays small.
                piece = data[fed : fed + _RECORD_NBYTES_MAX] if nbytes_max > 0 else data[fed:]
                engine.feed(piece)
                fed += len(piece)
            try:
                while nbytes_max > 0:
                    # No more than a record has: a buffer of that size is made for each.
                    record = engine.read(min(nbytes_max, _RECORD_NBYTES_MAX))
                    if not record:
                        self.at_end = True
                        break
                    records.append(record)
                    nbytes_max -= len(record)
                else:
                    self.has_more = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                self.at_end = True
            except ssl.SSLError as error:
                raise BrokenStreamError(f"TLS: {reason_of(error)}") from error
            if self.at_end or fed == len(data):
                return b"".join(records)

    def answer(self) -> bytes:
        return self._engine.take()

    def finish(self) -> bytes:
        # It wants to read the peer's end, for which nobody waits.
        with contextlib.suppress(ssl.SSLError):
            self._engine.shutdown()
        return self._engine.take()


def weakness_of(error: OSError) -> str | None:
    """Why OpenSSL refuses a certificate that is too weak for it, and what to do; None if it is not.

    Go's library takes such certificates, so they may have served an nsqd for years.
    """
    code = getattr(error, "verify_code", None)
    return _WEAK.get(getattr(error, "reason", None) or "") or _WEAK_CODES.get(code or 0)


def reason_of(error: OSError) -> str:
    """What went wrong, in OpenSSL's words and without its line numbers."""
    if (weakness := weakness_of(error)) is not None:
        return weakness
    # An SSLError that was not made by the ssl module has no reason.
    reason = getattr(error, "reason", None) or error.strerror
    return reason.lower().replace("_", " ") if reason else str(error)


async def start_tls(transport: Transport, engine: Engine) -> UpgradedTransport:
    """Shake hands over ``transport``, and return the transport to go on with.

    All that was sent on ``transport`` before must have been taken. The caller bounds the time, and
    closes the connection after a failure.

    Raises:
        OSError: the connection broke, or (as ssl.SSLError) the peer is no good; it was sent the
            alert that says why.
    """
    received = 0
    while True:
        try:
            engine.handshake()
        except ssl.SSLWantReadError:
            await _send(transport, engine.take())
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                transport.send_nowait(engine.take())
            raise
        else:
            await _send(transport, engine.take())
            return UpgradedTransport(transport, TlsLayer(engine))
        data = await _receive(transport)
        received += len(data)
        if received > _HANDSHAKE_NBYTES_MAX:
            raise ConnectionAbortedError("the TLS handshake does not end")
        engine.feed(data)


async def _send(transport: Transport, data: bytes) -> None:
    sent = transport.send_nowait(data) if data else 0
    while sent < len(data):
        await transport.wait_writable()
        data = data[sent:]
        sent = transport.send_nowait(data)


async def _receive(transport: Transport) -> bytes:
    while True:
        await transport.wait_readable()
        data = transport.receive_nowait(_RECEIVE_NBYTES)
        if data:
            return data
        if data is not None:
            raise ConnectionResetError("the peer closed the connection in the TLS handshake")
