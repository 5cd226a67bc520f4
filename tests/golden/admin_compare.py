"""Whether a JSON answer of nsqadmin is as recorded: masks within strings, lists in any order."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["differs"]

_MASKS: Final = {
    # Without nsqlookupd a node has no remote address: there "" was recorded under this mask.
    "<addr>": r"(?:[^\s:/]+:\d+|\[[^\s\]]+\]:\d+)?",
    "<str>": r".*",
    "<version>": r"\d+\.\d+\.\d+.*",
}
_MASK: Final = re.compile("|".join(map(re.escape, _MASKS)))


def differs(expected: Any, got: Any, *, unordered: bool, at: str = "$") -> str:
    """The first difference, in words; "" if there is none.

    Keys must be in the same order, and lists too, unless ``unordered``.
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        return _objects(expected, got, unordered, at)
    if isinstance(expected, list) and isinstance(got, list):
        return _lists(expected, got, unordered, at)
    return "" if _same(expected, got) else f"{at}: {got!r}\nexpected {expected!r}"


def _objects(expected: dict[str, Any], got: dict[str, Any], unordered: bool, at: str) -> str:
    wanted, found = list(expected), list(got)
    if unordered:
        wanted, found = sorted(wanted), sorted(found)
    if wanted != found:
        return f"{at}: keys {found}\nexpected {wanted}"
    for key in wanted:
        found_here = differs(expected[key], got[key], unordered=unordered, at=f"{at}.{key}")
        if found_here:
            return found_here
    return ""


def _lists(expected: list[Any], got: list[Any], unordered: bool, at: str) -> str:
    if len(expected) != len(got):
        return f"{at}: {got!r}\nexpected {expected!r}"
    rest = list(got)
    for number, wanted in enumerate(expected):
        candidates = rest if unordered else rest[:1]
        said = [
            differs(wanted, other, unordered=unordered, at=f"{at}[{number}]")
            for other in candidates
        ]
        if "" not in said:
            return said[0]
        del rest[said.index("")]
    return ""


def _same(expected: Any, got: Any) -> bool:
    if expected == "<int>":
        return isinstance(got, int) and not isinstance(got, bool)
    if isinstance(expected, str) and isinstance(got, str):
        pieces = _MASK.split(expected)
        masks = [_MASKS[mask] for mask in _MASK.findall(expected)]
        pattern = re.escape(pieces[0])
        for mask, piece in zip(masks, pieces[1:], strict=True):
            pattern += mask + re.escape(piece)
        return re.fullmatch(pattern, got, re.DOTALL) is not None
    return isinstance(got, bool) == isinstance(expected, bool) and bool(got == expected)
