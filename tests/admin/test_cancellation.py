"""Each await of a request to nsqadmin, and of nsqadmin itself, is cancelled once."""

from __future__ import annotations

import json
import math
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

import httpx2
import pytest
import trio
from hypercorn.typing import ASGIFramework
from trio.testing import wait_all_tasks_blocked

from admin.access.passwords import ATTEMPTS_AT_ONCE, Passwords
from admin.access.users import Account
from admin.app import create_admin_app, gate_of
from admin.daemon import open_dashboard, running_nsqadmin
from admin.dashboard import Dashboard
from admin.notify import Notifier
from admin.options import NsqadminOptions
from admin.user_action import UserAction
from tests.admin.access.support import USERS
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.http.talk import CutOff, HttpTalk, get, post, until_cut_off
from tests.http.test_cancellation import cut_offs
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from tests.soak import in_short_soak, more_in_soak
from trionsq.durations import SECOND_NS
from trionsq.web.gate import Gate
from trionsq.web.serve import WebServer

LOOKUPDS = ("lookup-1:4161", "lookup-2:4161")
NSQDS = ("nsqd-1:4151", "nsqd-2:4151")
ANSWER_S = 0.01
# The framework tries for so long to answer a client that has closed its sending half.
HALF_CLOSED_S = 6.0
PRODUCERS = [
    {
        "remote_address": f"{node}0",
        "hostname": node.partition(":")[0],
        "broadcast_address": node.partition(":")[0],
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        "topics": ["t"],
        "tombstones": [False],
    }
    for node in NSQDS
]
CHANNEL = {"channel_name": "c", "depth": 2, "message_count": 5, "clients": [], "paused": False}
STATS = {
    "version": "1.3.0",
    "health": "OK",
    "start_time": 1_790_000_000,
    "topics": [{"topic_name": "t", "depth": 1, "message_count": 6, "channels": [CHANNEL]}],
}
DONE = UserAction(
    action="pause_topic",
    time_s=1.0,
    user="",
    remote_ip="127.0.0.1:5",
    user_agent="",
    url="http://h/",
)
ANSWERS: dict[str, Any] = {
    "/topics": {"topics": ["t"]},
    "/channels": {"channels": ["c"]},
    "/nodes": {"producers": PRODUCERS},
    "/lookup": {"channels": ["c"], "producers": PRODUCERS},
    "/stats": STATS,
    "/render": [{"datapoints": [[6, 1]]}],
    "/info": {
        "version": "1.3.0",
        "broadcast_address": "nsqd-1",
        "hostname": "nsqd-1",
        "http_port": 4151,
        "tcp_port": 4150,
        "start_time": 1,
    },
}


class Body(httpx2.AsyncByteStream):
    """The body of an answer, in two pieces."""

    def __init__(self, nodes: Nodes, content: bytes) -> None:
        self._nodes = nodes
        self._content = content
        nodes.open_bodies.add(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content[:1]
        await trio.sleep(ANSWER_S)
        yield self._content[1:]

    async def aclose(self) -> None:
        self._nodes.open_bodies.discard(self)


class Nodes(httpx2.AsyncBaseTransport):
    """All nodes of a cluster, and whatever else nsqadmin asks; each takes a moment to answer.

    Attributes:
        posts: of each POST that reached a node, the host and the path.
        under_way: requests that have no answer yet.
        bodies: of each POST.
        silent: hosts that do not answer.
        open_bodies: of answers that nobody has closed.
    """

    def __init__(self) -> None:
        self.open_bodies: set[Body] = set()
        self.bodies: list[bytes] = []
        self.silent: set[str] = set()
        self.posts: list[str] = []
        self.under_way = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if request.method == "POST":
            self.posts.append(f"{request.url.host} {path}")
            self.bodies.append(await request.aread())
        self.under_way += 1
        try:
            await trio.sleep(math.inf if request.url.host in self.silent else ANSWER_S)
        finally:
            self.under_way -= 1
        if request.method != "POST" and path not in ANSWERS:
            return httpx2.Response(404, stream=Body(self, b'{"message":"NOT_FOUND"}'))
        content = json.dumps(ANSWERS.get(path, "")).encode()
        return httpx2.Response(200, stream=Body(self, content))


@dataclass
class Place:
    """A dashboard whose nodes and listener are in this process.

    Attributes:
        tasks: of the dashboard, by name.
        actions: what the observers of user actions were told.
    """

    dashboard: Dashboard
    nodes: Nodes
    server: WebServer
    gate: Gate
    connections: trio.Nursery
    tasks: dict[str, trio.lowlevel.Task]
    actions: list[UserAction] = field(default_factory=list)

    def connect(self) -> trio.SocketStream:
        """A connection to the dashboard."""
        ours, theirs = socket.socketpair()
        self.server.accept(theirs, self.connections)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    """See `Place`."""
    given = NsqadminOptions(
        lookupd_http_address=LOOKUPDS,
        access="none",
        graphite_url="http://graphite",
        proxy_graphite=True,
        poll_interval_ns=SECOND_NS,
    )
    nodes = Nodes()
    tasks: dict[str, trio.lowlevel.Task] = {}

    async def run(task: Callable[[], Awaitable[None]]) -> None:
        current = trio.lowlevel.current_task()
        tasks[current.name] = current
        await task()

    async with (
        trio.open_nursery() as nursery,
        open_dashboard(given, ("127.0.0.1",), 4171, transport=nodes, run=run) as dashboard,
    ):
        gate = gate_of(dashboard)
        server = WebServer(cast(ASGIFramework, create_admin_app(dashboard, gate)), gate=gate)
        connections = await nursery.start(server.hold_connections)
        here = Place(dashboard, nodes, server, gate, connections, tasks)
        dashboard.observers.append(here.actions.append)
        try:
            yield here
        finally:
            with trio.CancelScope(shield=True):
                await server.end_connections()
    assert (nodes.under_way, nodes.open_bodies) == (0, set())
    assert dashboard.upstream.under_way == 0


Session = Callable[[Place, HttpTalk], Awaitable[None]]


async def act(here: Place, talk: HttpTalk) -> None:
    """Every action, by the JSON API; each is told to the observers before it is answered."""
    for method, path, body, names in ACTIONS:
        before = len(here.actions)
        await talk.ask(post(path, json.dumps(body).encode(), method=method))
        assert [each.action for each in here.actions[before:]] == names


ACTIONS: list[tuple[bytes, str, dict[str, str], list[str]]] = [
    (b"POST", "/api/topics", {"topic": "t", "channel": "c"}, ["create_topic", "create_channel"]),
    (b"POST", "/api/topics/t", {"action": "pause"}, ["pause_topic"]),
    (b"POST", "/api/topics/t/c", {"action": "empty"}, ["empty_channel"]),
    (b"DELETE", "/api/nodes/nsqd-1:4151", {"topic": "t"}, ["tombstone_topic_producer"]),
    (b"DELETE", "/api/topics/t/c", {}, ["delete_channel"]),
    (b"DELETE", "/api/topics/t", {}, ["delete_topic"]),
]


async def submit(here: Place, talk: HttpTalk) -> None:
    """Every form of the pages, in two pieces; what it did is told before the answer, too."""
    token = TOKEN.search(await talk.ask(get("/lookup")))
    assert token is not None
    for path, fields, names in FORMS:
        before = len(here.actions)
        body = urlencode({"csrf_token": token[1], "topic": "t", **fields}).encode()
        request = post(path, body, more=b"Content-Type: application/x-www-form-urlencoded\r\n")
        await talk.ask(request[: -len(body)], body, expected=303)
        assert [each.action for each in here.actions[before:]] == names


TOKEN = re.compile(rb'name="csrf_token" value="([0-9a-f]+)"')
FORMS: list[tuple[str, dict[str, str], list[str]]] = [
    ("/do/create", {"channel": "c"}, ["create_topic", "create_channel"]),
    ("/do/publish", {"node": "nsqd-1:4151", "body": "x"}, []),
    ("/do/pause", {}, ["pause_topic"]),
    ("/do/unpause", {}, ["unpause_topic"]),
    ("/do/empty", {"channel": "c", "typed": "c"}, ["empty_channel"]),
    ("/do/tombstone", {"node": "nsqd-1:4151", "typed": "t"}, ["tombstone_topic_producer"]),
    ("/do/delete", {"channel": "c", "typed": "c"}, ["delete_channel"]),
    ("/do/delete", {"typed": "t"}, ["delete_topic"]),
]


async def end_amid_requests(cancel_at: CancelAt, *, session: Session, how: str) -> None:
    """Requests of a connection that ends at one await of it; all of them succeed on another one."""
    with nothing_left_behind(), threads_in_mock_time():
        async with place() as here, trio.open_nursery() as nursery:
            await trio.sleep(1)
            ended = trio.Event()
            is_complete = False
            async with here.connect() as stream:
                [cancel_at.root] = here.connections.child_tasks
                cancel_at.cancel = {
                    "closed": stream.socket.close,
                    "stopped": ended.set,
                    "cancelled": here.connections.cancel_scope.cancel,
                }[how]

                async def stop() -> None:
                    await ended.wait()
                    await here.server.end_connections()

                nursery.start_soon(stop)
                with trio.fail_after(300), until_cut_off():
                    await session(here, HttpTalk(stream))
                    is_complete = True
                cancel_at.root = None
            assert is_complete or cancel_at.has_fired
            await trio.sleep(HALF_CLOSED_S)
            assert here.gate.connections.open == 0
            check_all_told(here)
            if how == "closed":
                async with here.connect() as stream:
                    await session(here, HttpTalk(stream))
            nursery.cancel_scope.cancel()


# How many nodes each action has to reach: nsqlookupds, nsqds or both.
POSTS = {
    "create_topic": ("/topic/create", 2),
    "create_channel": ("/channel/create", 4),
    "pause_topic": ("/topic/pause", 2),
    "empty_channel": ("/channel/empty", 2),
    "tombstone_topic_producer": ("/topic/tombstone", 2),
    "delete_channel": ("/channel/delete", 4),
    # One of them is the end of the tombstone.
    "delete_topic": ("/topic/delete", 5),
}


def check_all_told(here: Place) -> None:
    """The observers know of all that nodes were told, and of which actions not every node was."""
    told = {each.action: each for each in here.actions}
    paths = Counter(sent.partition(" ")[2] for sent in here.nodes.posts)
    for action, (path, count) in POSTS.items():
        if action in told:
            assert paths[path] == count or "interrupted: " in "".join(told[action].warnings)
        elif action != "delete_topic" or "tombstone_topic_producer" not in told:
            assert not paths[path], path


async def look(here: Place, talk: HttpTalk) -> None:
    """Every page and document that asks nodes or others."""
    for target in (
        "/", "/counter", "/topics", "/topics?show=inactive", "/topics/t", "/topics/t/c", "/nodes",
        "/nodes/nsqd-1:4151", "/lookup", "/peek?topic=t", "/publish?topic=t",
        "/confirm/empty?topic=t", "/api/topics", "/api/topics?inactive=true", "/api/topics/t",
        "/api/topics/t/c", "/api/nodes", "/api/nodes/nsqd-1:4151", "/api/counter", "/metrics",
        "/render?target=x", "/api/graphite?metric=rate&target=x",
    ):  # fmt: skip
        await talk.ask(get(target))


async def watch(here: Place, talk: HttpTalk) -> None:
    """The live stream, until it has told of three polls."""
    await talk.send(get("/events"))
    came = b""
    while came.count(b"event: tick") < 3:
        try:
            data = await talk.stream.receive_some()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            raise CutOff
        came += data


@pytest.mark.parametrize(
    ("session", "how", "when"),
    [
        *cut_offs(act, in_test="cancelled"),
        *cut_offs(submit),
        *cut_offs(look),
        *cut_offs(watch, in_test="closed"),
    ],
)
def test_requests_cut_off_at_any_await(session: Session, how: str, when: When) -> None:
    """No task, lock or error is left; observers know of all that nodes were told; and the same
    requests succeed at once on another connection."""
    sweep_awaits(partial(end_amid_requests, session=session, how=how), when, one_in=10)


async def end_amid_polls(cancel_at: CancelAt, *, how: str) -> None:
    """Polls of nodes, of which one is silent for a while, that end at one await of the poller."""
    with nothing_left_behind(), threads_in_mock_time(), trio.CancelScope() as scope:
        async with place() as here, here.connect() as stream:
            cancel_at.root = here.tasks["nsqadmin poller"]
            stop = here.dashboard.stopping.set
            cancel_at.cancel = {"stopped": stop, "cancelled": scope.cancel}[how]
            here.nodes.silent.add("nsqd-2")
            viewer = HttpTalk(stream)
            with trio.fail_after(300), until_cut_off():
                await watch(here, viewer)
                here.nodes.silent.clear()
                await trio.sleep(10)
                assert not cancel_at.has_fired or how == "stopped"
            cancel_at.root = None


@in_short_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
@pytest.mark.parametrize("how", ["stopped", "cancelled"])
def test_polls_ended_at_any_await(how: str, when: When) -> None:
    """No request or task is left, and the viewer's stream ends."""
    sweep_awaits(partial(end_amid_polls, how=how), when)


async def cancel_a_check(cancel_at: CancelAt) -> None:
    """A password is checked for two requests at once, while others are; one is cancelled."""
    passwords = Passwords(USERS, trio.current_time)
    found: list[Account | None] = []
    scope = trio.CancelScope()

    async def check(password: str) -> None:
        found.append(await passwords.check_remembered("viewer", password, "here"))

    async def check_first() -> None:
        with scope:
            await check("right")

    with nothing_left_behind(), threads_in_mock_time():
        async with trio.open_nursery() as nursery, trio.open_nursery() as of_the_first:
            for number in range(int(passwords._limiter.total_tokens)):
                others = f"wrong {number}", f"there {number}"
                nursery.start_soon(passwords.check, "viewer", *others)
            await wait_all_tasks_blocked()
            of_the_first.start_soon(check_first)
            [cancel_at.root] = of_the_first.child_tasks
            cancel_at.cancel = scope.cancel
            await wait_all_tasks_blocked()
            nursery.start_soon(check, "right")
        cancel_at.root = None
    assert [account.name for account in found if account] == ["viewer"] * len(found)
    assert len(found) == 2 or (cancel_at.has_fired and found)
    # None of these attempts was a wrong one.
    for _ in range(ATTEMPTS_AT_ONCE):
        assert passwords._attempts.take_token("here", trio.current_time()) == 0


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_check_of_a_password_cancelled_at_any_await(when: When) -> None:
    """The other request is answered, and no attempt is counted as a wrong one."""
    sweep_awaits(cancel_a_check, when, least=2, one_in=1)


async def stop_amid_notifications(cancel_at: CancelAt) -> None:
    """A notifier with a queue, which is cancelled at one await."""
    nodes = Nodes()
    notifier = Notifier(NsqadminOptions(notification_http_endpoint="http://hook/told"))
    with nothing_left_behind(), pytest.MonkeyPatch.context() as patch:
        client = partial(httpx2.AsyncClient, transport=nodes)
        patch.setattr("admin.posting.httpx2.AsyncClient", client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.run)
            [cancel_at.root] = nursery.child_tasks
            cancel_at.cancel = nursery.cancel_scope.cancel
            for number in range(3):
                notifier.queue_notification(replace(DONE, topic=f"t{number}"))
            await trio.sleep(1)
            cancel_at.root = None
            nursery.cancel_scope.cancel()
    assert (nodes.under_way, nodes.open_bodies) == (0, set())
    topics = [json.loads(body)["topic"] for body in nodes.bodies]
    assert list(dict.fromkeys(topics)) == ["t0", "t1", "t2"]
    # The one that was under way is sent again.
    assert len(topics) <= 3 + cancel_at.has_fired


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_notifier_cancelled_at_any_await(when: When) -> None:
    """It sends its whole queue, in order."""
    sweep_awaits(stop_amid_notifications, when, least=5)


async def end_amid_the_start(cancel_at: CancelAt) -> None:
    """An nsqadmin on real sockets that is cancelled at one await of its start or its stop."""
    options = NsqadminOptions(
        lookupd_http_address=("127.0.0.1:1",), http_address="127.0.0.1:0", access="none"
    )
    is_up = False
    with nothing_left_behind(), threads_in_mock_time(), trio.CancelScope() as scope:
        cancel_at.root = trio.lowlevel.current_task()
        cancel_at.cancel = scope.cancel
        async with running_nsqadmin(options) as dashboard:
            async with await trio.open_tcp_stream("127.0.0.1", dashboard.http_port) as stream:
                assert await HttpTalk(stream).ask(get("/ping")) == b"OK"
            is_up = True
        cancel_at.root = None
    assert is_up or cancel_at.has_fired


@in_short_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_nsqadmin_cancelled_at_any_await_of_its_life(when: When) -> None:
    """No socket and no task is left."""
    sweep_awaits(end_amid_the_start, when)
