"""What is in memory, and who asked for it."""

from __future__ import annotations

import sys
import threading
import tracemalloc

import pytest
import trio

from trionsq.debug import process
from trionsq.debug.process import UnderWayError


class Peculiar:
    """A type that nobody else has objects of."""


def test_the_census_counts_objects_by_type() -> None:
    """The most frequent ones come first."""
    kept = [Peculiar() for _ in range(300)]
    counts = {each.type: each.count for each in process.census(10_000)}
    assert counts[f"{__name__}.Peculiar"] == len(kept)
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert len(process.census(3)) == 3


@pytest.mark.parametrize("frames", [1, 3])
async def test_the_line_that_allocates_is_found(frames: int) -> None:
    """With its bytes and blocks; afterwards nothing is traced any more."""
    kept: list[bytearray] = []

    async def allocate() -> None:
        await trio.lowlevel.checkpoint()
        kept.extend(bytearray(100_000) for _ in range(20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate)
        found = await process.trace_allocations(0.1, 5, frames)
    assert not tracemalloc.is_tracing()
    assert found.alive_bytes >= 2_000_000
    assert found.sites[0].size_bytes >= 2_000_000
    assert found.sites[0].blocks >= 20
    assert __file__ in found.sites[0].stack[-1]
    assert len(found.sites[0].stack) <= frames


async def test_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When they have grown too large, tracing ends early."""
    monkeypatch.setattr(process, "MAX_TRACED_BYTES", 0)
    found = await process.trace_allocations(60, 5)
    assert found.seconds < 60


async def test_one_traces_at_a_time_and_nobody_after_a_cancellation() -> None:
    """A second one is refused; a cancelled one stops tracing."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.trace_allocations, 60, 5)
        await trio.testing.wait_all_tasks_blocked()
        assert tracemalloc.is_tracing()
        with pytest.raises(UnderWayError, match="heap"):
            await process.trace_allocations(0.01, 5)
        nursery.cancel_scope.cancel()
    assert not tracemalloc.is_tracing()


async def test_somebody_elses_trace_goes_on() -> None:
    """Such as that of PYTHONTRACEMALLOC."""
    tracemalloc.start()
    try:
        await process.trace_allocations(0.01, 5)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_the_census_disturbs_no_thread_that_makes_a_tuple() -> None:
    """Who held a tuple that is not complete yet would make it fail."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def make_tuples() -> None:
        try:
            while not is_over.is_set():
                assert len(tuple(number for number in range(50))) == 50
        except SystemError as error:
            failures.append(error)

    thread = threading.Thread(target=make_tuples)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(50):
            process.census(1)
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        thread.join()
    assert not failures
