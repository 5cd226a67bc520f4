"""A filter for messages that are JSON objects: which of them pass, and with which fields.

Spec: tools, nsq_to_nsq. Unlike the original, integers of any size keep all their digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NoReturn

__all__ = ["JsonFilter", "Rejection"]


class Rejection(Enum):
    """What to do with a message that does not pass."""

    DROP = auto()
    """Finish it."""
    REQUEUE = auto()
    """Requeue it, and back off."""


class JsonFilter:
    """The three options about JSON: --whitelist-json-field, --require-json-field and -value.

    Attributes:
        is_active: whether any of them is set; otherwise every message passes unchanged.
    """

    def __init__(self, keep: Sequence[str], required: str, value: str) -> None:
        """Args:
        keep: top level fields to keep; empty: all.
        required: a field that a message must have; "": none.
        value: the value that this field must have; "": any.
        """
        self._keep = sorted(set(keep))
        self._required = required
        self._value = value
        self._number = _number(value)
        self.is_active = bool(keep or required)

    def filtered_body(self, body: bytes) -> bytes | Rejection:
        """The body to publish, or the reason why the message does not pass."""
        try:
            document = _DECODER.decode(body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return Rejection.DROP
        if document is None:
            document = {}
        if not isinstance(document, dict):
            return Rejection.DROP
        if self._required:
            if self._required not in document:
                return Rejection.REQUEUE if self._value else Rejection.DROP
            if self._value and not self._is_value(document[self._required]):
                return Rejection.DROP
        if not self._keep:
            return body
        fields = {name: document[name] for name in self._keep if name in document}
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        # Half of a surrogate pair has no UTF-8 form: write the escape that the message had.
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
