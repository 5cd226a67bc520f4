"""Watching the event loop."""

from __future__ import annotations

import time

import pytest
import trio

from trionsq.debug.loop import watch_loop
from trionsq.debug.process import UnderWayError, free_memory, process_metrics


async def test_who_holds_the_loop_up_is_named() -> None:
    """A task that does not give way is the longest step, and everybody's lag."""

    async def slow() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        # Longer than a busy machine takes a process off its processor.
        time.sleep(0.4)  # noqa: ASYNC251
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow, name="slow")
        figures = await watch_loop(0.2)
    assert figures.slowest[0].task == "slow"
    assert figures.slowest[0].duration_ms >= 400
    after = figures.slowest[0].after
    assert after is not None
    assert after.function.endswith("slow")
    assert figures.lag_quantile_ms(1.0) >= 200
    assert figures.lag_quantile_ms(0.0) <= figures.lag_quantile_ms(0.5)
    assert figures.steps > 0
    assert figures.turns > 0
    assert figures.busy_seconds >= 0.4
    assert figures.seconds >= 0.2


async def test_one_watches_at_a_time_and_nobody_after_a_cancellation() -> None:
    """A second one is refused; a cancelled one leaves nothing behind."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_loop, 60)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnderWayError, match="loop"):
            await watch_loop(0.01)
        nursery.cancel_scope.cancel()
    figures = await watch_loop(0.01)
    assert figures.seconds < 60


def test_figures_of_the_process() -> None:
    """Each is plausible; freeing memory does no harm."""
    free_memory()
    figures = process_metrics()
    assert "MainThread" in figures["threads"]
    assert figures["peak_resident_bytes"] > 1_000_000
    assert (figures["resident_bytes"] or 1_000_001) > 1_000_000
    assert 0 < (figures["open_files"] or 1) <= figures["open_files_limit"]
    assert len(figures["collector"]["runs"]) == 3
