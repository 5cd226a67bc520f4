"""Long work in steps: one step in each turn, of all chores in rotation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from trionsq.broker.chores import Chores
from trionsq.broker.defects import Defects


def steps(name: str, count: int, log: list[str]) -> Iterator[None]:
    for number in range(count):
        log.append(f"{name}{number}")
        yield


async def test_chores_take_turns() -> None:
    """A long one does not hold up a short one, and each waiter hears of its own."""
    chores, log = Chores(Defects()), list[str]()
    async with trio.open_nursery() as nursery:
        long = chores.start_later(steps("long", 100, log))
        short = chores.start_later(steps("short", 2, log))
        nursery.start_soon(chores.run)
        await short.wait()
        assert not long.is_done
        assert len(log) <= 8  # tasks that are ready run in any order
        await long.wait()
        assert (len(log), len(chores)) == (102, 0)
        nursery.cancel_scope.cancel()


async def test_a_chore_of_one_step_is_done_at_once() -> None:
    """Without a task; so most of what could be long costs no wait."""
    chores = Chores(Defects())
    chore = chores.start(iter(()))
    assert chore.is_done
    await chore.wait()


async def test_a_chore_that_is_ended_does_no_more() -> None:
    """As when the client for which it looks has gone."""
    chores, log = Chores(Defects()), list[str]()
    async with trio.open_nursery() as nursery:
        chore = chores.start(steps("a", 100, log))
        nursery.start_soon(chores.run)
        await trio.testing.wait_all_tasks_blocked()
        assert len(log) == 100
        chore = chores.start(steps("b", 100, log))
        chore.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(log), len(chores)) == (101, 0)
        nursery.cancel_scope.cancel()


async def test_a_defect_costs_one_chore(caplog: pytest.LogCaptureFixture) -> None:
    """Its waiter goes on, the others' too; it is logged with its trace, and counted."""

    def broken() -> Iterator[None]:
        yield
        raise TypeError("a defect")

    defects, log = Defects(), list[str]()
    chores = Chores(defects)
    async with trio.open_nursery() as nursery:
        first, second = chores.start(broken()), chores.start(steps("b", 5, log))
        nursery.start_soon(chores.run)
        await first.wait()
        await second.wait()
        nursery.cancel_scope.cancel()
    assert (defects.counts["chore"], len(log)) == (1, 5)
    assert "a defect" in caplog.text


async def test_nobody_waits_for_what_is_not_done_any_more() -> None:
    """When the broker ends, whoever waits for a chore goes on."""
    chores, log = Chores(Defects()), list[str]()
    chore = chores.start(steps("a", 10**9, log))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chores.run)
        nursery.start_soon(chore.wait)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert chore.is_done
    late = chores.start(steps("b", 5, log))
    await late.wait()
    assert log[-1] == "b0"
