"""Long work cut into turns of the event loop, so that no request holds up another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from lookupd.registry import Registry
from trionsq.web.protocol import json_bytes

__all__ = ["PRODUCER_COST", "TOUCHED_MAX", "Turns", "sweep"]

TOUCHED_MAX: Final = 500
"""Registrations that one turn touches. That takes about half a millisecond."""
PRODUCER_COST: Final = 25
"""What is told of a producer counts as so many: its names may be long, up to 64 KiB together."""


class Turns:
    """Counts what a task touches, and gives the other tasks their turn in time."""

    def __init__(self) -> None:
        self._touched = 0

    async def touch(self, cost: int = 1) -> None:
        """One more registration is about to be looked at. A checkpoint now and then."""
        self._touched += cost
        if self._touched >= TOUCHED_MAX:
            self._touched = 0
            await trio.lowlevel.checkpoint()

    async def json_array(self, items: Iterable[object | None], cost: int = 1) -> bytes:
        """The items, each of ``cost``, as a JSON array; None is passed over."""
        pieces, piece = list[bytes](), list[object]()
        for item in items:
            if item is not None:
                piece.append(item)
            # A piece must be as short as a turn: encoding it is one step.
            if len(piece) * cost >= TOUCHED_MAX:
                pieces.append(json_bytes(piece)[1:-1])
                piece.clear()
            await self.touch(cost)
        if piece:
            pieces.append(json_bytes(piece)[1:-1])
        return b"[" + b",".join(pieces) + b"]"


async def sweep(registry: Registry) -> None:
    """Remove what deletions and lost connections have left in the registry."""
    while registry.sweep(TOUCHED_MAX):
        await trio.lowlevel.checkpoint()
