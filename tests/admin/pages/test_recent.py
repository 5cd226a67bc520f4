"""Many who look at the same."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from quart import Response
from trio.testing import MockClock

from admin.pages.shared_queries import MAX_RESULTS, RESULT_LIFETIME_S, RecentResults
from admin.pages.site import Site
from tests.admin.pages.support import Nodes, channel, pages, parsed, topic


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


async def test_a_live_part_is_rendered_once_for_all_who_watch(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next poll or the next action; another page, or other favourites, are others."""
    rendered = list[str]()
    page = Site.page

    def count(site: Site, template: str, *more: Any, **values: Any) -> Response:
        rendered.append(template)
        return page(site, template, *more, **values)

    monkeypatch.setattr(Site, "page", count)
    live = {"HX-Request": "true"}
    async with pages(Nodes({"one:4151": [topic("t", channel("c", depth=7))]})) as found:
        await found.page("/topics")
        rendered.clear()
        parts = [await found.page("/topics", **live) for _ in range(5)]
        assert rendered == ["topics.html"]
        tokens = {a["value"] for part in parts for t, a in parsed(part).tags
                  if a.get("name") == "csrf_token"}  # fmt: skip
        assert tokens == {await found.token()}
        rendered.clear()
        await found.page("/topics?sort=-depth", **live)
        await found.page("/topics", **live, Cookie="nsqadmin_favourites=t")
        assert rendered == ["topics.html"] * 2
        rendered.clear()
        await found.send("/do/pause", topic="t")
        rendered.clear()
        await found.page("/topics", **live)
        await trio.sleep(40)
        await found.page("/topics", **live)
        assert rendered == ["topics.html"] * 2
