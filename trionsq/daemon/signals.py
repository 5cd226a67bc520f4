"""A second signal, as opposed to an echo of the first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

__all__ = ["ECHO_S", "wait_second_signal"]

ECHO_S: Final = 0.5
"""A signal within this time after the first is an echo, in seconds."""


async def wait_second_signal(signals: AsyncIterator[int]) -> None:
    """Wait for a second signal; to be called right after the first one.

    Ctrl-C goes to all processes of a terminal, and programs that run others (make, package
    managers, supervisors) forward it as well: counted as a second signal, it would stop the saving
    of messages.
    """
    meant_s = trio.current_time() + ECHO_S
    async for _ in signals:
        if trio.current_time() >= meant_s:
            return
