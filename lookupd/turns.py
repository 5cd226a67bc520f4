"""Long work in short turns of the event loop, so that no request holds up another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from lookupd.registry import Registry
from trionsq.web.protocol import json_bytes

__all__ = ["MAX_TOUCHED", "PRODUCER_COST", "Turns", "sweep"]

MAX_TOUCHED: Final = 500
"""Maximum registrations per turn; they take about half a millisecond."""
PRODUCER_COST: Final = 25
"""The cost of a producer in registrations: its names may have up to 64 KiB together."""


class Turns:
    """Counts the registrations that a task touches; other tasks get their turn in time."""

    def __init__(self) -> None:
        self._touched = 0

    async def touch(self, cost: int = 1) -> None:
        """Count a registration (or ``cost`` of them); after `MAX_TOUCHED`, a checkpoint."""
        self._touched += cost
        if self._touched >= MAX_TOUCHED:
            self._touched = 0
            await trio.lowlevel.checkpoint()

    async def json_array(self, items: Iterable[object | None], cost: int = 1) -> bytes:
        """The items, each of ``cost``, as a JSON array, without None."""
        pieces, piece = list[bytes](), list[object]()
        for item in items:
            if item is not None:
                piece.append(item)
            # A piece is as short as a turn, because it is encoded in one step.
            if len(piece) * cost >= MAX_TOUCHED:
                pieces.append(json_bytes(piece)[1:-1])
                piece.clear()
            await self.touch(cost)
        if piece:
            pieces.append(json_bytes(piece)[1:-1])
        return b"[" + b",".join(pieces) + b"]"


async def sweep(registry: Registry) -> None:
    """Remove void registrations, left by deletions and lost connections."""
    while registry.sweep(MAX_TOUCHED):
        await trio.lowlevel.checkpoint()
