"""The longest steps of an event loop, and who held it up."""

from __future__ import annotations

import gc
import time

import trio
import trio.lowlevel

from trionsq.debug.loop import watch_loop
from trionsq.debug.steps import COLLECTING, SlowStep, StepWatch

# Longer than a busy machine takes the looking thread off its processor.
HELD_S = 0.4


def hold_the_loop() -> None:
    """Compute, and let nobody else."""
    end_s = time.perf_counter() + HELD_S
    while time.perf_counter() < end_s:
        sum(range(1_000))


def step(duration_ms: float, cpu_ms: float, queued_ms: float | None) -> SlowStep:
    return SlowStep(duration_ms, cpu_ms, queued_ms, 0.0, "a task", None, None)


async def test_the_function_that_ran_is_named_and_not_where_the_task_gave_way() -> None:
    """A step that spent its time in a function names it, though it ended somewhere else."""

    async def caller() -> None:
        hold_the_loop()
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller, name="caller")
        figures = await watch_loop(0.1)
    longest = figures.slowest[0]
    assert longest.task == "caller"
    assert longest.ran == f"{__name__} hold_the_loop"
    assert longest.after is not None
    assert longest.after.function.endswith("caller")


async def test_blocking_is_told_from_computing() -> None:
    """A step that sleeps has hardly any processor time, and is our own doing all the same."""

    async def sleepy() -> None:
        time.sleep(HELD_S)  # noqa: ASYNC251
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleepy, name="sleepy")
        figures = await watch_loop(0.1)
    longest = figures.slowest[0]
    assert longest.task == "sleepy"
    assert longest.cpu_ms < longest.duration_ms / 2
    assert longest.own_ms > longest.duration_ms / 2


async def test_a_collection_is_named_as_what_held_the_loop_up() -> None:
    """A step that is mostly a garbage collection says so, and its generation counts it."""

    # Made before: on a busy machine the step may wait for a processor at any of its lines.
    kept = [[number] for number in range(100_000)]

    async def collects() -> None:
        await trio.lowlevel.checkpoint()
        for _ in range(3):
            gc.collect()
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collects, name="collects")
        figures = await watch_loop(0.1)
    longest = figures.slowest[0]
    assert longest.task == "collects"
    assert longest.garbage_ms > longest.duration_ms / 2
    assert longest.ran is not None
    assert longest.ran.startswith(COLLECTING)
    assert figures.garbage[2].count >= 3
    assert kept
    assert figures.garbage[2].longest_cpu_ms > 0


def test_time_without_a_processor_is_not_the_programs() -> None:
    """What a step waited for a processor is left out, but never what it computed."""
    assert step(100.0, 10.0, 70.0).own_ms == 30.0
    assert step(100.0, 50.0, 70.0).own_ms == 50.0
    assert step(100.0, 10.0, None).own_ms == 100.0


async def test_the_slowest_are_kept_and_forgotten_on_demand() -> None:
    """Of many steps ten are kept, longest first; after a reset none of them."""

    async def many() -> None:
        for _ in range(50):
            await trio.lowlevel.checkpoint()

    with StepWatch() as watch:
        trio.lowlevel.add_instrument(watch)
        try:
            await many()
            await trio.lowlevel.checkpoint()
            slowest = [each.duration_ms for each in watch.slowest]
            watch.reset()
            steps, left = watch.steps, watch.slowest
        finally:
            trio.lowlevel.remove_instrument(watch)
    assert len(slowest) == 10
    assert slowest == sorted(slowest, reverse=True)
    assert steps == 0
    assert left == []
