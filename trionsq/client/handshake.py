"""The beginning of a connection: TCP, IDENTIFY, TLS and compression as agreed, then AUTH.

Until the last layer is in place, no byte is read beyond the expected frame: the next ones belong to
the next layer.

Spec: client, section 1; tcp-protocol, sections 8 (IDENTIFY, upgrade order) and 9 (AUTH).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import anyio

from trionsq.client.config import Config, reason_of
from trionsq.client.errors import (
    AuthError,
    AuthRequiredError,
    ConnectError,
    IdentifyError,
    NotIdempotentError,
    UpgradeError,
)
from trionsq.hostport import parse_address
from trionsq.transports import runtime
from trionsq.transports.compression import DeflateLayer, SnappyLayer
from trionsq.transports.tls import SslEngine, TlsInfo, start_tls
from trionsq.transports.transport import LayeredTransport, Transport
from trionsq.wire import commands
from trionsq.wire.client import ColumnDecoder, ErrorFrame, FrameError, MessageFrame, Response

__all__ = ["DEFAULT_MAX_RDY", "Dial", "Handshake", "dial_tcp"]

DEFAULT_MAX_RDY: Final = 2500
"""The largest RDY of an nsqd that does not state one."""

_READ_BYTES: Final = 64 * 1024
_SIZE_BYTES: Final = 4

_Answer: TypeAlias = Response | ErrorFrame

_unpack_size = struct.Struct(">i").unpack_from

Dial: TypeAlias = Callable[[str, int, str], Awaitable[Transport]]
"""Connects to a host and port, from a local address ("": any). Raises OSError."""


async def dial_tcp(host: str, port: int, local_address: str) -> Transport:
    """Connect by TCP. Each call resolves the name again. Raises OSError."""
    local = parse_address(local_address)[0] if ":" in local_address else local_address
    if runtime.is_trio():
        from trionsq.transports import trio_sockets

        return await trio_sockets.connect(host, port, local or None)
    from trionsq.transports import asyncio_sockets

    return await asyncio_sockets.connect(host, port, local or None)


class Handshake:
    """The beginning of one connection. `run` performs it, once.

    Attributes:
        address: ``host:port`` of nsqd.
        transport: the given transport, wrapped in the agreed layers; to be used from now on.
        features: nsqd's answer to IDENTIFY; empty without feature negotiation.
        tls: version, cipher and name; None without TLS.
    """

    def __init__(
        self,
        address: str,
        transport: Transport,
        config: Config,
        decoder: ColumnDecoder,
        *,
        idempotent: bool = False,
    ) -> None:
        """``decoder`` is the connection's: bytes after the last answer stay in it.

        ``idempotent``: nsqd has to offer idempotent publishes.
        """
        self.address = address
        self.transport = transport
        self.features: Mapping[str, Any] = {}
        self.tls: TlsInfo | None = None
        self._config = config
        self._decoder = decoder
        self._idempotent = idempotent

    def __repr__(self) -> str:
        return f"<Handshake {self.address} {self.transport!r}>"

    async def run(self) -> None:
        """Identify, start TLS and compression, authenticate.

        After an error or a cancellation the transport must be closed.

        Raises:
            ConnectError: the connection broke, or nsqd did not answer in time.
            IdentifyError: nsqd refused IDENTIFY, or its answer cannot be understood.
            NotIdempotentError: nsqd does not offer idempotent publishes.
            UpgradeError: nsqd does not offer the requested TLS, or a layer failed.
            AuthError: nsqd refused the secret, or requires one.
        """
        with anyio.move_on_after(self._config.read_timeout_s) as timeout:
            await self._identify()
        if timeout.cancelled_caught:
            raise ConnectError(f"{self.address}: no answer to IDENTIFY")
        with anyio.move_on_after(self._config.dial_timeout_s) as timeout:
            await self._start_layers()
        if timeout.cancelled_caught:
            seconds = f"{self._config.dial_timeout_s:g} s"
            raise UpgradeError(f"{self.address}: {self._layer_names()} not begun within {seconds}")
        with anyio.move_on_after(self._config.read_timeout_s) as timeout:
            await self._authenticate()
        if timeout.cancelled_caught:
            raise AuthError(f"{self.address}: no answer to AUTH")

    # IDENTIFY

    async def _identify(self) -> None:
        wishes = self._config.identity()
        if self._idempotent:
            wishes["idempotent_publish"] = True
        try:
            await self._send(commands.MAGIC_V2 + commands.identify(wishes))
            answer = await self._read_exact_answer()
        except (OSError, FrameError) as error:
            raise ConnectError(f"{self.address}: {error}") from error
        if isinstance(answer, ErrorFrame):
            raise IdentifyError(f"{self.address}: failed to IDENTIFY - {answer.as_error()}")
        self.features = self._features(answer.data)

    def _features(self, answer: bytes) -> Mapping[str, Any]:
        features: dict[str, Any] = {}
        if answer.startswith(b"{"):
            try:
                features = json.loads(answer)
                features["max_rdy_count"] = int(features.get("max_rdy_count", DEFAULT_MAX_RDY))
            except (ValueError, TypeError, RecursionError) as error:
                raise IdentifyError(f"{self.address}: failed to IDENTIFY - {error}") from error
        for name in ("tls_v1", "deflate", "snappy"):
            if features.get(name) and not getattr(self._config, name):
                raise IdentifyError(f"{self.address}: nsqd turned on {name} unasked")
        if features.get("deflate") and features.get("snappy"):
            raise IdentifyError(f"{self.address}: nsqd turned on both deflate and snappy")
        if self._config.tls_v1 and not features.get("tls_v1"):
            # Otherwise someone between client and nsqd could prevent TLS.
            raise UpgradeError(f"{self.address}: tls_v1 is set, and nsqd does not offer TLS")
        if self._idempotent and features.get("idempotent_publish") is not True:
            raise NotIdempotentError(f"{self.address}: nsqd does not offer idempotent publishes")
        return features

    # TLS, deflate, snappy

    def _layer_names(self) -> str:
        names = {"tls_v1": "TLS", "deflate": "deflate", "snappy": "snappy"}
        return " and ".join(name for key, name in names.items() if self.features.get(key))

    async def _start_layers(self) -> None:
        if self.features.get("tls_v1"):
            await self._start_tls()
        if self.features.get("deflate"):
            layer = DeflateLayer(self._config.deflate_level)
            self.transport = LayeredTransport(self.transport, layer)
            await self._expect_ok("deflate", self._read_answer)
        if self.features.get("snappy"):
            self.transport = LayeredTransport(self.transport, SnappyLayer())
            await self._expect_ok("snappy", self._read_answer)

    async def _start_tls(self) -> None:
        host, _ = parse_address(self.address)
        try:
            context = self._config.ssl_context()
            engine = SslEngine(context, server_side=False, server_hostname=host)
            self.transport = await start_tls(self.transport, engine)
        except OSError as error:  # first, for some of them are ValueErrors too
            raise self._layer_error("TLS", error) from error
        except ValueError as error:  # the files, or a host that is not a valid name
            raise UpgradeError(f"{self.address}: {error}") from error
        self.tls = engine.info()
        # With TLS 1.3, nsqd refuses a client certificate only here.
        await self._expect_ok("TLS", self._read_exact_answer)

    async def _expect_ok(self, layer: str, read: Callable[[], Awaitable[_Answer]]) -> None:
        """Read nsqd's OK, the first frame within the new layer."""
        try:
            answer = await read()
        except (OSError, FrameError) as error:
            raise self._layer_error(layer, error) from error
        if isinstance(answer, ErrorFrame):
            raise UpgradeError(f"{self.address}: no {layer}: {answer.as_error()}")
        if answer.data != b"OK":
            raise UpgradeError(f"{self.address}: no {layer}: nsqd answered {answer.data[:64]!r}")

    def _layer_error(self, layer: str, error: Exception) -> UpgradeError:
        text = reason_of(error) if isinstance(error, OSError) else str(error)
        return UpgradeError(f"{self.address}: no {layer}: {text.removeprefix(f'{layer}: ')}")

    # AUTH

    async def _authenticate(self) -> None:
        if not self.features.get("auth_required"):
            return
        if not self._config.auth_secret:
            raise AuthRequiredError(f"{self.address}: Auth Required")
        try:
            await self._send(commands.auth(self._config.auth_secret))
            answer = await self._read_answer()
        except (OSError, FrameError) as error:
            raise AuthError(f"{self.address}: Error authenticating {error}") from error
        if isinstance(answer, ErrorFrame):
            raise AuthError(f"{self.address}: Error authenticating {answer.as_error()}")

    # Bytes

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view := view[self.transport.send_nowait(view) :]:
            await self.transport.wait_writable()

    async def _read_answer(self) -> _Answer:
        """Read up to the next answer, and perhaps bytes after it."""
        while True:
            if (answer := self._decoded_answer()) is not None:
                return answer
            self._decoder.feed(await self._receive(_READ_BYTES))

    async def _read_exact_answer(self) -> _Answer:
        """Read up to the end of the next answer."""
        while True:
            head = await self._receive_exactly(_SIZE_BYTES)
            self._decoder.feed(head)
            self._decoded_answer()  # raises FrameError if the size is invalid
            self._decoder.feed(await self._receive_exactly(_unpack_size(head)[0]))
            if (answer := self._decoded_answer()) is not None:
                return answer

    def _decoded_answer(self) -> _Answer | None:
        if self._decoder.pop_columns().ids:
            raise FrameError("nsqd sent a message before SUB")
        for frame in self._decoder:
            if not isinstance(frame, MessageFrame) and not _is_heartbeat(frame):
                return frame
        return None

    async def _receive_exactly(self, count: int) -> bytes:
        data = await self._receive(count)
        while len(data) < count:
            data += await self._receive(count - len(data))
        return data

    async def _receive(self, max_bytes: int) -> bytes:
        while True:
            await self.transport.wait_readable()
            data = self.transport.receive_nowait(max_bytes)
            if data:
                return data
            if data is not None:
                raise ConnectionResetError("closed by nsqd")


def _is_heartbeat(frame: _Answer) -> bool:
    return isinstance(frame, Response) and frame.is_heartbeat
