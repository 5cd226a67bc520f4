"""Messages that are JSON objects: which pass, and which of their fields.

Spec: tools, nsq_to_nsq. Unlike the original, whole numbers of any size keep all their digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NoReturn

__all__ = ["JsonFilter", "Rejection"]


class Rejection(Enum):
    """What becomes of a message that is not published."""

    DROP = auto()
    """It is finished."""
    REQUEUE = auto()
    """It comes again, and the consumer backs off."""


class JsonFilter:
    """The three options about JSON.

    Attributes:
        is_needed: whether any of them is given; else every message passes as it is.
    """

    def __init__(self, keep: Sequence[str], required: str, value: str) -> None:
        """Args:
        keep: top level fields; none: all.
        required: the field that a message must have; empty: none.
        value: which value of that field; empty: any.
        """
        self._keep = sorted(set(keep))
        self._required = required
        self._value = value
        self._number = _number(value)
        self.is_needed = bool(keep or required)

    def apply(self, body: bytes) -> bytes | Rejection:
        """The body to publish, or why there is none."""
        try:
            found = _DECODER.decode(body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return Rejection.DROP
        if found is None:
            found = {}
        if not isinstance(found, dict):
            return Rejection.DROP
        if self._required:
            if self._required not in found:
                return Rejection.REQUEUE if self._value else Rejection.DROP
            if self._value and not self._is_value(found[self._required]):
                return Rejection.DROP
        if not self._keep:
            return body
        kept = {name: found[name] for name in self._keep if name in found}
        text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
        # Half of a surrogate pair has no UTF-8; its escape is how it came.
        return text.encode("utf-8", "backslashreplace")

    def _is_value(self, value: object) -> bool:
        if isinstance(value, str):
            return value == self._value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._number is not None and float(value) == self._number
        return False


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_int(digits: str) -> int:
    value = int(digits)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{digits[:20]}... is out of range") from None
    return value


def _parse_float(text: str) -> float | int:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return int(value) if value.is_integer() and abs(value) < 2**63 else value


def _parse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    parse_float=_parse_float, parse_int=_parse_int, parse_constant=_parse_constant
)
