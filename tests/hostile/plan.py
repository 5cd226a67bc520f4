"""All attacks, and how a line of the table looks."""

from __future__ import annotations

from typing import Final

from tests.fuzz.watch import MIB
from tests.hostile import auth, bombs, half_open
from tests.hostile.target import Attack, Figures

__all__ = ["ATTACKS", "describe"]

ATTACKS: Final = (*bombs.ATTACKS, *half_open.ATTACKS, *auth.ATTACKS)


def describe(kind: Attack, figures: Figures) -> str:
    """A line for the reader."""
    return (
        f"{kind.name}: {figures.told}; {figures.seconds:.1f} s; peak "
        f"{figures.before_nbytes / MIB:.0f} + {figures.grown_nbytes / MIB:.1f} MiB; the pair at "
        f"{figures.rate:.0f} messages/s, {figures.rate / figures.rate_before:.2f} of before"
    )
