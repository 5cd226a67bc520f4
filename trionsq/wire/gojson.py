"""JSON objects from peers, read as strictly, and as leniently, as Go reads them into a struct.

That is what clients in the field were tried against: keys in any case, unknown ones passed over,
null for "not given", whole numbers only, and no value of another type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["read_members"]


class _Object(list[tuple[str, object]]):
    """Members of a JSON object in order, repeated keys included."""


class _NotInteger:
    """A number that does not fit an integer; unknown members may well have one."""


def _parse_int(digits: str) -> int | _NotInteger:
    # Python refuses to read thousands of digits, and no int64 has more than these.
    return int(digits) if len(digits) <= len("-9223372036854775808") else _NotInteger()


def _parse_float(_number: str) -> _NotInteger:
    return _NotInteger()


def _parse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_parse_int,
    parse_float=_parse_float,
    parse_constant=_parse_constant,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONG_S = "\u017f"
_INT_BITS = 64


def read_members(
    body: bytes, kinds: Mapping[str, type], int_bits: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The members of the JSON object in ``body`` that are given; the last of a name counts.

    Args:
        body: the JSON text.
        kinds: the names that are known, in lower case, and their types: str, int or bool.
        int_bits: the size of integers that have another than 64 bits.

    Raises:
        ValueError: not JSON, not an object, or a member of the wrong type or size.
    """
    try:
        value = _DECODER.decode(_text(body))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if value is None:
        return {}
    if not isinstance(value, _Object):
        raise ValueError("not an object")
    found: dict[str, Any] = {}
    for key, member in value:
        # Go matches keys without regard to case, and takes U+017F for an s.
        name = key.replace(_LONG_S, "s").lower()
        if name in kinds and member is not None:
            found[name] = _typed(name, member, kinds[name], (int_bits or {}).get(name, _INT_BITS))
    return found


def _text(body: bytes) -> str:
    """Decode UTF-8 with one U+FFFD for each byte that is not."""
    return _SURROGATE.sub("\ufffd", body.decode("utf-8", "surrogateescape"))


def _typed(name: str, member: object, kind: type, int_bits: int) -> str | int | bool:
    # `type`, not `isinstance`: a bool is no integer here.
    if type(member) is not kind:
        raise ValueError(f"wrong type for {name}")
    if type(member) is int:
        bound = 1 << (int_bits - 1)
        if not -bound <= member < bound:
            raise ValueError(f"{name} out of range")
        return member
    if isinstance(member, str):
        return _SURROGATE.sub("\ufffd", member)
    assert isinstance(member, bool)
    return member
