"""TLS as a layer: the handshake, the records, and names of cipher suites.

Spec: tcp-protocol, section 8 (upgrade order); nsqd-http, section 5 (TLS fields of /stats).
"""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trionsq.transports.transport import BrokenStreamError, LayeredTransport, Transport

__all__ = [
    "HANDSHAKE_S",
    "Engine",
    "SslEngine",
    "TlsInfo",
    "TlsLayer",
    "client_context",
    "reason_of",
    "start_tls",
    "suite_name",
    "version_name",
    "weakness_of",
]

HANDSHAKE_S: Final = 5.0
"""A TLS handshake may take this long, with clients of TCP and of HTTPS."""

_READ_BYTES: Final = 64 * 1024
_MAX_RECORD_BYTES: Final = 16 * 1024
# No honest handshake needs more; certificate chains take a few KiB.
_MAX_HANDSHAKE_BYTES: Final = 1024 * 1024
_SHORT: Final = "OpenSSL refuses {} as too weak: RSA keys need 2048 bits or more, ECDSA keys P-256"
_SHORT_KEY: Final = _SHORT.format("the certificate's key")
_SHORT_CA_KEY: Final = _SHORT.format("the key of an issuer's certificate")
_OLD_SIGNATURE: Final = (
    "OpenSSL refuses the certificate's signature as too weak: have it signed with SHA-256"
)
# By OpenSSL's reason when it loads a certificate, and by its code when it verifies the peer's.
_WEAK: Final = {
    "EE_KEY_TOO_SMALL": _SHORT_KEY,
    "CA_KEY_TOO_SMALL": _SHORT_CA_KEY,
    "CA_MD_TOO_WEAK": _OLD_SIGNATURE,
}
_WEAK_CODES: Final = {66: _SHORT_KEY, 67: _SHORT_CA_KEY, 68: _OLD_SIGNATURE}

# By their numbers in TLS. nsqd has names for these suites only.
_SUITE_NAMES: Final = {
    0x0005: "TLS_RSA_WITH_RC4_128_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}
_VERSION_NAMES: Final = {"TLSv1": "TLS1.0"}


def client_context(root_ca_file: str = "") -> ssl.SSLContext:
    """A context that trusts the authorities of a file, by default those of the system.

    Raises:
        OSError: they cannot be read, also those of the system. The ssl module says nothing then,
            and the context would trust nobody.
    """
    context = ssl.create_default_context(cafile=root_ca_file or None)
    system_file = ssl.get_default_verify_paths().cafile
    if system_file and not context.cert_store_stats()["x509_ca"]:
        with open(system_file, "rb"):
            pass
    return context


@dataclass(frozen=True, slots=True)
class TlsInfo:
    """The result of a handshake.

    Attributes:
        version: OpenSSL's name of the version, such as ``TLSv1.2``.
        cipher: OpenSSL's name of the cipher suite.
        common_name: of the subject of the peer's certificate; empty without a certificate.
    """

    version: str
    cipher: str
    common_name: str


class Engine(Protocol):
    """An `ssl.SSLObject` with its two memory buffers, as far as `TlsLayer` needs it.

    Methods raise ssl.SSLWantReadError if more input is needed first, ssl.SSLZeroReturnError if the
    peer has ended TLS, ssl.SSLError for any other failure.
    """

    def handshake(self) -> None: ...
    def read(self, max_bytes: int) -> bytes: ...
    def write(self, data: memoryview) -> int: ...
    def shutdown(self) -> None: ...
    def info(self) -> TlsInfo: ...

    def put_received(self, data: bytes) -> None:
        """Add received bytes to the input buffer."""

    def take_unsent(self) -> bytes:
        """Return and clear the output buffer."""


class SslEngine:
    """The engine of the standard library; see `Engine`."""

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

    def read(self, max_bytes: int) -> bytes:
        return self._object.read(max_bytes)

    def write(self, data: memoryview) -> int:
        return self._object.write(data)

    def shutdown(self) -> None:
        self._object.unwrap()

    def put_received(self, data: bytes) -> None:
        self._incoming.write(data)

    def take_unsent(self) -> bytes:
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
    """TLS after the handshake; see `trionsq.transports.transport.Layer`."""

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
            view = view[engine.write(view[:_MAX_RECORD_BYTES]) :]
            # In pieces: OpenSSL never shrinks its buffers.
            parts.append(engine.take_unsent())
        return b"".join(parts)

    def decode(self, data: bytes, max_bytes: int) -> bytes:
        engine = self._engine
        records: list[bytes] = []
        fed = 0
        self.has_more = False
        while True:
            if fed < len(data):
                # No more than the output limit can use, to keep OpenSSL's buffer small.
                piece = data[fed : fed + _MAX_RECORD_BYTES] if max_bytes > 0 else data[fed:]
                engine.put_received(piece)
                fed += len(piece)
            try:
                while max_bytes > 0:
                    # No more than one record: OpenSSL's binding allocates this size each time.
                    record = engine.read(min(max_bytes, _MAX_RECORD_BYTES))
                    if not record:
                        self.at_end = True
                        break
                    records.append(record)
                    max_bytes -= len(record)
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

    def take_reply(self) -> bytes:
        return self._engine.take_unsent()

    def end_stream(self) -> bytes:
        # It raises because it wants to read the peer's close_notify. nsqd does not wait for it.
        with contextlib.suppress(ssl.SSLError):
            self._engine.shutdown()
        return self._engine.take_unsent()


def weakness_of(error: OSError) -> str | None:
    """Why OpenSSL refuses a weak certificate, and the remedy; None if weakness is not the reason.

    Go's TLS accepts such certificates, so the original nsqd may have used one for years.
    """
    code = getattr(error, "verify_code", None)
    return _WEAK.get(getattr(error, "reason", None) or "") or _WEAK_CODES.get(code or 0)


def reason_of(error: OSError) -> str:
    """The reason of an error in OpenSSL's words, without its line numbers."""
    if (weakness := weakness_of(error)) is not None:
        return weakness
    # An SSLError that the ssl module did not make has no reason.
    reason = getattr(error, "reason", None) or error.strerror
    return reason.lower().replace("_", " ") if reason else str(error)


async def start_tls(transport: Transport, engine: Engine) -> LayeredTransport:
    """Do the handshake over ``transport``, and return the transport that encrypts.

    ``transport`` may hold no unsent output. The caller bounds the time, and closes the connection
    after a failure or a cancellation.

    Raises:
        OSError: the connection broke, or (as ssl.SSLError) the handshake failed; then the peer was
            sent the alert that says why.
    """
    received = 0
    while True:
        try:
            engine.handshake()
        except ssl.SSLWantReadError:
            await _send(transport, engine.take_unsent())
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                transport.send_nowait(engine.take_unsent())
            raise
        else:
            await _send(transport, engine.take_unsent())
            return LayeredTransport(transport, TlsLayer(engine))
        data = await _receive(transport)
        received += len(data)
        if received > _MAX_HANDSHAKE_BYTES:
            raise ConnectionAbortedError("the TLS handshake does not end")
        engine.put_received(data)


async def _send(transport: Transport, data: bytes) -> None:
    sent = transport.send_nowait(data) if data else 0
    while sent < len(data):
        await transport.wait_writable()
        data = data[sent:]
        sent = transport.send_nowait(data)


async def _receive(transport: Transport) -> bytes:
    while True:
        await transport.wait_readable()
        data = transport.receive_nowait(_READ_BYTES)
        if data:
            return data
        if data is not None:
            raise ConnectionResetError("the peer closed the connection in the TLS handshake")


def suite_name(openssl_name: str) -> str:
    """The name of a suite; ``Unknown 4865`` for those that nsqd has no name for."""
    number = _suite_numbers().get(openssl_name, 0)
    return _SUITE_NAMES.get(number) or f"Unknown {number}"


def version_name(openssl_name: str) -> str:
    """``TLS1.2`` for ``TLSv1.2``."""
    return _VERSION_NAMES.get(openssl_name) or openssl_name.replace("TLSv", "TLS")


@functools.cache
def _suite_numbers() -> Mapping[str, int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return {cipher["name"]: cipher["id"] & 0xFFFF for cipher in context.get_ciphers()}
