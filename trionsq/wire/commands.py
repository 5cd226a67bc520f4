"""Commands that a client writes: each function returns the bytes of one command.

Arguments that every nsqd refuses (a bad name, an empty body) raise ValueError here, because most
refusals cost the connection. Limits that are options of nsqd, such as --max-rdy-count, are not
checked here.

Spec: tcp-protocol, sections 2, 3 and 6 to 13.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from trionsq.wire.names import MAX_REASON, is_valid_key, is_valid_name, is_valid_reason
from trionsq.wire.states import MAGIC_V2

__all__ = [
    "MAGIC_V2",
    "MAX_DELAY_MS",
    "auth",
    "close",
    "finish",
    "give_up",
    "identify",
    "nop",
    "publish",
    "publish_deferred",
    "publish_many",
    "ready",
    "requeue",
    "subscribe",
    "touch",
]


MAX_DELAY_MS = (2**63 - 1) // 1_000_000
"""nsqd counts in int64 nanoseconds; a longer delay would overflow there."""

_MAX_BODY_BYTES = 2**31 - 1
_MAX_COUNT = 2**63 - 1
# An nsqd that read a damaged file may send other bytes than its 16 hex digits. Those that a command
# can carry are sent back, so that the message can be finished.
_MESSAGE_ID = re.compile(rb"[^ \r\n]{16}")
_pack_size = struct.Struct(">i").pack


def identify(features: Mapping[str, object]) -> bytes:
    """Return IDENTIFY with `features` as its JSON body (tcp-protocol, section 8).

    Raises:
        ValueError: a value is NaN or infinite, which JSON lacks.
        TypeError: a value is of a type that JSON lacks.
    """
    body = json.dumps(dict(features), separators=(",", ":"), allow_nan=False)
    return b"IDENTIFY\n" + _sized(body.encode(), "IDENTIFY body")


def auth(secret: str | bytes) -> bytes:
    """Return AUTH with `secret`; an empty one raises ValueError (tcp-protocol, section 9)."""
    secret = secret.encode() if isinstance(secret, str) else secret
    return b"AUTH\n" + _sized(secret, "secret")


def subscribe(topic: str, channel: str) -> bytes:
    """Return SUB; an invalid name raises ValueError (tcp-protocol, section 10)."""
    return b"SUB %b %b\n" % (_name(topic, "topic"), _name(channel, "channel"))


def ready(count: int) -> bytes:
    """Return RDY: at most `count` messages in flight; below zero raises ValueError."""
    return b"RDY %d\n" % _bounded(count, _MAX_COUNT, "RDY count")


def finish(message_id: bytes) -> bytes:
    """Return FIN; an id that a command cannot carry raises ValueError."""
    return b"FIN %b\n" % _checked_id(message_id)


def requeue(message_id: bytes, delay_ms: int) -> bytes:
    """Return REQ, with the delay in milliseconds, 0 for at once.

    Raises:
        ValueError: a command cannot carry the id, or the delay is below zero or absurdly long.
    """
    delay_ms = _bounded(delay_ms, MAX_DELAY_MS, "requeue delay in ms")
    return b"REQ %b %d\n" % (_checked_id(message_id), delay_ms)


def give_up(message_id: bytes, delay_ms: int, reason: str) -> bytes:
    """Return REQ with a reason, for nsqd that has agreed to dead letters: it makes it one.

    Others ignore the reason, and requeue it.

    Raises:
        ValueError: as `requeue`, or the reason is not valid.
    """
    if not is_valid_reason(reason):
        raise ValueError(f"reason must be 1 to {MAX_REASON} printable characters: {reason!r}")
    return requeue(message_id, delay_ms)[:-1] + b" %b\n" % reason.encode()


def touch(message_id: bytes) -> bytes:
    """Return TOUCH; an id that a command cannot carry raises ValueError."""
    return b"TOUCH %b\n" % _checked_id(message_id)


def publish(topic: str, body: bytes, key: bytes = b"", epoch: bytes = b"") -> bytes:
    """Return PUB; an invalid topic or an empty body raises ValueError.

    ``key``: for nsqd that has agreed to idempotent publishes. An invalid one raises ValueError.
    ``epoch``: what that nsqd named when this was sent first, if it names another now.
    """
    return b"PUB %b%b\n" % (_name(topic, "topic"), _last(key, epoch)) + _sized(body, "message body")


def publish_deferred(
    topic: str, delay_ms: int, body: bytes, key: bytes = b"", epoch: bytes = b""
) -> bytes:
    """Return DPUB, with the delay in milliseconds; ``key`` as of `publish`.

    Raises:
        ValueError: invalid topic, empty body, or a delay below zero or absurdly long.
    """
    delay_ms = _bounded(delay_ms, MAX_DELAY_MS, "publish delay in ms")
    line = b"DPUB %b %d%b\n" % (_name(topic, "topic"), delay_ms, _last(key, epoch))
    return line + _sized(body, "message body")


def publish_many(
    topic: str, bodies: Sequence[bytes], key: bytes = b"", epoch: bytes = b""
) -> bytes:
    """Return MPUB: all of `bodies` are published, or none (tcp-protocol, section 12).

    ``key`` as of `publish`.

    Raises:
        ValueError: invalid topic, no bodies, or an empty one among them.
    """
    if not bodies:
        raise ValueError("MPUB needs at least one message body")
    messages = b"".join([_sized(body, "message body") for body in bodies])
    return b"MPUB %b%b\n" % (_name(topic, "topic"), _last(key, epoch)) + _sized(
        _pack_size(len(bodies)) + messages, "MPUB body"
    )


def nop() -> bytes:
    """Return NOP, the usual answer to a heartbeat."""
    return b"NOP\n"


def close() -> bytes:
    """Return CLS: stop deliveries; nsqd answers CLOSE_WAIT (tcp-protocol, section 13)."""
    return b"CLS\n"


def _last(*keys: bytes) -> bytes:
    """Return a key and an epoch as the last parameters of a command, unless they are empty."""
    given = [key for key in keys if key]
    for key in given:
        if not is_valid_key(key):
            raise ValueError(f"key must be 1 to 64 visible characters without quotes: {key!r}")
    return b"".join([b" " + key for key in given])


def _sized(body: bytes, what: str) -> bytes:
    if not 0 < len(body) <= _MAX_BODY_BYTES:
        raise ValueError(f"{what} must have 1 to {_MAX_BODY_BYTES} bytes, not {len(body)}")
    return _pack_size(len(body)) + body


def _bounded(number: int, maximum: int, what: str) -> int:
    if not 0 <= number <= maximum:
        raise ValueError(f"{what} must be 0 to {maximum}, not {number}")
    return number


def _checked_id(message_id: bytes) -> bytes:
    if _MESSAGE_ID.fullmatch(message_id) is None:
        raise ValueError(f"message id must be 16 bytes without spaces: {message_id!r}")
    return message_id


@lru_cache(maxsize=1024)
def _name(name: str, what: str) -> bytes:
    encoded = name.encode("utf-8", "surrogatepass")
    if not is_valid_name(encoded):
        raise ValueError(f"{what} name is not valid: {name!r}")
    return encoded
