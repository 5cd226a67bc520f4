"""One measurement of a kind at a time: two would measure each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UnderWayError", "exclusive"]

# Of the process, as what is measured is.
_under_way: set[str] = set()


class UnderWayError(Exception):
    """A measurement of that kind is under way; ``str()`` is its name."""


@contextmanager
def exclusive(kind: str) -> Iterator[None]:
    """Let nobody else begin a measurement of ``kind`` inside the context.

    Raises:
        UnderWayError: somebody else has begun one.
    """
    if kind in _under_way:
        raise UnderWayError(kind)
    _under_way.add(kind)
    try:
        yield
    finally:
        _under_way.discard(kind)
