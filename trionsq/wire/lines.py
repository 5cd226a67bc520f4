"""Command lines: split, checked and made events; and runs of FIN and PUB in the data of one read.

Clients repeat the lines of PUB and MPUB, so the meaning of a line is cached. Runs are recognised
with C-speed operations. They end before anything unusual, which `split_line` and its like decide.

Spec: tcp-protocol, sections 8 to 13.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from trionsq.wire.bodies import Bodies, PackedBodies, StridedBodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import GiveUp, Ready, Requeue, Subscribe
from trionsq.wire.names import is_valid_name, is_valid_reason, quote

__all__ = [
    "FIN_LINE_BYTES",
    "CommandLimits",
    "IncompleteCommand",
    "LineTooLong",
    "Params",
    "fin_run",
    "parse_deferred",
    "parse_message_id",
    "parse_ready",
    "parse_requeue",
    "parse_subscribe",
    "pub_run",
    "pub_topic",
    "split_line",
    "valid_name",
]

_MAX_DIGITS: Final = 18
_MAX_CACHED_LINE_BYTES: Final = 256
_ID_BYTES: Final = 16
Params = tuple[bytes, ...]
FIN_LINE_BYTES: Final = len(b"FIN 0123456789abcdef\n")
_HEX: Final = b"0123456789abcdef"
_FIN_RUN: Final = re.compile(rb"(?:FIN [0-9a-f]{16}\n)+")
_FIRST_WINDOW: Final = 16
_FIELD: Final = 4
_INT32 = Struct(">i")


class LineTooLong(Exception):
    """A command line that does not fit the read buffer: the connection ends without a frame."""


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits on sizes and ranges in commands (options of the same names)."""

    max_msg_size: int = 1048576
    max_body_size: int = 5242880
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 3_600_000
    max_defer_timeout_ms: int = 3_600_000


def _split(line: bytes) -> Params:
    end = -2 if line.endswith(b"\r\n") else -1
    return tuple(line[:end].split(b" "))


def split_line(line: bytes) -> Params:
    """Return the command and its parameters. Lines of MPUB are cached."""
    if line.startswith(b"MPUB ") and len(line) <= _MAX_CACHED_LINE_BYTES:
        return _split_cached(line)
    return _split(line)


_split_cached = lru_cache(maxsize=4096)(_split)


def pub_topic(line: bytes) -> str:
    """Return the topic of a PUB. Lines are cached."""
    if len(line) <= _MAX_CACHED_LINE_BYTES:
        return _pub_topic_cached(line)
    return _parse_pub_topic(line)


def _parse_pub_topic(line: bytes) -> str:
    params = _split(line)
    if len(params) < 2:
        raise ProtocolError("E_INVALID", "PUB insufficient number of parameters")
    return valid_name(params[1], "E_BAD_TOPIC", "PUB topic name")


_pub_topic_cached = lru_cache(maxsize=4096)(_parse_pub_topic)


@lru_cache(maxsize=4096)
def valid_name(name: bytes, code: str, what: str) -> str:
    """Return a topic or channel name. Errors are not cached, so the cache has short names only."""
    if not is_valid_name(name):
        raise ProtocolError(code, b"%b %b is not valid" % (what.encode(), quote(name)))
    return name.decode()


def parse_message_id(params: Params, command: str, count: int) -> bytes:
    """Return the message id of FIN, REQ or TOUCH, which have ``count`` parameters."""
    if len(params) <= count:
        raise ProtocolError("E_INVALID", f"{command} insufficient number of params")
    if len(params[1]) != _ID_BYTES:
        raise ProtocolError("E_INVALID", "invalid message ID")
    return params[1]


def _parse_digits(text: bytes) -> int | None:
    """Return the value of a string of digits: 0 if it is empty, None if it has other characters.

    A number that is too large for any limit becomes one that is still too large.
    """
    if not text:
        return 0
    if not text.isdigit():
        return None
    digits = text.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


def parse_subscribe(params: Params) -> Subscribe:
    """Return the event of a SUB."""
    if len(params) < 3:
        raise ProtocolError("E_INVALID", "SUB insufficient number of parameters")
    topic = valid_name(params[1], "E_BAD_TOPIC", "SUB topic name")
    return Subscribe(topic, valid_name(params[2], "E_BAD_CHANNEL", "SUB channel name"))


def parse_ready(params: Params, max_rdy_count: int) -> Ready:
    """Return the event of a RDY."""
    count = 1
    if len(params) > 1:
        digits = _parse_digits(params[1])
        if digits is None:
            raise ProtocolError("E_INVALID", b"RDY could not parse count " + params[1])
        count = digits
    if count > max_rdy_count:
        raise ProtocolError("E_INVALID", f"RDY count {count} out of range 0-{max_rdy_count}")
    return Ready(count)


def parse_requeue(
    params: Params, max_req_timeout_ms: int, dead_letters: bool = False
) -> Requeue | GiveUp:
    """Return the event of a REQ, whose delay is cut to the limit.

    With ``dead_letters`` what stands behind the delay is the reason of a dead letter.
    """
    id_ = parse_message_id(params, "REQ", 2)
    delay_ms = _parse_digits(params[2])
    if delay_ms is None:
        raise ProtocolError("E_INVALID", b"REQ could not parse timeout " + params[2])
    delay_ms = min(delay_ms, max_req_timeout_ms)
    if not dead_letters or len(params) < 4:
        return Requeue(id_, delay_ms)
    reason = b" ".join(params[3:]).decode(errors="replace")
    if not is_valid_reason(reason):
        raise ProtocolError("E_INVALID", "REQ reason is not valid")
    return GiveUp(id_, delay_ms, reason)


def parse_deferred(params: Params, max_defer_timeout_ms: int) -> tuple[str, int]:
    """Return the topic of a DPUB, and its delay in milliseconds."""
    if len(params) < 3:
        raise ProtocolError("E_INVALID", "DPUB insufficient number of parameters")
    topic = valid_name(params[1], "E_BAD_TOPIC", "DPUB topic name")
    delay_ms = _parse_digits(params[2])
    if delay_ms is None:
        raise ProtocolError("E_INVALID", b"DPUB could not parse timeout " + params[2])
    if delay_ms > max_defer_timeout_ms:
        text = f"DPUB timeout {delay_ms} out of range 0-{max_defer_timeout_ms}"
        raise ProtocolError("E_INVALID", text)
    return topic, delay_ms


class IncompleteCommand(NamedTuple):
    """An incomplete command: bytes that it needs, and the error if the input ends before."""

    need: int
    code: str
    text: str


def fin_id(line: bytes) -> bytes:
    """Return the id of a FIN; empty if the line looks unusual."""
    id_ = line[4:-1]
    return b"" if len(id_) != _ID_BYTES or id_.strip(_HEX) else id_


def fin_run(buffer: bytes | bytearray, pos: int) -> list[bytes]:
    """Return the ids of the FINs from ``pos`` on, up to the first that looks unusual."""
    end = len(buffer)
    count, rest = divmod(end - pos, FIN_LINE_BYTES)
    if not rest and 0 < count <= _FIRST_WINDOW:  # mostly there is nothing else
        run = bytes(buffer[pos:])
        if _all_fins(run, count):
            return run[4:-1].split(b"\nFIN ")
    # The window grows, so that the cost depends on the run and not on the data behind it.
    window = _FIRST_WINDOW
    start = pos
    while count := min((end - start) // FIN_LINE_BYTES, window):
        run = bytes(buffer[start : start + count * FIN_LINE_BYTES])
        if not _all_fins(run, count):
            match = _FIN_RUN.match(run)
            start += match.end() if match else 0
            break
        start += len(run)
        if count < window:
            break
        window *= 8
    return bytes(buffer[pos + 4 : start - 1]).split(b"\nFIN ") if start > pos else []


def _all_fins(run: bytes, count: int) -> bool:
    # Without hex digits, and with each space and newline in its place, all lines are FINs.
    return (
        run.translate(None, _HEX) == b"FIN \n" * count
        and run[3::FIN_LINE_BYTES] == b" " * count
        and run[FIN_LINE_BYTES - 1 :: FIN_LINE_BYTES] == b"\n" * count
    )


def pub_run(
    buffer: bytes | bytearray, start: int, line: bytes, max_msg_size: int
) -> tuple[Bodies, int]:
    """Return the bodies of the PUBs with this same line from ``start`` on, and where they end.

    The caller has checked the first PUB. The run ends before one that is incomplete or invalid.
    """
    head = len(line) + _FIELD
    (size,) = _INT32.unpack_from(buffer, start + len(line))
    stride = head + size
    end = len(buffer)
    pos = start + stride
    prefix = buffer[start : start + head]
    while pos + stride <= end and buffer.startswith(prefix, pos):
        pos += stride
    same = StridedBodies(bytes(buffer[start:pos]), head, size)
    if not (pos + head < end and buffer.startswith(line, pos)):
        return same, pos
    ends = list(range(0, pos - start + 1, stride))
    while pos + head < end and buffer.startswith(line, pos):
        (size,) = _INT32.unpack_from(buffer, pos + len(line))
        stop = pos + head + size
        if not 0 < size <= max_msg_size or stop > end:
            break
        pos = stop
        ends.append(pos - start)
    if len(ends) - 1 == same.count:
        return same, pos
    return PackedBodies(bytes(buffer[start:pos]), ends, head), pos
