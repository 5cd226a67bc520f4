"""/config/drain, and what HTTP says during a drain."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.http.ways import answers_of, way
from trionsq.broker.drain import DrainPhase
from trionsq.http.app import create_app
from trionsq.testing.memory import nsqd_in_memory
from trionsq.web import metrics as web_metrics


async def test_it_begins_is_watched_and_is_cancelled(autojump_clock: MockClock) -> None:
    """Each answer is the state."""
    async with nsqd_in_memory(drain_timeout_ns=60 * 10**9) as broker:
        client = create_app(broker).test_client()
        await client.post("/pub?topic=t", data=b"x")
        assert await (await client.get("/config/drain")).get_json() == {"state": "off"}
        begun = await (await client.put("/config/drain", data=b"true")).get_json()
        assert begun["state"] == "draining"
        assert begun["limit_seconds"] == 60
        await trio.sleep(1)
        watched = await (await client.get("/config/drain")).get_json()
        assert watched == {
            "state": "draining",
            "messages": 1,
            "seconds": 1.0,
            "limit_seconds": 60,
            "exit": True,
        }
        off = await (await client.put("/config/drain", data=b"false")).get_json()
        assert off == {"state": "off"}
        assert (await client.post("/pub?topic=t", data=b"x")).status_code == 200


async def test_an_object_has_the_details(autojump_clock: MockClock) -> None:
    """``limit`` is a duration, 0 no limit; with ``exit`` false nsqd stays."""
    async with nsqd_in_memory() as broker:
        client = create_app(broker).test_client()
        begun = await client.put("/config/drain", data=b'{"limit": "0", "exit": false}')
        document = await begun.get_json()
        assert (document["limit_seconds"], document["exit"]) == (None, False)
        await trio.sleep(5)
        assert broker.drain.phase is DrainPhase.EMPTY
        await client.put("/config/drain", data=b'{"limit": "1m30s"}')
        assert broker.drain.limit_s == 90


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"yes",
        b"1",
        b"null",
        b'{"limit": 5}',
        b'{"limit": "-1s"}',
        b'{"limits": "1s"}',
        b"{",
        *[b"x" * 2000],
    ],
)
async def test_another_value_changes_nothing(body: bytes) -> None:
    """It is refused with 400."""
    async with nsqd_in_memory() as broker:
        client = create_app(broker).test_client()
        refused = await client.put("/config/drain", data=body)
        assert refused.status_code == 400
        assert await refused.get_json() == {"message": "INVALID_VALUE"}
        assert not broker.drain.is_on


@pytest.mark.parametrize("topic", ["t", "new"])
@pytest.mark.parametrize("path", ["/pub", "/mpub"])
async def test_publishes_are_refused_for_another_node(
    autojump_clock: MockClock, topic: str, path: str
) -> None:
    """With 503 and Retry-After, on both ways alike; no topic is made."""
    request = b"POST %b?topic=%b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
    request %= path.encode(), topic.encode()
    outcomes = []
    for fast_path in (True, False):
        async with way(fast_path=fast_path) as server:
            server.broker.topic("t")
            server.broker.drain.begin(exits=False)
            outcomes.append(await server.exchange([request * 2]))
    fast, slow = outcomes
    assert fast.topics == slow.topics == {"t": (0, 0)}
    first, second = answers_of(fast.answers)
    assert fast.answers == slow.answers
    assert first == second
    assert first.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nretry-after: 1\r\n" in first
    assert first.endswith(b'\r\n\r\n{"message":"DRAINING"}')


async def test_what_probes_and_pages_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """/ready is 503 with the reason, /live and /ping are not; /stats and /metrics say it."""
    monkeypatch.setattr(web_metrics, "_CACHED_S", 0.0)
    async with nsqd_in_memory() as broker:
        client = create_app(broker).test_client()
        assert "draining" not in await (await client.get("/stats?format=json")).get_json()
        assert "\nnsqd_draining 0.0\n" in await (await client.get("/metrics")).get_data(
            as_text=True
        )
        broker.drain.begin()
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert await ready.get_json() == {"status": "not ready", "reason": "draining"}
        assert (await client.get("/live")).status_code == 200
        assert (await client.get("/ping")).status_code == 200
        assert (await (await client.get("/stats?format=json")).get_json())["draining"] is True
        assert "\nnsqd_draining 1.0\n" in await (await client.get("/metrics")).get_data(
            as_text=True
        )
