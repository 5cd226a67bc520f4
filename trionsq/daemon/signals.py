"""A second signal, as opposed to an echo of the first."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Callable
from typing import Final

import trio

__all__ = ["ECHO_S", "run_at_hangup", "wait_second_signal"]

ECHO_S: Final = 0.5
"""A signal within this time after the first is an echo, in seconds."""


async def run_at_hangup(work: Callable[[], None]) -> None:
    """Do ``work`` at each SIGHUP, for ever; without effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            work()


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
