"""The parameters of a command line: split, checked, and remembered where clients repeat them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from trionsq.wire.errors import ProtocolError
from trionsq.wire.names import is_valid_name, quote

__all__ = ["Params", "message_id", "parse_digits", "pub_topic", "split_line", "valid_name"]

_DIGITS_MAX: Final = 18
_CACHED_LINE_SIZE_MAX: Final = 256
_ID_SIZE: Final = 16
Params = tuple[bytes, ...]


def _split(line: bytes) -> Params:
    end = -2 if line.endswith(b"\r\n") else -1
    return tuple(line[:end].split(b" "))


def split_line(line: bytes) -> Params:
    """The command and its parameters. Publishers repeat their lines, so these are remembered."""
    if line.startswith(b"MPUB ") and len(line) <= _CACHED_LINE_SIZE_MAX:
        return _split_cached(line)
    return _split(line)


_split_cached = lru_cache(maxsize=4096)(_split)


def pub_topic(line: bytes) -> str:
    """The topic of a PUB. Publishers repeat their lines, so these are remembered."""
    if len(line) <= _CACHED_LINE_SIZE_MAX:
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
    """The topic or channel name. Errors are not remembered, so the cache holds short names only."""
    if not is_valid_name(name):
        raise ProtocolError(code, b"%b %b is not valid" % (what.encode(), quote(name)))
    return name.decode()


def message_id(params: Params, command: str, count: int) -> bytes:
    if len(params) <= count:
        raise ProtocolError("E_INVALID", f"{command} insufficient number of params")
    if len(params[1]) != _ID_SIZE:
        raise ProtocolError("E_INVALID", "invalid message ID")
    return params[1]


def parse_digits(text: bytes) -> int | None:
    """The value of a string of digits: 0 for none, None for anything else.

    Numbers too large for any limit are cut to one that is still too large.
    """
    if not text:
        return 0
    if not text.isdigit():
        return None
    digits = text.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX
