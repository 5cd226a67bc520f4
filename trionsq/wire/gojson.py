"""JSON from peers and files, read as strictly, and as leniently, as Go reads it into a struct.

Clients in the field, auth servers and `nsqd.dat` were tried against Go: keys in any case, unknown
ones ignored, null for "not set", whole numbers only, and no value of another type.

No error text quotes a value of the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

__all__ = [
    "JsonObject",
    "decode",
    "read_array",
    "read_bool",
    "read_integer",
    "read_members",
    "read_object",
    "read_string",
]


class JsonObject(dict[str, object]):
    """Members of a JSON object by lower-case name: the last of each name that is not null.

    Attributes:
        pairs: all members that are not null, repeated names included.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class _NotInteger:
    """A number that is no int64; unknown members may well have one."""


def _object(pairs: Iterable[tuple[str, object]]) -> JsonObject:
    # Go matches keys without regard to case, and takes U+017F for an s.
    return JsonObject(
        [(name.replace(_LONG_S, "s").lower(), value) for name, value in pairs if value is not None]
    )


def _parse_int(digits: str) -> int | _NotInteger:
    # Python refuses to read thousands of digits, and no int64 has more than these.
    return int(digits) if len(digits) <= len("-9223372036854775808") else _NotInteger()


def _parse_float(_number: str) -> _NotInteger:
    return _NotInteger()


def _parse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_parse_int,
    parse_float=_parse_float,
    parse_constant=_parse_constant,
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_LONG_S: Final = "\u017f"
_KINDS: Final = {bool: "a boolean", str: "a string", list: "an array", JsonObject: "an object"}


def decode(body: bytes) -> object:
    """Decode a JSON document, for the readers below.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    # Go reads each byte that is not UTF-8 as one U+FFFD.
    text = _SURROGATE.sub("\ufffd", body.decode("utf-8", "surrogateescape"))
    if text.startswith("\ufeff"):
        raise ValueError("unexpected UTF-8 BOM")
    try:
        value: object = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            raise ValueError("unexpected end of JSON input") from None
        raise
    return value


# The readers take a member's value and its name for the error text; None is a missing value.


def read_object(value: object, name: str) -> JsonObject:
    """Return an object; empty if the value is missing.

    Raises:
        ValueError: the value has another type.
    """
    if value is None:
        return JsonObject([])
    if not isinstance(value, JsonObject):
        raise _wrong_type(value, name, "an object")
    return value


def read_array(value: object, name: str) -> list[object]:
    """Return an array; empty if the value is missing. Raises ValueError as `read_object`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong_type(value, name, "an array")
    return value


def read_string(value: object, name: str) -> str:
    """Return a string; empty if the value is missing. Raises ValueError as `read_object`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong_type(value, name, "a string")
    return _SURROGATE.sub("\ufffd", value)


def read_bool(value: object, name: str) -> bool:
    """Return a boolean; False if the value is missing. Raises ValueError as `read_object`."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong_type(value, name, "true or false")
    return value


def read_integer(value: object, name: str, bits: int = 64) -> int:
    """Return a signed integer of that size; 0 if the value is missing.

    Raises:
        ValueError: the value has another type, or does not fit.
    """
    if value is None:
        return 0
    # `type`, not `isinstance`: a bool is no integer here.
    if type(value) is not int:
        raise _wrong_type(value, name, "an integer")
    limit = 1 << (bits - 1)
    if not -limit <= value < limit:
        raise ValueError(f"{name}: integer out of range")
    return value


def _wrong_type(value: object, name: str, expected: str) -> ValueError:
    return ValueError(f"{name}: expected {expected}, not {_KINDS.get(type(value), 'a number')}")


def read_members(
    body: bytes, kinds: Mapping[str, type], int_bits: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the known members of the JSON object in ``body`` that are set.

    Args:
        body: the JSON text.
        kinds: the names that are known, in lower case, and their types: str, int or bool.
        int_bits: the size of integers that have another than 64 bits.

    Raises:
        ValueError: not JSON, not an object, or a member of the wrong type or size.
    """
    members: dict[str, Any] = {}
    # A value of the wrong type is an error also where a later member has the same name.
    for name, value in read_object(decode(body), "document").pairs:
        kind = kinds.get(name)
        if kind is str:
            members[name] = read_string(value, name)
        elif kind is bool:
            members[name] = read_bool(value, name)
        elif kind is int:
            members[name] = read_integer(value, name, (int_bits or {}).get(name, 64))
    return members
