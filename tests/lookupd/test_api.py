"""The HTTP API in this process (lookupd.api): what the transcripts leave out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from quart import Response
from quart_trio import QuartTrio

from lookupd.api import lookupd_app
from lookupd.options import NsqlookupdOptions
from lookupd.registry import Registry
from tests.lookupd.support import producer

SECOND_NS = 10**9


class Clock:
    """A clock that stands still."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> Registry:
    return Registry(300 * SECOND_NS, 45 * SECOND_NS)


@pytest.fixture
def app(registry: Registry, clock: Clock) -> QuartTrio:
    return lookupd_app(registry, NsqlookupdOptions(debug_from="any"), clock)


async def send(app: QuartTrio, method: str, target: str, **more: Any) -> Response:
    """The answer to a request."""
    answer: Response = await app.test_client().open(target, method=method, **more)
    return answer


async def ask(app: QuartTrio, method: str, target: str) -> tuple[int, Any]:
    """Status and document of the answer; of a refusal the code alone, "" if there is no body."""
    answer = await send(app, method, target)
    text = await answer.get_data(as_text=True)
    document: Any = json.loads(text) if text else ""
    refused = answer.status_code >= 400
    return answer.status_code, document["message"] if refused else document


async def test_a_producer_at_two_topics_is_found_once_by_a_star(
    app: QuartTrio, registry: Registry
) -> None:
    """The wildcard joins topics; a channel name that two have comes twice."""
    who = producer()
    registry.add_producer(who)
    registry.register(who, "t1", "c")
    registry.register(who, "t2", "c")
    status, found = await ask(app, "GET", "/lookup?topic=*")
    assert status == 200
    assert found["channels"] == ["c", "c"]
    assert [each["remote_address"] for each in found["producers"]] == ["127.0.0.1:50001"]
    assert await ask(app, "POST", "/topic/delete?topic=*") == (200, "")
    assert await ask(app, "GET", "/topics") == (200, {"topics": []})
    assert await ask(app, "GET", "/lookup?topic=*") == (404, "TOPIC_NOT_FOUND")


async def test_a_star_is_no_name(app: QuartTrio) -> None:
    """Where names are validated it is refused like any other bad one."""
    assert await ask(app, "POST", "/topic/create?topic=*") == (400, "INVALID_ARG_TOPIC")
    refused = (400, "INVALID_ARG_CHANNEL")
    assert await ask(app, "POST", "/channel/delete?topic=t&channel=*") == refused


async def test_a_tombstone_ends_by_time(app: QuartTrio, registry: Registry, clock: Clock) -> None:
    """/lookup hides the node, /nodes marks it, /debug keeps its time after it has ended."""
    who = producer()
    registry.add_producer(who)
    registry.register(who, "t")
    registry.register(who, "u")
    clock.now_ns = 5 * SECOND_NS
    assert await ask(app, "POST", "/topic/tombstone?topic=t&node=10.0.0.1:4151") == (200, "")
    assert (await ask(app, "GET", "/lookup?topic=t"))[1]["producers"] == []
    assert len((await ask(app, "GET", "/lookup?topic=u"))[1]["producers"]) == 1
    [node] = (await ask(app, "GET", "/nodes"))[1]["producers"]
    assert dict(zip(node["topics"], node["tombstones"], strict=True)) == {"t": True, "u": False}
    clock.now_ns = 50 * SECOND_NS
    assert len((await ask(app, "GET", "/lookup?topic=t"))[1]["producers"]) == 1
    dumped = (await ask(app, "GET", "/debug"))[1]
    [entry] = dumped["topic:t:"]
    assert (entry["tombstoned"], entry["tombstoned_at"]) == (True, 5 * SECOND_NS)
    [entry] = dumped["client::"]
    assert (entry["tombstoned"], entry["tombstoned_at"]) == (False, -6795364578871345152)


async def test_what_is_missing_is_named_in_order(app: QuartTrio) -> None:
    """First the topic, then the node; both are looked at no closer."""
    assert await ask(app, "POST", "/topic/tombstone?node=a") == (400, "MISSING_ARG_TOPIC")
    assert await ask(app, "POST", "/topic/tombstone?topic=t") == (400, "MISSING_ARG_NODE")
    assert await ask(app, "POST", "/topic/tombstone?topic=%ff&node=%ff") == (200, "")
    assert await ask(app, "POST", "/channel/delete?topic=t&channel=c") == (404, "CHANNEL_NOT_FOUND")


async def test_the_rules_of_every_path_are_nsqds(app: QuartTrio) -> None:
    """Methods, spelling, OPTIONS, and a body that nobody asked for."""
    answer = await send(app, "OPTIONS", "/topic/create")
    assert (answer.status_code, answer.headers["Allow"]) == (200, "OPTIONS, POST")
    answer = await send(app, "HEAD", "/lookup")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, OPTIONS")
    answer = await send(app, "GET", "/Lookup/?topic=t")
    assert (answer.status_code, answer.headers["Location"]) == (301, "/lookup?topic=t")
    answer = await send(app, "POST", "//topic/create?topic=t")
    assert (answer.status_code, answer.headers["Location"]) == (307, "/topic/create?topic=t")
    answer = await send(app, "POST", "/topic/create?topic=t", data=b"topic=u" * 1000)
    assert answer.status_code == 200
    assert await ask(app, "GET", "/topics") == (200, {"topics": ["t"]})


@pytest.mark.parametrize("name", ["heap", "goroutine", "block", "threadcreate", "cmdline"])
async def test_pages_that_go_programs_have(app: QuartTrio, name: str) -> None:
    """They answer with text."""
    answer = await send(app, "GET", f"/debug/pprof/{name}?debug=1")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("whom", "status"), [("none", 403), ("loopback", 403), ("any", 200)])
async def test_the_pages_of_the_process_may_be_closed(
    registry: Registry, clock: Clock, whom: str, status: int
) -> None:
    """--debug-from rules /debug/pprof for strangers; /debug, the database, is open to all."""
    app = lookupd_app(registry, NsqlookupdOptions(debug_from=whom), clock)
    stranger: dict[str, Any] = {"scope_base": {"client": ("192.0.2.1", 1)}}
    assert (await send(app, "GET", "/debug/pprof", **stranger)).status_code == status
    assert (await send(app, "GET", "/debug", **stranger)).status_code == 200


async def test_what_an_operator_makes_and_deletes(app: QuartTrio, registry: Registry) -> None:
    """Each request is answered 200 and done, or says what there is not."""
    steps: list[tuple[str, int, list[str], list[str]]] = [
        ("/topic/create?topic=t", 200, ["t"], []),
        ("/channel/create?topic=t&channel=c", 200, ["t"], ["c"]),
        ("/channel/delete?topic=t&channel=d", 404, ["t"], ["c"]),
        ("/channel/delete?topic=t&channel=c", 200, ["t"], []),
        ("/topic/tombstone?topic=t&node=n:1", 200, ["t"], []),
        ("/topic/delete?topic=t", 200, [], []),
    ]
    for target, status, topics, channels in steps:
        response = await send(app, "POST", target)
        assert response.status_code == status, target
        assert registry.topics() == topics
        assert list(registry.channels("t")) == channels
