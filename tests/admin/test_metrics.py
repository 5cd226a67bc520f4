"""nsqadmin's /metrics."""

from __future__ import annotations

import re

import pytest
import trio

from admin.watch.poller import Poller
from tests.admin.nodes import ask, fake_node, nsqadmin, stats_of
from trionsq.web import metrics


async def figures(dashboard: object) -> dict[str, float]:
    """Those without labels, by name."""
    answer = await ask(dashboard, "GET", "/metrics")  # type: ignore[arg-type]
    assert answer.status == 200
    found = re.findall(r"^(nsqadmin_\w+) (\S+)$", answer.body.decode(), re.M)
    return {name: float(value) for name, value in found}


async def test_requests_and_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request to a node, and those that gave nothing; before the first poll there is none."""

    async def never(poller: Poller) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(metrics, "_CACHED_S", 0.0)
    monkeypatch.setattr(Poller, "run", never)
    answers = {"/info": (200, b"{}"), "/stats": (200, stats_of("t", 1))}
    async with (
        fake_node(lambda asked: answers.get(asked.path, (404, b""))) as node,
        nsqadmin(nsqd_http_address=(node.address,)) as dashboard,
    ):
        before = await figures(dashboard)
        assert before["nsqadmin_upstream_requests_total"] == 0
        await ask(dashboard, "GET", "/api/topics")
        answers["/stats"] = (500, b"")
        await ask(dashboard, "GET", "/api/topics")
        after = await figures(dashboard)
    assert after["nsqadmin_upstream_requests_total"] == len(node.asked) == 4
    assert after["nsqadmin_upstream_failures_total"] == 1
    assert after["nsqadmin_upstream_requests_under_way"] == 0
    assert (after["nsqadmin_polls_total"], after["nsqadmin_viewers"]) == (0, 0)
    assert "nsqadmin_poll_duration_seconds" not in after
    assert "nsqadmin_event_loop_lag_seconds_count" in after
    assert "nsqadmin_notifications_dropped_total" not in after


async def test_polls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that waits for the nodes has them looked at."""
    monkeypatch.setattr(metrics, "_CACHED_S", 0.0)
    answers = {"/info": (200, b"{}"), "/stats": (200, stats_of("t", 1))}
    async with (
        fake_node(lambda asked: answers.get(asked.path, (404, b""))) as node,
        nsqadmin(nsqd_http_address=(node.address,)) as dashboard,
    ):
        assert (await ask(dashboard, "GET", "/topics")).status == 200
        shown = await figures(dashboard)
    assert shown["nsqadmin_polls_total"] >= 1
    assert shown["nsqadmin_poll_duration_seconds"] >= 0
