"""A dashboard in front of a simulated cluster, on real sockets.

300 topics, 600 channels and 3,000 clients on 10 nodes; ``python -m benchmarks.dashboard`` has more.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from admin.daemon import running_nsqadmin
from admin.dashboard import Dashboard
from admin.options import NsqadminOptions
from tests.admin.simulated import SimulatedCluster, Size, running_cluster
from trionsq.durations import SECOND_NS

SIZE = Size(nodes=10, topics=300, channels=600, clients=3_000, nodes_per_topic=3)
LIMIT_S = 60.0


@asynccontextmanager
async def both(
    requests_max: int = 16,
) -> AsyncIterator[tuple[Dashboard, SimulatedCluster, httpx2.AsyncClient]]:
    """The dashboard, the cluster, and a browser's connection."""
    async with running_cluster(SIZE) as cluster:
        options = NsqadminOptions(
            lookupd_http_address=(cluster.lookupd_address,),
            http_address="127.0.0.1:0",
            poll_interval_ns=SECOND_NS,
            http_client_max_requests=requests_max,
            http_client_request_timeout_ns=SECOND_NS,
        )
        with trio.fail_after(LIMIT_S):
            async with (
                running_nsqadmin(options) as dashboard,
                httpx2.AsyncClient(
                    base_url=f"http://127.0.0.1:{dashboard.http_port}", timeout=LIMIT_S
                ) as client,
            ):
                yield dashboard, cluster, client


async def events(dashboard: Dashboard) -> AsyncGenerator[str, None]:
    """The lines of /events, headers first, for one who goes without a word."""
    stream = await trio.open_tcp_stream("127.0.0.1", dashboard.http_port)
    try:
        await stream.send_all(
            b"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n"
            b"Connection: close\r\n\r\n"
        )
        unread = b""
        while received := await stream.receive_some(65536):
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                yield line.decode().rstrip("\r")
    finally:
        await trio.aclose_forcefully(stream)


async def ticks(dashboard: Dashboard, count: int) -> list[dict[str, Any]]:
    """What so many events tell."""
    told = list[dict[str, Any]]()
    async with aclosing(events(dashboard)) as lines:
        async for line in lines:
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
            if len(told) == count:
                break
    return told


async def test_the_answer_is_a_stream() -> None:
    """Its headers let no proxy hold events back or keep them, and it is not compressed."""
    async with both() as (dashboard, _, _), aclosing(events(dashboard)) as lines:
        found = [line.lower() async for line in _until(lines, "event: tick")]
    assert found[0].startswith("http/1.1 200")
    for header in ("content-type: text/event-stream; charset=utf-8", "cache-control: no-store"):
        assert header in found
    assert "x-accel-buffering: no" in found
    assert not any(line.startswith("content-encoding") for line in found)


async def _until(lines: AsyncIterator[str], last: str) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line == last:
            return


async def test_a_snapshot_has_all_of_the_cluster() -> None:
    """Each topic and channel once, with sums over the nodes that have it."""
    async with both() as (dashboard, _, _):
        last = (await ticks(dashboard, 2))[-1]
        found = dashboard.poller.snapshot
    assert (last["topics"], last["channels"], last["nodes_up"]) == (300, 600, 10)
    assert last["clients"] == 3_000
    assert last["rate_in"] > 0
    assert found is not None
    assert found.topics["topic-00007"].nodes == 3


@pytest.mark.parametrize(("requests_max", "poll_max"), [(16, 12), (3, 2)])
async def test_requests_under_way_are_bounded(requests_max: int, poll_max: int) -> None:
    """By the poller alone, and with pages at the same time, also if nodes hang."""
    async with both(requests_max) as (dashboard, cluster, client):
        for node in cluster.nodes:
            node.delay_s = 0.01
        for node in cluster.nodes[:2]:
            node.mood = "hangs"
        await ticks(dashboard, 2)
        assert cluster.counted.under_way_max <= poll_max == dashboard.poller.requests_max
        async with trio.open_nursery() as nursery:
            for number in range(requests_max):
                nursery.start_soon(client.get, f"/api/topics/topic-{number:05}")
        # It counts until it has noticed that a connection was given up: those that hang, twice.
        assert cluster.counted.under_way_max <= requests_max + 2 * 2


async def test_nodes_of_every_mood_cost_their_own_rows() -> None:
    """One hangs, one lies, one closes connections: the other seven are shown, and why not these."""
    async with both() as (dashboard, cluster, _):
        for node, mood in zip(cluster.nodes, ("hangs", "lies", "closes"), strict=False):
            node.mood = mood  # type: ignore[assignment]
        await ticks(dashboard, 2)
        found = dashboard.poller.snapshot
        names = [node.name for node in cluster.nodes]
    assert found is not None
    assert found.total.nodes == 7
    errors = [found.nodes[name].error for name in names[:3]]
    assert "no answer" in errors[0]
    assert "no statistics" in errors[1]
    assert errors[2]
    assert {problem.where for problem in found.problems if problem.severity == "critical"} == set(
        names[:3]
    )


async def test_streams_do_not_hold_up_the_end() -> None:
    """The dashboard stops while browsers listen: their streams end as if all were said."""
    async with both() as (dashboard, _, _), aclosing(events(dashboard)) as lines:
        async for line in lines:
            if line.startswith("data:"):
                dashboard.stopping.set()
        assert line == ""
        assert dashboard.poller.viewers == 0
