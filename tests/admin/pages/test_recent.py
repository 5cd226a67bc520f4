"""Many who look at the same."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from admin.pages.shared_queries import MAX_RESULTS, RESULT_LIFETIME_S, RecentResults


async def test_what_is_being_found_out_is_found_out_once(autojump_clock: MockClock) -> None:
    """Ten who ask at once are one question, and a second later it is asked anew."""
    recent, asked = RecentResults(), list[float]()

    async def find() -> int:
        asked.append(trio.current_time())
        await trio.sleep(0.1)
        return len(asked)

    found: list[int] = []

    async def look() -> None:
        found.append(await recent.get("key", find))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(look)
    assert found == [1] * 10
    await trio.sleep(RESULT_LIFETIME_S)
    assert await recent.get("key", find) == 2


async def test_who_waits_is_not_let_down(autojump_clock: MockClock) -> None:
    """If the one who asked goes away or fails, the next one asks."""
    recent, asked = RecentResults(), list[int]()

    async def find() -> int:
        asked.append(1)
        await trio.sleep(1)
        if len(asked) < 2:
            raise ValueError("gone")
        return 7

    async def gone() -> None:
        with trio.move_on_after(0.5):
            await recent.get("key", find)

    found: list[int] = []

    async def patient() -> None:
        found.append(await recent.get("key", find))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gone)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(patient)
    assert found == [7]
    asked.clear()
    with pytest.raises(ValueError, match="gone"):
        await recent.get("other", find)


async def test_a_change_is_seen_at_once() -> None:
    """What was known before a form was sent is asked again."""
    recent, values = RecentResults(), [1, 2]

    async def find() -> int:
        await trio.lowlevel.checkpoint()
        return values.pop(0)

    assert await recent.get("key", find) == 1
    recent.clear()
    assert await recent.get("key", find) == 2


async def test_little_is_kept() -> None:
    """However many pages are looked at."""
    recent = RecentResults()

    async def find() -> int:
        await trio.lowlevel.checkpoint()
        return 1

    for number in range(3 * MAX_RESULTS):
        await recent.get(number, find)
    assert len(recent) <= MAX_RESULTS
