"""The debug pages: who may ask, and what each form is."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from quart import Response
from quart_trio import QuartTrio

from tests.http.conftest import StartBroker
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.debug.tasks import TaskNode, task_tree
from trionsq.http.app import create_app
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import memory_connection
from trionsq.web.sites import is_loopback


@pytest.fixture
def app(broker: Broker) -> QuartTrio:
    return create_app(broker)


async def send(
    app: QuartTrio, target: str, method: str = "GET", peer: str | None = "127.0.0.1", **more: Any
) -> Response:
    """The answer to a request from that address; None is a unix socket."""
    scope = {"client": None if peer is None else (peer, 1234)}
    return await app.test_client().open(target, method=method, scope_base=scope, **more)


async def get(app: QuartTrio, target: str) -> bytes:
    """The body of an answer that is 200."""
    response = await send(app, target)
    body: bytes = await response.get_data(as_text=False)
    assert response.status_code == 200, body
    return body


async def status(app: QuartTrio, target: str, **more: Any) -> int:
    """The status of an answer."""
    return (await send(app, target, **more)).status_code


def pages(app: QuartTrio) -> list[tuple[str, str]]:
    """Method and path of each debug page."""
    return [
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/debug")
        for method in (rule.methods or set()) - {"HEAD"}
    ]


async def test_nobody_else_is_let_in(app: QuartTrio) -> None:
    """Each page answers 403, with a reason, to whoever does not ask from this machine."""
    assert len(pages(app)) == 17
    for method, path in pages(app):
        response = await send(app, path, method, peer="10.1.2.3")
        assert response.status_code == 403, path
        assert "--debug-from" in json.loads(await response.get_data(as_text=True))["message"]


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Host"])
async def test_what_a_proxy_says_does_not_count(app: QuartTrio, header: str) -> None:
    """The address of the connection decides."""
    assert await status(app, "/debug", peer="10.1.2.3", headers={header: "127.0.0.1"}) == 403


@pytest.mark.parametrize(
    ("whom", "peer", "answer"),
    [
        ("loopback", "127.0.0.1", 200),
        ("loopback", "::1", 200),
        ("loopback", "::ffff:127.0.0.1", 200),
        ("loopback", None, 200),
        ("loopback", "::ffff:10.0.0.1", 403),
        ("any", "10.0.0.1", 200),
        ("none", "127.0.0.1", 403),
        ("none", None, 403),
    ],
)
async def test_an_option_says_who_may_ask(
    start_broker: StartBroker, whom: str, peer: str | None, answer: int
) -> None:
    """--debug-from; unix sockets are of this machine."""
    app = create_app(await start_broker(NsqdOptions(debug_from=whom)))
    assert await status(app, "/debug", peer=peer) == answer


def test_what_is_no_address_is_not_ours() -> None:
    """Nor are addresses of a link."""
    assert not is_loopback("localhost.example.org")
    assert not is_loopback("fe80::1%eth0")
    assert is_loopback("127.8.8.8")


async def test_the_index_names_pages_that_are_there(app: QuartTrio) -> None:
    """As a page with links, and as JSON."""
    page = (await get(app, "/debug")).decode()
    listed = json.loads(await get(app, "/debug?format=json"))
    assert {each["path"] for each in listed} <= {path for _, path in pages(app)}
    for each in listed:
        assert f"href='{each['path']}'" in page


async def test_the_tree_of_tasks(app: QuartTrio, broker: Broker) -> None:
    """Topics and channels are named as their user named them; stacks only if asked for."""
    broker.topic("orders").channel("mail")
    await trio.testing.wait_all_tasks_blocked()
    text = (await get(app, "/debug/tasks")).decode()
    for name in ("topic orders", "channel orders:mail", "queue scan", "heartbeats"):
        assert re.search(rf"^ +{name}  \[waiting in ", text, re.MULTILINE), text
    assert "|" not in text
    document = json.loads(await get(app, "/debug/tasks?format=json&stacks=1&limit=3"))
    assert (document["shown"], document["left_out"]) == (3, document["living"] - 3)
    assert document["root"]["name"] == "trio"
    assert document["root"]["stack"]


async def test_the_loop_and_the_queued_output(app: QuartTrio) -> None:
    """Both forms; the figures are there."""
    document = json.loads(await get(app, "/debug/loop?seconds=0.05&format=json"))
    assert list(document) == ["loop", "trio", "process", "broker", "limits"]
    assert document["loop"]["lag_ms"]["max"] >= document["loop"]["lag_ms"]["p50"] >= 0
    assert document["trio"]["tasks_living"] > 5
    assert document["broker"]["output_queued_bytes"] == 0
    assert document["broker"]["connections_refused"] == 0
    assert document["limits"]["mem-queue-size"] == "10"
    assert document["limits"]["max-msg-timeout"] == "15m0s"
    text = (await get(app, "/debug/loop?seconds=0.05")).decode()
    assert "  output_queued_bytes: 0\n" in text


async def test_the_checks_are_made_and_shown(app: QuartTrio, broker: Broker) -> None:
    """Whether what queues count adds up, now; a find is told with its queue."""
    topic = broker.topic("t")
    topic.channel("c")
    text = (await get(app, "/debug/checks")).decode()
    assert "queues_that_do_not_add_up: 0\n" in text
    topic.core.message_count += 1
    document = json.loads(await get(app, "/debug/checks?format=json"))
    topic.core.message_count -= 1
    assert document["queues_that_do_not_add_up"] == 1
    assert document["finds"] == [{"queue": "t", "find": "1 messages came, 0 went, 0 are held"}]


async def test_who_takes_no_data_is_found() -> None:
    """A consumer that reads nothing is listed with the bytes that wait for it."""
    async with nsqd_in_memory() as broker:
        stream, transport = memory_connection(capacity_bytes=100)
        broker.connect(transport)
        broker.topic("t").channel("c")
        await stream.send_all(b"  V2SUB t c\nRDY 10\n")
        await trio.testing.wait_all_tasks_blocked()
        app = create_app(broker)
        for _ in range(3):
            await send(app, "/pub?topic=t", "POST", data=b"x" * 1000)
        await trio.testing.wait_all_tasks_blocked()
        document = json.loads(await get(app, "/debug/loop?seconds=0.01&format=json"))
    figures = document["broker"]
    [behind] = figures["most_queued_output"]
    assert behind["queued_bytes"] == figures["output_queued_bytes"] > 900
    assert behind["in_flight"] == figures["messages_in_flight"] == 3


async def test_the_heap(app: QuartTrio) -> None:
    """A census at once, and who allocates after a while."""
    document = json.loads(await get(app, "/debug/heap?format=json&top=3"))
    assert "seconds=10" in document["hint"]
    assert len(document["objects"]) == 3
    document = json.loads(await get(app, "/debug/heap?format=json&seconds=0.05&frames=2"))
    assert document["allocations"]["alive_bytes"] > 0
    assert all(1 <= len(site["at"]) <= 2 for site in document["allocations"]["sites"])
    assert b"allocations:\n" in await get(app, "/debug/heap?seconds=0.05")


async def test_the_profile_in_each_form(app: QuartTrio) -> None:
    """Text to be read at once, and a file for `go tool pprof`."""
    assert b"sampled 100 times a second" in await get(app, "/debug/profile?seconds=0.05")
    response = await send(app, "/debug/profile?seconds=0.05&format=pprof")
    assert response.headers["Content-Disposition"] == 'attachment; filename="nsqd.pb.gz"'
    assert gzip.decompress(await response.get_data(as_text=False))


@pytest.mark.parametrize("page", ["profile", "heap", "loop"])
async def test_one_measures_at_a_time(app: QuartTrio, page: str) -> None:
    """The second one to ask is told so, and nothing goes on when the first one is gone."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, app, f"/debug/{page}?seconds=60")
        await trio.testing.wait_all_tasks_blocked(0.01)
        response = await send(app, f"/debug/{page}?seconds=1")
        assert response.status_code == 409
        message = json.loads(await response.get_data(as_text=True))["message"]
        assert message == f"{page.upper()}_UNDER_WAY"
        nursery.cancel_scope.cancel()
    assert await status(app, f"/debug/{page}?seconds=0.01") == 200


@pytest.mark.parametrize(
    "target",
    [
        "/debug?format=text",
        "/debug/tasks?limit=0",
        "/debug/tasks?limit=x",
        "/debug/tasks?format=xml",
        "/debug/loop?seconds=nan",
        "/debug/loop?seconds=1e9",
        "/debug/loop?top=-1",
        "/debug/heap?seconds=",
        "/debug/heap?frames=99",
        "/debug/profile?hz=0",
        "/debug/profile?seconds=inf",
        "/debug/profile?format=speedscope",
        "/debug/loop?%ZZ",
    ],
)
async def test_bad_parameters_are_refused(app: QuartTrio, target: str) -> None:
    """None makes nsqd work for longer than it ought to."""
    assert await status(app, target) == 400


async def test_pages_of_the_original(app: QuartTrio) -> None:
    """Text for people with ?debug=1, files without."""
    for name in ("heap", "goroutine", "block", "threadcreate"):
        response = await send(app, f"/debug/pprof/{name}?debug=2")
        assert response.content_type == "text/plain; charset=utf-8"
        response = await send(app, f"/debug/pprof/{name}")
        assert response.content_type == "application/octet-stream"
        assert response.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert b"MainThread" in await get(app, "/debug/pprof/threadcreate?debug=1")
    assert b"queue scan" in await get(app, "/debug/pprof/goroutine?debug=1")
    assert b"\0" in await get(app, "/debug/pprof/cmdline")
    assert await get(app, "/debug/pprof/symbol") == b"num_symbols: 1\n"
    assert await status(app, "/debug/pprof/symbol", method="POST", data=b"0x1") == 200
    response = await send(app, "/debug/pprof/profile?seconds=1")
    assert response.content_type == "application/octet-stream"
    assert gzip.decompress(await response.get_data(as_text=False))
    redirect = await send(app, "/debug/pprof?a=1")
    assert (redirect.status_code, redirect.headers["Location"]) == (301, "/debug/pprof/?a=1")


@contextlib.asynccontextmanager
async def busy_nsqd(tmp_path: Path) -> AsyncIterator[Broker]:
    """An nsqd that has one of each kind of task."""
    options = NsqdOptions(
        data_path=str(tmp_path), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0"
    )
    async with (
        running_nsqd(options) as broker,
        await trio.open_tcp_stream("127.0.0.1", broker.ports.tcp) as consumer,
        await trio.open_tcp_stream("127.0.0.1", broker.ports.tcp),
        await trio.open_tcp_stream("127.0.0.1", broker.ports.tcp),
        await trio.open_tcp_stream("127.0.0.1", broker.ports.http) as idle,
        await trio.open_tcp_stream("127.0.0.1", broker.ports.http) as asking,
    ):
        await consumer.send_all(b"  V2SUB t c\n")
        await consumer.receive_some()
        await idle.send_all(b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n")
        await idle.receive_some()
        await asking.send_all(b"GET /debug/profile?seconds=60 HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.05)
        yield broker


def nodes(task: TaskNode) -> Iterator[TaskNode]:
    """The task and all below it."""
    yield task
    for nursery in task.nurseries:
        for child in nursery.tasks:
            yield from nodes(child)


async def test_each_task_of_nsqd_has_a_name_for_its_user(tmp_path: Path) -> None:
    """No task is shown by the name of a function of ours."""
    async with busy_nsqd(tmp_path) as broker:
        tree = await task_tree(limit=1000, stacks=False)
        text = (await get(create_app(broker), "/debug/tasks")).decode()
    names = {node.name for node in nodes(tree.root)}
    assert not [name for name in names if name.startswith("trionsq.")]
    assert {"broker", "disk jobs", "topic t", "channel t:c", "queue scan", "http request"} <= names
    # The shared poller or the client itself waits; the page says the same.
    assert (
        len(re.findall(r" client 127\.0\.0\.1:\d+ ioloop  \[waiting in wait_readable,", text)) == 3
    )
    assert re.search(r" client 127\.0\.0\.1:\d+ message_pump  \[waiting", text)
    assert re.search(r" http client 127\.0\.0\.1:\d+  \[waiting", text)
    assert f" listener 127.0.0.1:{broker.ports.tcp}  [" in text
