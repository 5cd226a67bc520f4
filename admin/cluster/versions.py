"""Versions in their order, by the rules of semantic versioning (semver.org, 11)."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["version_key"]

_VERSION: Final = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:-([^+]*))?(?:\+.*)?")

Key = tuple[tuple[int, int, str], ...]


def version_key(version: str) -> Key:
    """What sorts as the version does; what is no version is older than any."""
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        return ()
    numbers: Key = tuple((1, int(part or 0), "") for part in found.groups()[:3])
    if found[4] is None:
        return (*numbers, (2, 0, ""))  # later than anything before it
    return (*numbers, *map(_part, found[4].split(".")))


def _part(text: str) -> tuple[int, int, str]:
    if text.isdecimal() and len(text) < 10:
        return (0, int(text), "")
    return (1, 0, text)
