"""IDENTIFY: what nsqd and a client agree on, and the layers it puts on the connection.

TLS comes first, then snappy or deflate; each begins with an ``OK``.

Spec: tcp-protocol, section 8 (upgrade order).
"""

from __future__ import annotations

from typing import Final

import trio

from trionsq import NSQ_VERSION
from trionsq.broker.answers import Reply
from trionsq.broker.client import Client
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import Clock
from trionsq.durations import MILLISECOND_NS
from trionsq.transports.certificates import ServerTls, TlsConfigError, TlsFiles
from trionsq.transports.compression import DeflateLayer, SnappyLayer
from trionsq.transports.tls import HANDSHAKE_S, reason_of, start_tls
from trionsq.transports.transport import LayeredTransport, Transport
from trionsq.wire import events, frames
from trionsq.wire.errors import ProtocolError
from trionsq.wire.identify import Negotiated, ServerFeatures, answer, negotiate

__all__ = ["IdentifyCommand", "server_features", "server_tls"]

# For all layers together: a client that takes no replies is not waited for, even if it has turned
# heartbeats off.
_LAYERS_S: Final = 10.0


def server_features(options: NsqdOptions, epoch: str, *, has_tokens: bool) -> ServerFeatures:
    """Return what clients are offered.

    Args:
        options: of nsqd.
        epoch: of the keys of idempotent publishes.
        has_tokens: there are users with tokens, so that clients must send AUTH.
    """
    return ServerFeatures(
        version=NSQ_VERSION,
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ms=options.msg_timeout_ns // MILLISECOND_NS,
        max_msg_timeout_ms=options.max_msg_timeout_ns // MILLISECOND_NS,
        max_heartbeat_interval_ms=options.max_heartbeat_interval_ns // MILLISECOND_NS,
        output_buffer_timeout_ms=options.output_buffer_timeout_ns // MILLISECOND_NS,
        min_output_buffer_timeout_ms=options.min_output_buffer_timeout_ns // MILLISECOND_NS,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout_ns // MILLISECOND_NS,
        max_output_buffer_size=options.max_output_buffer_size,
        tls_v1=bool(options.tls_cert or options.tls_key),
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        snappy=options.snappy,
        auth_required=bool(options.auth_http_address) or has_tokens,
        idempotency_epoch=epoch,
        idempotent_publish=bool(options.idempotency_window_ns and options.idempotency_max_keys),
    )


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


class IdentifyCommand:
    """Runs IDENTIFY for the connections of a broker."""

    def __init__(self, features: ServerFeatures, tls: ServerTls | None, clock: Clock) -> None:
        self._features = features
        self._tls = tls
        self._clock = clock

    def run(self, client: Client, event: events.Identify) -> Reply:
        """Settle what the client asks for; see `trionsq.broker.client.Handler`."""
        identity = negotiate(event.body, self._features, client.identity)
        has_layers = identity.tls_v1 or identity.snappy or identity.deflate
        if has_layers:
            _check_layers(client, identity)
        client.identity = identity
        client.parser.heartbeats = identity.heartbeat_interval_ms is not None
        client.parser.accepts_keys = bool(identity.idempotent_publish)
        client.parser.dead_letters = identity.dead_letters
        client.consumer.msg_timeout_s = identity.msg_timeout_ms / 1e3
        client.consumer.sample_rate = identity.sample_rate
        client.restart_heartbeats()
        reply = frames.response(answer(identity, self._features))
        return self._add_layers(client, identity, reply) if has_layers else reply

    async def _add_layers(self, client: Client, identity: Negotiated, reply: bytes) -> bytes:
        """Send the reply to IDENTIFY, and put the layers on the connection that it names.

        The message pump has nothing to send yet, for this is before SUB; no heartbeats are sent.

        Raises:
            ProtocolError: the handshake failed; sent in clear text.
            OSError: the connection broke, or the client does not take the replies.
        """
        client.heartbeats.stop()
        with trio.move_on_after(_LAYERS_S):
            await _send(client, reply)
            received = client.parser.pop_rest()
            if identity.tls_v1:
                await self._start_tls(client, received)
                received = b""
                await _send(client, frames.OK)
            if identity.snappy:
                client.snappy = True
                layered = LayeredTransport(client.transport, SnappyLayer(), received)
                client.switch_transport(layered)
                await _send(client, frames.OK)
            elif identity.deflate:
                client.deflate = True
                layer = DeflateLayer(identity.deflate_level)
                client.switch_transport(LayeredTransport(client.transport, layer, received))
                await _send(client, frames.OK)
            client.restart_heartbeats()
            return b""
        raise TimeoutError("the client does not take the answers to IDENTIFY")

    async def _start_tls(self, client: Client, received: bytes) -> None:
        assert self._tls is not None, "TLS is not offered without a certificate"
        engine = self._tls.new_engine(self._clock.now_s())
        engine.put_received(received)
        transport: Transport | None = None
        try:
            with trio.move_on_after(HANDSHAKE_S):
                transport = await start_tls(client.transport, engine)
        except OSError as error:
            raise _handshake_failed(reason_of(error)) from error
        if transport is None:
            raise _handshake_failed("TLS handshake timed out")
        client.tls = engine.info()
        client.parser.tls_required = False
        client.switch_transport(transport)


def _check_layers(client: Client, identity: Negotiated) -> None:
    """Refuse TLS inside another layer, and compression inside compression.

    Raises:
        ProtocolError: a further IDENTIFY asks for that.
    """
    is_compressed = client.snappy or client.deflate
    if (identity.tls_v1 and (client.tls is not None or is_compressed)) or (
        (identity.snappy or identity.deflate) and is_compressed
    ):
        raise ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed already upgraded")


async def _send(client: Client, frame: bytes) -> None:
    client.output.write(frame)
    if client.output.pending:
        await client.output.drain()


def _handshake_failed(reason: str) -> ProtocolError:
    return ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}")
