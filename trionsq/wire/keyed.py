"""Commands of a client that asked for idempotent publishes: PUB, MPUB and DPUB may have a key.

The key is one parameter more. Behind it may stand the epoch of nsqd, as IDENTIFY told it, when the
publish was sent first. Other clients' parsers take no notice of it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from trionsq.wire.errors import ProtocolError
from trionsq.wire.lines import Params, parse_deferred, split_line, valid_name
from trionsq.wire.names import is_valid_key, quote

__all__ = ["Key", "find_key", "parse_publish"]

# Commands, and the number of their parameters without a key.
_PARAMETERS: Final = {b"PUB": 1, b"MPUB": 1, b"DPUB": 2}

Key: TypeAlias = tuple[bytes, bytes]
"""A key and an epoch; the epoch is empty if there is none."""


def find_key(line: bytes) -> Key | None:
    """Return the key that a command line has, None if it has none.

    Raises:
        ProtocolError: the key or the epoch is not valid, or something stands behind them.
    """
    params = split_line(line)
    count = _PARAMETERS.get(params[0])
    if count is None or len(params) < count + 2:
        return None
    if len(params) > count + 3:
        raise ProtocolError("E_INVALID", f"{params[0].decode()} invalid number of parameters")
    key, epoch = params[count + 1], b"".join(params[count + 2 :])
    for text in (key, epoch or key):
        if not is_valid_key(text):
            raise ProtocolError("E_BAD_KEY", b"%b key %b is not valid" % (params[0], quote(text)))
    return key, epoch


def parse_publish(params: Params, max_delay_ms: int) -> tuple[str, int]:
    """Return the topic and the delay, in milliseconds, of a PUB or DPUB.

    Raises:
        ProtocolError: one of them is not valid.
    """
    if params[0] == b"DPUB":
        return parse_deferred(params, max_delay_ms)
    return valid_name(params[1], "E_BAD_TOPIC", "PUB topic name"), 0
