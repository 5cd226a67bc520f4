"""IDENTIFY: features that a client requests, limits of nsqd, and the result.

Spec: tcp-protocol, section 8. `trionsq.wire.gojson` reads the JSON.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import NoReturn

from trionsq.wire import gojson
from trionsq.wire.errors import ProtocolError

__all__ = ["Negotiated", "ServerFeatures", "answer", "negotiate"]

HEARTBEAT_INTERVAL_MS = 30_000
OUTPUT_BUFFER_SIZE_BYTES = 16_384
DEFLATE_LEVEL = 6
# Lower limits; the upper limits are options.
_MIN_HEARTBEAT_INTERVAL_MS = 1_000
_MIN_MSG_TIMEOUT_MS = 1_000
_MIN_OUTPUT_BUFFER_BYTES = 64
_MAX_SAMPLE_RATE = 99


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """Features and limits of this nsqd, with the defaults of its options (sizes in bytes)."""

    version: str = "1.3.0"
    max_rdy_count: int = 2_500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    max_heartbeat_interval_ms: int = 60_000
    output_buffer_timeout_ms: int = 250
    min_output_buffer_timeout_ms: int = 25
    max_output_buffer_timeout_ms: int = 30_000
    max_output_buffer_size: int = 65_536
    tls_v1: bool = False
    deflate: bool = False
    max_deflate_level: int = 6
    snappy: bool = False
    auth_required: bool = False
    idempotent_publish: bool = False
    idempotency_epoch: str = ""


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The settings of one connection (sizes in bytes)."""

    client_id: str
    hostname: str
    user_agent: str
    feature_negotiation: bool
    heartbeat_interval_ms: int | None
    """None: no heartbeats, and no read timeout."""
    output_buffer_size: int
    output_buffer_timeout_ms: int
    """0: no flush by time."""
    sample_rate: int
    """Percent of the messages that are delivered; 0 is all of them."""
    msg_timeout_ms: int
    tls_v1: bool
    deflate: bool
    deflate_level: int
    snappy: bool
    idempotent_publish: bool | None = None
    """Whether publishes may have a key; None: the client did not ask."""
    dead_letters: bool = False
    """Whether REQ may have the reason of a dead letter."""

    @classmethod
    def default(cls, features: ServerFeatures, identifier: str = "") -> Negotiated:
        """Return the settings of a client that never sent IDENTIFY.

        Args:
            features: of this nsqd.
            identifier: the client's address, which stands in for its id and hostname.
        """
        return cls(
            client_id=identifier,
            hostname=identifier,
            user_agent="",
            feature_negotiation=False,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            output_buffer_size=OUTPUT_BUFFER_SIZE_BYTES,
            output_buffer_timeout_ms=features.output_buffer_timeout_ms,
            sample_rate=0,
            msg_timeout_ms=features.msg_timeout_ms,
            tls_v1=False,
            deflate=False,
            deflate_level=min(DEFLATE_LEVEL, features.max_deflate_level),
            snappy=False,
        )


@dataclass(slots=True)
class _Request:
    """Members of the JSON object, under their own names; a missing one has its type's zero."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    idempotent_publish: bool = False
    dead_letters: bool = False


_KINDS: dict[str, type] = {
    field.name: type(field.default) for field in dataclasses.fields(_Request)
}
_INT_BITS = {"sample_rate": 32}


def negotiate(
    body: bytes, features: ServerFeatures, current: Negotiated | None = None
) -> Negotiated:
    """Return the settings that an IDENTIFY with this body results in.

    Args:
        body: the JSON object, without its size.
        features: of this nsqd.
        current: the present settings, if this is not the connection's first IDENTIFY: a value
            of 0, or none, leaves heartbeat interval, output buffer and msg_timeout as they are.

    Raises:
        ProtocolError: E_BAD_BODY for JSON that cannot be read and for values out of range,
            E_IDENTIFY_FAILED for two compressions at once. All are fatal.
    """
    request = _read(body)
    current = current or Negotiated.default(features)
    heartbeat_interval_ms = _heartbeat_interval_ms(request, features, current)
    buffer_size, buffer_timeout_ms = _output_buffer(request, features, current)
    if not 0 <= request.sample_rate <= _MAX_SAMPLE_RATE:
        _refuse("sample rate", request.sample_rate)
    msg_timeout_ms = _msg_timeout_ms(request, features, current)
    upgrade = request.feature_negotiation
    deflate = upgrade and request.deflate and features.deflate
    snappy = upgrade and request.snappy and features.snappy
    if deflate and snappy:
        text = "cannot enable both deflate and snappy compression"
        raise ProtocolError("E_IDENTIFY_FAILED", text)
    # A level is a wish only together with deflate; without it nsqd reports its own.
    level = request.deflate_level if deflate and request.deflate_level > 0 else DEFLATE_LEVEL
    return Negotiated(
        client_id=request.client_id,
        hostname=request.hostname,
        user_agent=request.user_agent,
        feature_negotiation=request.feature_negotiation,
        heartbeat_interval_ms=heartbeat_interval_ms,
        output_buffer_size=buffer_size,
        output_buffer_timeout_ms=buffer_timeout_ms,
        sample_rate=request.sample_rate,
        msg_timeout_ms=msg_timeout_ms,
        tls_v1=upgrade and request.tls_v1 and features.tls_v1,
        deflate=deflate,
        deflate_level=min(level, features.max_deflate_level),
        snappy=snappy,
        idempotent_publish=(
            upgrade and features.idempotent_publish if request.idempotent_publish else None
        ),
        dead_letters=upgrade and request.dead_letters,
    )


def answer(negotiated: Negotiated, features: ServerFeatures) -> bytes:
    """Return the data of the response frame: JSON, or ``OK`` if the client cannot negotiate.

    Keys, their order and the compact form are nsqd's; tls_v1, deflate and snappy say what is
    on from here. What idempotent publishes and dead letters need is ours, and only for those who
    ask.
    """
    if not negotiated.feature_negotiation:
        return b"OK"
    members = {
        "max_rdy_count": features.max_rdy_count,
        "version": features.version,
        "max_msg_timeout": features.max_msg_timeout_ms,
        "msg_timeout": negotiated.msg_timeout_ms,
        "tls_v1": negotiated.tls_v1,
        "deflate": negotiated.deflate,
        "deflate_level": negotiated.deflate_level,
        "max_deflate_level": features.max_deflate_level,
        "snappy": negotiated.snappy,
        "sample_rate": negotiated.sample_rate,
        "auth_required": features.auth_required,
        "output_buffer_size": negotiated.output_buffer_size,
        "output_buffer_timeout": negotiated.output_buffer_timeout_ms,
    }
    if negotiated.idempotent_publish is not None:
        members["idempotent_publish"] = negotiated.idempotent_publish
        members["idempotency_epoch"] = features.idempotency_epoch
    if negotiated.dead_letters:
        members["dead_letters"] = True
    return json.dumps(members, separators=(",", ":")).encode()


# What each value means: 0 leaves it, -1 switches it off, the rest has a range.


def _heartbeat_interval_ms(
    request: _Request, features: ServerFeatures, current: Negotiated
) -> int | None:
    wish = request.heartbeat_interval
    if wish == 0:
        return current.heartbeat_interval_ms
    if wish == -1:
        return None
    if not _MIN_HEARTBEAT_INTERVAL_MS <= wish <= features.max_heartbeat_interval_ms:
        _refuse("heartbeat interval", wish)
    return wish


def _output_buffer(
    request: _Request, features: ServerFeatures, current: Negotiated
) -> tuple[int, int]:
    """Return size and timeout in ms; a connection without a buffer has no timeout either."""
    size, timeout_ms = request.output_buffer_size, request.output_buffer_timeout
    shortest_ms = features.min_output_buffer_timeout_ms
    longest_ms = features.max_output_buffer_timeout_ms
    if timeout_ms not in (0, -1) and not shortest_ms <= timeout_ms <= longest_ms:
        _refuse("output buffer timeout", timeout_ms)
    smallest, largest = _MIN_OUTPUT_BUFFER_BYTES, features.max_output_buffer_size
    if size not in (0, -1) and not smallest <= size <= largest:
        _refuse("output buffer size", size)
    if size == -1:
        return 1, 0
    if timeout_ms == 0:
        timeout_ms = current.output_buffer_timeout_ms
    return size or current.output_buffer_size, max(timeout_ms, 0)


def _msg_timeout_ms(request: _Request, features: ServerFeatures, current: Negotiated) -> int:
    wish = request.msg_timeout
    if wish == 0:
        return current.msg_timeout_ms
    if not _MIN_MSG_TIMEOUT_MS <= wish <= features.max_msg_timeout_ms:
        _refuse("msg timeout", wish)
    return wish


def _refuse(field: str, value: int) -> NoReturn:
    raise ProtocolError("E_BAD_BODY", f"IDENTIFY {field} ({value}) is invalid")


def _read(body: bytes) -> _Request:
    try:
        return _Request(**gojson.read_members(body, _KINDS, _INT_BITS))
    except ValueError:
        raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
