"""How a connection begins: IDENTIFY, then TLS and compression as agreed on, then AUTH.

Up to the last upgrade not a byte more is read than the frame that is waited for: what follows it
belongs to the next layer.

Spec: client, section 1; tcp-protocol, sections 8 (IDENTIFY, upgrade order) and 9 (AUTH).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import trio

from trionsq.client.config import Config, reason_of
from trionsq.client.dial import split_address
from trionsq.client.errors import (
    AuthError,
    AuthRequiredError,
    ConnectError,
    IdentifyError,
    UpgradeError,
)
from trionsq.transports.deflate import DeflateLayer
from trionsq.transports.layered import UpgradedTransport
from trionsq.transports.snappy import SnappyLayer
from trionsq.transports.tls import SslEngine, TlsInfo, start_tls
from trionsq.transports.transport import Transport
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, FrameError, Message, Response
from trionsq.wire.columns import ColumnDecoder

__all__ = ["RDY_MAX", "Handshake"]

RDY_MAX: Final = 2500
"""The largest RDY of an nsqd that says nothing about it."""

_READ_NBYTES: Final = 64 * 1024
_SIZE_NBYTES: Final = 4

_Answer: TypeAlias = Response | ErrorFrame

_unpack_size = struct.Struct(">i").unpack_from


class Handshake:
    """The beginning of one connection; `run` goes through it, once.

    Attributes:
        address: ``host:port`` of nsqd.
        transport: to go on with; the one given, with the layers agreed on over it.
        features: nsqd's answer to IDENTIFY; empty without feature negotiation.
        tls: what was agreed on; None in clear.
    """

    def __init__(
        self, address: str, transport: Transport, config: Config, decoder: ColumnDecoder
    ) -> None:
        """``decoder`` is the connection's: bytes after the last answer of this are left in it."""
        self.address = address
        self.transport = transport
        self.features: Mapping[str, Any] = {}
        self.tls: TlsInfo | None = None
        self._config = config
        self._decoder = decoder

    def __repr__(self) -> str:
        return f"<Handshake {self.address} {self.transport!r}>"

    async def run(self) -> None:
        """Identify, upgrade, authenticate. After a failure the transport is of no use.

        Raises:
            ConnectError: the connection broke, or nsqd said nothing in time.
            IdentifyError: nsqd refuses IDENTIFY, or its answer can't be understood.
            UpgradeError: no TLS, though asked for, or a layer could not be begun.
            AuthError: see there.
        """
        with trio.move_on_after(self._config.read_timeout_s) as patience:
            await self._identify()
        if patience.cancelled_caught:
            raise ConnectError(f"{self.address}: no answer to IDENTIFY")
        with trio.move_on_after(self._config.dial_timeout_s) as patience:
            await self._upgrade()
        if patience.cancelled_caught:
            seconds = f"{self._config.dial_timeout_s:g} s"
            raise UpgradeError(f"{self.address}: {self._agreed()} not begun within {seconds}")
        with trio.move_on_after(self._config.read_timeout_s) as patience:
            await self._authenticate()
        if patience.cancelled_caught:
            raise AuthError(f"{self.address}: no answer to AUTH")

    # IDENTIFY

    async def _identify(self) -> None:
        try:
            await self._send(commands.MAGIC_V2 + commands.identify(self._config.identity()))
            answer = await self._exact_frame()
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
                features["max_rdy_count"] = int(features.get("max_rdy_count", RDY_MAX))
            except (ValueError, TypeError, RecursionError) as error:
                raise IdentifyError(f"{self.address}: failed to IDENTIFY - {error}") from error
        for name in ("tls_v1", "deflate", "snappy"):
            if features.get(name) and not getattr(self._config, name):
                raise IdentifyError(f"{self.address}: nsqd turned on {name}, unasked")
        if features.get("deflate") and features.get("snappy"):
            raise IdentifyError(f"{self.address}: nsqd turned on both deflate and snappy")
        if self._config.tls_v1 and not features.get("tls_v1"):
            # Whoever asks for TLS must not be talked out of it, by nsqd or by one in between.
            raise UpgradeError(f"{self.address}: tls_v1 is set, and nsqd does not offer TLS")
        return features

    # TLS, deflate, snappy

    def _agreed(self) -> str:
        names = {"tls_v1": "TLS", "deflate": "deflate", "snappy": "snappy"}
        return " and ".join(name for key, name in names.items() if self.features.get(key))

    async def _upgrade(self) -> None:
        if self.features.get("tls_v1"):
            await self._start_tls()
        if self.features.get("deflate"):
            layer = DeflateLayer(self._config.deflate_level)
            self.transport = UpgradedTransport(self.transport, layer)
            await self._confirmed("deflate", self._frame)
        if self.features.get("snappy"):
            self.transport = UpgradedTransport(self.transport, SnappyLayer())
            await self._confirmed("snappy", self._frame)

    async def _start_tls(self) -> None:
        host, _ = split_address(self.address)
        try:
            context = self._config.ssl_context()
            engine = SslEngine(context, server_side=False, server_hostname=host)
            self.transport = await start_tls(self.transport, engine)
        except OSError as error:  # first: some of them are ValueErrors too
            raise self._no("TLS", error) from error
        except ValueError as error:  # the files, or a host that is no name
            raise UpgradeError(f"{self.address}: {error}") from error
        self.tls = engine.info()
        # With TLS 1.3 this is where nsqd says what it thinks of our certificate.
        await self._confirmed("TLS", self._exact_frame)

    async def _confirmed(self, layer: str, frame: Callable[[], Awaitable[_Answer]]) -> None:
        """Read the OK within the new layer."""
        try:
            answer = await frame()
        except (OSError, FrameError) as error:
            raise self._no(layer, error) from error
        if isinstance(answer, ErrorFrame):
            raise UpgradeError(f"{self.address}: no {layer}: {answer.as_error()}")
        if answer.data != b"OK":
            raise UpgradeError(f"{self.address}: no {layer}: nsqd said {answer.data[:64]!r}")

    def _no(self, layer: str, error: Exception) -> UpgradeError:
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
            answer = await self._frame()
        except (OSError, FrameError) as error:
            raise AuthError(f"{self.address}: Error authenticating {error}") from error
        if isinstance(answer, ErrorFrame):
            raise AuthError(f"{self.address}: Error authenticating {answer.as_error()}")

    # Bytes

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view := view[self.transport.send_nowait(view) :]:
            await self.transport.wait_writable()

    async def _frame(self) -> _Answer:
        """The next answer."""
        while True:
            if (answer := self._answer()) is not None:
                return answer
            self._decoder.feed(await self._receive(_READ_NBYTES))

    async def _exact_frame(self) -> _Answer:
        """The same, and nothing that follows it is read."""
        while True:
            head = await self._exactly(_SIZE_NBYTES)
            self._decoder.feed(head)
            self._answer()  # raises if that is no size
            self._decoder.feed(await self._exactly(_unpack_size(head)[0]))
            if (answer := self._answer()) is not None:
                return answer

    def _answer(self) -> _Answer | None:
        if self._decoder.take_columns().ids:
            raise FrameError("a message without a subscription")
        for frame in self._decoder:
            if not isinstance(frame, Message) and not _is_heartbeat(frame):
                return frame
        return None

    async def _exactly(self, nbytes: int) -> bytes:
        data = await self._receive(nbytes)
        while len(data) < nbytes:
            data += await self._receive(nbytes - len(data))
        return data

    async def _receive(self, nbytes_max: int) -> bytes:
        while True:
            await self.transport.wait_readable()
            data = self.transport.receive_nowait(nbytes_max)
            if data:
                return data
            if data is not None:
                raise ConnectionResetError("closed by nsqd")


def _is_heartbeat(frame: _Answer) -> bool:
    return isinstance(frame, Response) and frame.is_heartbeat
