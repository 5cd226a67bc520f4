"""Each await of nsqlookupd is cancelled once: of a connection, of a request, and of the daemon."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from lookupd import daemon
from lookupd.api import lookupd_app
from lookupd.options import NsqlookupdOptions
from lookupd.registry import Registry
from lookupd.session import MAGIC, Session
from tests.cancellation import CancelAt, Scenario, When, run_counted, sweep_awaits
from tests.lookupd.support import IDENTITY, identify, producer
from tests.soak import more_in_soak
from trionsq.testing.streams import MemoryStream, Pipe

TOPICS = [b"topic%d" % number for number in range(6)]
REGISTER = b"".join(b"REGISTER %b c\n" % topic for topic in TOPICS)
CAPACITY_BYTES = 200


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few registrations take several turns of the event loop."""
    for module in ("lookupd.turns", "lookupd.api"):
        monkeypatch.setattr(f"{module}.PRODUCER_COST", 1)
    monkeypatch.setattr("lookupd.turns.MAX_TOUCHED", 1)


def populated() -> Registry:
    """Another nsqd, whose registrations stay."""
    registry = Registry(10**18, 10**18)
    registry.add_producer(other := producer(9))
    for topic in TOPICS[:3]:
        registry.register(other, topic.decode(), "c")
    return registry


def check_only_the_other_is_left(registry: Registry) -> None:
    assert registry.producer_count == 1
    assert not registry._sweeps
    held = [entry for entry in registry.everything() if entry is not None]
    assert held
    assert {entry.producer.remote_address for _, entry in held} == {"127.0.0.1:50009"}


async def polite(ours: MemoryStream) -> None:
    """Everything that an nsqd says, and then its end."""
    await ours.send_all(MAGIC[:2])
    await ours.send_all(MAGIC[2:] + identify())
    await ours.receive_some()
    await ours.send_all(REGISTER + b"PING\nUNREGISTER topic1 c\nUNREGISTER topic2\n")
    await ours.send_eof()
    while await ours.receive_some():
        pass


async def wrong(ours: MemoryStream) -> None:
    """A command that does not exist, and more after it."""
    await ours.send_all(MAGIC + identify(tcp_port=4160) + b"REGISTER topic1 c\n")
    await ours.send_all(b"NOPE\n" + b"PING\n" * 50)
    while await ours.receive_some():
        pass


async def deaf(ours: MemoryStream) -> None:
    """No response is read, so the connection is given up."""
    await ours.send_all(MAGIC + identify(tcp_port=4170) + b"PING\n" * 60)


async def silent(ours: MemoryStream) -> None:
    """The magic does not come."""
    await ours.send_all(MAGIC[:1])


async def sessions(cancel_at: CancelAt) -> None:
    registry = populated()
    ends: list[tuple[MemoryStream, MemoryStream]] = []
    async with trio.open_nursery() as nsqds:

        async def talk(
            speak: Callable[[MemoryStream], Awaitable[None]], ours: MemoryStream
        ) -> None:
            try:
                await speak(ours)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                assert cancel_at.has_fired or speak is not polite

        async def serve() -> None:
            async with trio.open_nursery() as connections:
                for number, speak in enumerate((polite, wrong, deaf, silent)):
                    up, down = Pipe(CAPACITY_BYTES), Pipe(CAPACITY_BYTES)
                    ends.append((MemoryStream(down, up), MemoryStream(up, down)))
                    nsqds.start_soon(talk, speak, ends[-1][0])
                    session = Session(registry, f"127.0.0.1:{number}", IDENTITY)
                    connections.start_soon(daemon.serve_session, ends[-1][1], session, lambda: 0)

        await run_counted(cancel_at, serve)
        check_only_the_other_is_left(registry)
        assert all(theirs._is_closed for _, theirs in ends)
        nsqds.cancel_scope.cancel()


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_connections_cancelled_at_any_await(when: When) -> None:
    """Each is closed, its producer is gone, and the registrations of another nsqd stay."""
    sweep_awaits(sessions, when, least=30)


REQUESTS = [
    ("GET", "/ping"),
    ("GET", "/info"),
    ("GET", "/topics"),
    ("GET", "/channels?topic=topic1"),
    ("GET", "/lookup?topic=topic1"),
    ("GET", "/nodes"),
    ("GET", "/debug"),
    ("GET", "/metrics"),
    ("POST", "/topic/create?topic=new"),
    ("POST", "/channel/create?topic=new&channel=c"),
    ("POST", "/topic/tombstone?topic=topic1&node=host9:4151"),
    ("POST", "/channel/delete?topic=topic1&channel=c"),
    ("POST", "/topic/delete?topic=topic2"),
]


async def ask(app: Any, method: str, target: str) -> tuple[int, bytes]:
    """Status and body of a response, without a server: quart's test client cannot be cancelled."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"spec_version": "2.3", "version": "3.0"},
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"x")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 4161),
        "extensions": {},
        "state": {},
    }
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        for event in received:
            return event
        return await trio.sleep_forever()

    async def send(event: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(event)

    with trio.fail_after(60):
        await app(scope, receive, send)
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent)


async def requests(cancel_at: CancelAt) -> None:
    """Whichever request is cancelled, the next one is answered, and nothing void is left."""
    registry = populated()
    for number in range(3):
        registry.add_producer(one := producer(number))
        registry.register(one, "topic1", "c")
        registry.register(one, "topic2", "c")
    app = lookupd_app(registry, NsqlookupdOptions(debug_from="any"), lambda: 0)
    answered = 0

    async def ask_all() -> None:
        nonlocal answered
        for request in REQUESTS:
            status, _ = await ask(app, *request)
            assert status == 200, request
            answered += 1

    await run_counted(cancel_at, ask_all)
    assert answered == len(REQUESTS) or cancel_at.has_fired
    # The one that was cancelled, which may have had its effect, and those after it.
    for request in REQUESTS[answered:]:
        status, _ = await ask(app, *request)
        assert status in (200, 404), request
    _, body = await ask(app, "GET", "/lookup?topic=topic0")
    assert [each["hostname"] for each in json.loads(body)["producers"]] == ["host9"]
    _, body = await ask(app, "GET", "/topics")
    assert sorted(json.loads(body)["topics"]) == ["new", "topic0", "topic1"]
    assert not registry._sweeps


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_requests_cancelled_at_any_await(when: When) -> None:
    """A request that is cancelled has its effect or none, and the next one is answered."""
    sweep_awaits(requests, when, least=50, one_in=20)


def running(folder: Path) -> Scenario:
    options = NsqlookupdOptions(
        tcp_address=str(folder / "tcp"), http_address=str(folder / "http"), debug_from="any"
    )

    async def scenario(cancel_at: CancelAt) -> None:
        before = os.listdir("/proc/self/fd")
        is_complete = False

        async def run() -> None:
            nonlocal is_complete
            async with daemon.running_nsqlookupd(options):
                tcp = await trio.open_unix_socket(options.tcp_address)
                async with tcp:
                    await tcp.send_all(MAGIC + b"PING\n")
                    assert await tcp.receive_some() == struct.pack(">I", 2) + b"OK"
                    http = await trio.open_unix_socket(options.http_address)
                    async with http:
                        await http.send_all(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
                        assert (await http.receive_some()).startswith(b"HTTP/1.1 200 ")
            is_complete = True

        await run_counted(cancel_at, run)
        assert is_complete or cancel_at.has_fired
        await wait_all_tasks_blocked()
        assert os.listdir("/proc/self/fd") == before
        for name in os.listdir(folder):
            os.unlink(folder / name)

    return scenario


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_the_daemon_cancelled_at_any_await(when: When, tmp_path: Path) -> None:
    """From its beginning to its end with connections open: no socket stays open."""
    sweep_awaits(running(tmp_path), when, least=30)
