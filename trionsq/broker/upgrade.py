"""What IDENTIFY lays over a connection: TLS, then snappy or deflate, each begun by an ``OK``.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trionsq.transports.certificates import ServerTls, TlsConfigError, TlsFiles
from trionsq.transports.deflate import DeflateLayer
from trionsq.transports.layered import UpgradedTransport
from trionsq.transports.snappy import SnappyLayer
from trionsq.transports.tls import reason_of, start_tls
from trionsq.transports.transport import Transport
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError
from trionsq.wire.identify import Negotiated

if TYPE_CHECKING:
    from trionsq.broker.client import Client
    from trionsq.broker.options import NsqdOptions

__all__ = ["HANDSHAKE_S", "UPGRADES_S", "check_upgrade", "is_upgrade", "server_tls", "upgrade"]

HANDSHAKE_S: Final = 5.0
"""A TLS handshake takes no longer, with clients of TCP and of HTTPS."""
UPGRADES_S: Final = 10.0
"""Nor all of it: a client that takes no answers is not waited for, even without heartbeats."""


def server_tls(options: NsqdOptions) -> ServerTls | None:
    """TLS as the options have it, None without certificate.

    Raises:
        TlsConfigError: the files can't be used.
    """
    if not options.tls_cert and not options.tls_key:
        return None
    try:
        return ServerTls(
            TlsFiles(
                cert=options.tls_cert,
                key=options.tls_key,
                root_ca_file=options.tls_root_ca_file,
                client_auth_policy=options.tls_client_auth_policy,
                min_version=options.tls_min_version,
            )
        )
    except TlsConfigError as error:
        raise TlsConfigError(f"failed to build TLS config - {error}") from error


def is_upgrade(wanted: Negotiated) -> bool:
    """Whether anything is to be laid over the connection."""
    return wanted.tls_v1 or wanted.snappy or wanted.deflate


def check_upgrade(client: Client, wanted: Negotiated) -> None:
    """See to it that what a further IDENTIFY asks for can be done.

    Raises:
        ProtocolError: TLS does not go into another layer, nor compression into compression.
    """
    compressed = client.snappy or client.deflate
    if (wanted.tls_v1 and (client.tls is not None or compressed)) or (
        (wanted.snappy or wanted.deflate) and compressed
    ):
        raise ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed already upgraded")


async def upgrade(client: Client, wanted: Negotiated, answer: bytes) -> bytes:
    """Send the answer to IDENTIFY, and lay over the connection what it says.

    The message pump has nothing to send yet, for this is before SUB; the caller sees to it that
    there are no heartbeats meanwhile.

    Raises:
        ProtocolError: the handshake failed; told in clear text.
        OSError: the connection broke, or takes nothing.
    """
    with trio.move_on_after(UPGRADES_S):
        await _say(client, answer)
        received = client.parser.pop_rest()
        if wanted.tls_v1:
            await _start_tls(client, received)
            received = b""
            await _say(client, frames.OK)
        if wanted.snappy:
            client.snappy = True
            client.use(UpgradedTransport(client.transport, SnappyLayer(), received))
            await _say(client, frames.OK)
        elif wanted.deflate:
            client.deflate = True
            layer = DeflateLayer(wanted.deflate_level)
            client.use(UpgradedTransport(client.transport, layer, received))
            await _say(client, frames.OK)
        return b""
    raise TimeoutError("the client does not take the answers to IDENTIFY")


async def _say(client: Client, frame: bytes) -> None:
    client.output.write(frame)
    if client.output.pending:
        await client.output.drain()


async def _start_tls(client: Client, received: bytes) -> None:
    tls = client.broker.tls
    assert tls is not None, "TLS is not offered without"
    engine = tls.engine(client.broker.clock.now_s())
    engine.feed(received)
    upgraded: Transport | None = None
    try:
        with trio.move_on_after(HANDSHAKE_S):
            upgraded = await start_tls(client.transport, engine)
    except OSError as error:
        raise _failed(reason_of(error)) from error
    if upgraded is None:
        raise _failed("TLS handshake timed out")
    client.tls = engine.info()
    client.parser.tls_required = False
    client.use(upgraded)


def _failed(reason: str) -> ProtocolError:
    return ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}")
