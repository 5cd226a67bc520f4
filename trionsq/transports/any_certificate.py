"""TLS for --tls-client-auth-policy=require: the client has to present a certificate, any will do.

The standard library always verifies a certificate that it requires, so pyOpenSSL is used here.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Final

from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto

from trionsq.transports.tls import Engine, TlsInfo

__all__ = ["AnyCertificateEngine", "engine_maker"]

_BIO_READ_BYTES: Final = 256 * 1024
_COMMON_NAME: Final = NameOID.COMMON_NAME
_VERSIONS: Final = {
    ssl.TLSVersion.TLSv1_1: SSL.TLS1_1_VERSION,
    ssl.TLSVersion.TLSv1_2: SSL.TLS1_2_VERSION,
    ssl.TLSVersion.TLSv1_3: SSL.TLS1_3_VERSION,
}
# pyOpenSSL has no name for it; the number is OpenSSL's.
_OP_NO_RENEGOTIATION: Final = int(ssl.OP_NO_RENEGOTIATION)


def engine_maker(cert: str, key: str, like: ssl.SSLContext) -> Callable[[], Engine]:
    """Return a function that makes engines with that certificate.

    Args:
        cert, key: paths of files that ``like`` has loaded without an error.
        like: sets the lowest TLS version.
    """
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_options(SSL.OP_NO_COMPRESSION | _OP_NO_RENEGOTIATION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.set_session_id(b"trionsq")
    with contextlib.suppress(KeyError):
        context.set_min_proto_version(_VERSIONS[like.minimum_version])
    context.use_certificate_chain_file(cert)
    context.use_privatekey_file(key)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _any)
    return lambda: AnyCertificateEngine(context)


def _any(
    connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, is_good: int
) -> bool:
    return True


class AnyCertificateEngine:
    """The engine of pyOpenSSL; see `trionsq.transports.tls.Engine`."""

    __slots__ = ("_connection",)

    def __init__(self, context: SSL.Context) -> None:
        self._connection = SSL.Connection(context, None)
        self._connection.set_accept_state()

    def handshake(self) -> None:
        with _errors():
            self._connection.do_handshake()

    def read(self, max_bytes: int) -> bytes:
        with _errors():
            return self._connection.recv(max_bytes)

    def write(self, data: memoryview) -> int:
        with _errors():
            return self._connection.send(data)

    def shutdown(self) -> None:
        with _errors():
            self._connection.shutdown()

    def put_received(self, data: bytes) -> None:
        while data:
            data = data[self._connection.bio_write(data) :]

    def take_unsent(self) -> bytes:
        parts: list[bytes] = []
        with contextlib.suppress(SSL.WantReadError):
            while True:
                parts.append(self._connection.bio_read(_BIO_READ_BYTES))
        return b"".join(parts)

    def info(self) -> TlsInfo:
        connection = self._connection
        return TlsInfo(
            connection.get_protocol_version_name(),
            connection.get_cipher_name() or "",
            _common_name(connection),
        )


def _common_name(connection: SSL.Connection) -> str:
    try:
        certificate = connection.get_peer_certificate(as_cryptography=True)
        names = certificate.subject.get_attributes_for_oid(_COMMON_NAME) if certificate else []
    except ValueError:
        return ""  # OpenSSL accepts some certificates that cryptography can't parse
    return str(names[0].value) if names else ""


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise errors of the ssl module in place of pyOpenSSL's."""
    try:
        yield
    except SSL.WantReadError:
        raise ssl.SSLWantReadError from None
    except SSL.ZeroReturnError:
        raise ssl.SSLZeroReturnError from None
    except SSL.SysCallError as error:
        raise ssl.SSLEOFError(*error.args) from error
    except SSL.Error as error:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, _text(error)) from error


def _text(error: SSL.Error) -> str:
    reasons = error.args[0] if error.args else ()
    return ", ".join(reason for _, _, reason in reasons) or "TLS failed"
