"""The lag of the event loop, sampled twice a second at almost no cost.

`trionsq.debug.loop` shows more, at a higher cost while it runs.
"""

from __future__ import annotations

from typing import Final

import trio

from trionsq.histogram import Histogram

__all__ = ["LOOP_LAG_BOUNDS_S", "watch_loop_lag"]

LOOP_LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_SAMPLE_S: Final = 0.5


async def watch_loop_lag(lag_s: Histogram) -> None:
    """Observe twice a second, until cancelled, how late a sleeping task wakes up."""
    while True:
        wanted_s = trio.current_time() + _SAMPLE_S
        await trio.sleep_until(wanted_s)
        lag_s.observe(max(0.0, trio.current_time() - wanted_s))
