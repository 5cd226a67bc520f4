"""Pages of what is on a node that hangs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from trio.testing import MockClock

from admin.cluster.queries import SILENT_S
from admin.upstream import UpstreamError
from tests.admin.pages.support import Nodes, Pages, channel, pages, topic

HANGS = "two:4151"


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


def hang(found: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a node takes requests and does not answer."""
    answer = found.dashboard.upstream._ask

    async def ask(method: str, url: str, timeout_s: float | None, *body: Any) -> bytes:
        if urlsplit(url).netloc != HANGS:
            return await answer(method, url, timeout_s, *body)
        await trio.sleep(5.0 if timeout_s is None else timeout_s)
        raise UpstreamError(HANGS, "no answer")

    monkeypatch.setattr(found.dashboard.upstream, "_ask", ask)
