"""Cutting sent bytes: a parser must not see where one write ended and the next began."""

from __future__ import annotations

import random
from typing import Literal

Cutting = Literal["whole", "bytewise", "random"]
CUTTINGS: tuple[Cutting, ...] = ("whole", "bytewise", "random")

CUTS_MAX = 6


class Cutter:
    """Cuts what one case sends. The seed is the case's name, so a failure repeats."""

    def __init__(self, cutting: Cutting, seed: str) -> None:
        self.cutting = cutting
        self.seed = seed
        self._random = random.Random(seed)

    def pieces(self, data: bytes) -> list[bytes]:
        """``data`` in pieces, none empty."""
        if self.cutting == "whole" or len(data) < 2:
            return [data] if data else []
        if self.cutting == "bytewise":
            return [data[i : i + 1] for i in range(len(data))]
        count = self._random.randint(1, min(CUTS_MAX, len(data) - 1))
        points = sorted(self._random.sample(range(1, len(data)), count))
        ends = [*points, len(data)]
        return [data[i:j] for i, j in zip([0, *points], ends, strict=True)]

    def __repr__(self) -> str:
        return f"<Cutter {self.cutting} seed={self.seed!r}>"
