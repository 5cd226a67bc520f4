"""Telling a second signal from an echo of the first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

__all__ = ["ECHO_S", "wait_second_signal"]

ECHO_S: Final = 0.5
"""A signal that comes so soon after the first is the same one, in seconds."""


async def wait_second_signal(signals: AsyncIterator[int]) -> None:
    """Wait for a further signal that was meant; to be called when the first has just come.

    Ctrl-C goes to all processes of a terminal, and programs that run others (make, package
    managers, supervisors) pass it on as well: taken for two, it would cut the saving short.
    """
    meant_s = trio.current_time() + ECHO_S
    async for _ in signals:
        if trio.current_time() >= meant_s:
            return
