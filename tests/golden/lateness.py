"""Whether this process was late while it replayed a conversation on the real clock.

A conversation holds real waits: "nothing comes for 400 ms" after a message that was deferred for
500 ms. On a busy machine the replay may begin to wait so late that the message rightly comes.
"""

from __future__ import annotations

from typing import Final

import trio
from trio.testing import MockClock

__all__ = ["LATE_S", "Lateness"]

LATE_S: Final = 0.04
"""The recorded waits end 100 ms or more before anything is due."""
_LOOK_EVERY_S: Final = 0.01


class Lateness:
    """Looks at the clock again and again, and notes when it did so too late."""

    def __init__(self) -> None:
        self._noted_at = float("-inf")

    async def watch(self) -> None:
        """Run until cancelled. A clock that leaps is never late."""
        if isinstance(trio.lowlevel.current_clock(), MockClock):
            return
        while True:
            due = trio.current_time() + _LOOK_EVERY_S
            await trio.sleep_until(due)
            now = trio.current_time()
            if now - due > LATE_S:
                self._noted_at = now

    async def was_late_since(self, start: float) -> bool:
        """Whether it was late at any time from ``start`` until now."""
        if not isinstance(trio.lowlevel.current_clock(), MockClock):
            # What held up the caller just now may not have been noted yet.
            await trio.sleep(2 * _LOOK_EVERY_S)
        return self._noted_at >= start
