"""Names of segment files."""

from __future__ import annotations

import re
from typing import Final

from trionsq.wire.names import is_ephemeral, is_valid_name

__all__ = [
    "draft_name",
    "incarnation_of",
    "is_draft_name",
    "parse_segment_name",
    "segment_name",
]

_DRAFT: Final = ".tmp"
# Used with fullmatch only.
_NAME: Final = re.compile(r"(.+)\.log\.([0-9]{8,20})\.([0-9]{16,20})\.dat")


def segment_name(topic: str, incarnation: int, first: int) -> str:
    """Return the name of the segment whose first sequence is ``first``."""
    return f"{topic}.log.{incarnation:08d}.{first:016d}.dat"


def draft_name(name: str) -> str:
    """Return the name that a segment has until it counts."""
    return name + _DRAFT


def is_draft_name(name: str) -> bool:
    """Return whether a segment without its own name yet has this one."""
    return name.endswith(_DRAFT) and incarnation_of(name) is not None


def incarnation_of(name: str) -> int | None:
    """Return the incarnation of a segment's topic from its name, or the one before it had that."""
    parsed = parse_segment_name(name.removesuffix(_DRAFT))
    return None if parsed is None else parsed[1]


def parse_segment_name(name: str) -> tuple[str, int, int] | None:
    """Return topic, incarnation and first sequence; None if this is no segment's name."""
    match = _NAME.fullmatch(name)
    if match is None or is_ephemeral(match[1]) or not is_valid_name(match[1].encode()):
        return None
    topic, incarnation, first = match[1], int(match[2]), int(match[3])
    return (topic, incarnation, first) if segment_name(topic, incarnation, first) == name else None
