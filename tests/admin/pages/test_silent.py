"""Pages and the API, of what is on a node that hangs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from trio.testing import MockClock

from admin.cluster.queries import LATE_S, SILENT_S
from admin.upstream import UpstreamError
from tests.admin.pages.support import Nodes, Pages, channel, pages, topic

HANGS = "two:4151"
HANGS_S = 20.0


@pytest.mark.parametrize("path", ["/topics/orders", "/topics/orders/billing", f"/nodes/{HANGS}"])
async def test_a_page_hardly_waits_for_who_is_silent(
    path: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a poll has found that a node hangs, no page waits out its time again."""
    on_both: dict[str, Any] = {"one:4151": [topic("orders", channel("billing"))]}
    on_both[HANGS] = on_both["one:4151"]
    async with pages(Nodes(on_both)) as found:
        hang(found, monkeypatch)
        with found.dashboard.poller.watch():
            seen = 0
            while not found.dashboard.poller.silent_nodes:
                seen = (await found.dashboard.poller.changed(seen)).sequence
            assert found.dashboard.poller.silent_nodes == {HANGS}
            began_s = trio.current_time()
            assert "no answer" in await found.page(path)
            assert trio.current_time() - began_s <= SILENT_S


@pytest.mark.parametrize("hanging", [HANGS, "lookup2:4161"])
@pytest.mark.parametrize(
    "path",
    [
        "/topics/orders",
        "/topics/orders/billing",
        "/confirm/empty?topic=orders",
        "/api/topics",
        "/api/nodes",
        "/api/topics/orders",
        "/api/topics/orders/billing",
    ],
)
async def test_the_others_are_shown_before_its_time_is_over(
    path: str, hanging: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows yet that it hangs: it is named within a short time, with what the others say."""
    on_both: dict[str, Any] = {"one:4151": [topic("orders", channel("billing", depth=7))]}
    on_both[HANGS] = on_both["one:4151"]
    async with pages(Nodes(on_both)) as found:
        cluster = found.dashboard.cluster
        cluster.lookupd_addresses = (*cluster.lookupd_addresses, "lookup2:4161")
        hang(found, monkeypatch, hanging)
        began_s = trio.current_time()
        page = await found.page(path)
        assert trio.current_time() - began_s <= LATE_S
        if hanging != HANGS or "orders" in path:
            assert f"{hanging}: no answer within 2.0 s" in page
        assert "orders" in page or "one" in page


async def test_what_is_changed_waits_for_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow nsqlookupd may know a node that the others do not: an action must reach it, too."""
    async with pages(Nodes({"one:4151": [topic("orders")]})) as found:
        cluster = found.dashboard.cluster
        cluster.lookupd_addresses = (*cluster.lookupd_addresses, "lookup2:4161")
        hang(found, monkeypatch, "lookup2:4161")
        began_s = trio.current_time()
        await found.send("/do/pause", topic="orders")
        assert trio.current_time() - began_s >= HANGS_S
        assert found.nodes.posted


async def test_topics_to_be_removed_are_told_by_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts delete what is listed as inactive: a slow nsqlookupd may know who has it."""
    async with pages(Nodes({"one:4151": [topic("orders")]})) as found:
        cluster = found.dashboard.cluster
        cluster.lookupd_addresses = (*cluster.lookupd_addresses, "lookup2:4161")
        hang(found, monkeypatch, "lookup2:4161")
        began_s = trio.current_time()
        await found.page("/api/topics?inactive=true")
        assert trio.current_time() - began_s >= HANGS_S


def hang(found: Pages, monkeypatch: pytest.MonkeyPatch, node: str = HANGS) -> None:
    """From now on a node takes requests and does not answer."""
    answer = found.dashboard.upstream._request

    async def ask(method: str, url: str, timeout_s: float | None, *body: Any) -> bytes:
        if urlsplit(url).netloc != node:
            return await answer(method, url, timeout_s, *body)
        await trio.sleep(HANGS_S if timeout_s is None else timeout_s)
        raise UpstreamError(node, "no answer")

    monkeypatch.setattr(found.dashboard.upstream, "_request", ask)
