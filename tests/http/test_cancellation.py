"""Each await of an HTTP connection is cancelled once, on both ways: what was answered is there."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.lookupds import cluster
from tests.broker.support import check_balances, numbered
from tests.broker.test_cancellation_disk import LateBackground
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.http.talk import HttpTalk, get, post, until_cut_off
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from tests.soak import in_short_soak, more_in_soak
from trionsq.broker.broker import Broker
from trionsq.http.serve import HttpServer
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire import commands

# Beyond each deferral of a session.
SETTLE_S = 1.0
HOWS = ("closed", "stopped", "cancelled")
# The framework tries for so long to answer a client that has closed its sending half.
HALF_CLOSED_S = 6.0
# The server's end of a connection takes so little that a slow reader makes it wait.
SEND_BYTES = 4608
# Is split in three turns.
LONG = b"\n".join(numbered(80, 900))
OPTIONS: dict[str, Any] = {"mem_queue_size": 2, "max_msg_size": 1_000, "max_body_size": 100_000}


@dataclass
class Place:
    """A broker whose disk is slow, and its HTTP server.

    Attributes:
        is_complete: whether the session came to its end.
        ping_count: of so many pings some answers wait until their reader goes on.
        sent: bodies that may have been published, by topic.
        answered: bodies whose request was answered with success.
        visits: how often a session began.
    """

    broker: Broker
    server: HttpServer
    connections: trio.Nursery
    disk: SimulatedDisk
    ping_count: int
    is_complete: bool = False
    sent: dict[str, list[bytes]] = field(default_factory=dict)
    answered: dict[str, list[bytes]] = field(default_factory=dict)
    visits: int = 0

    def connect(self) -> trio.SocketStream:
        """A connection to the server."""
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self.server.accept(theirs, self.connections)
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def publish(
        self, talk: HttpTalk, topic: str, bodies: list[bytes], *pieces: bytes
    ) -> None:
        """Send a request that publishes ``bodies``, and wait for its answer."""
        self.sent.setdefault(topic, []).extend(bodies)
        assert await talk.ask(*pieces) == b"OK"
        self.answered.setdefault(topic, []).extend(bodies)


@asynccontextmanager
async def place(*, fast_path: bool) -> AsyncIterator[Place]:
    """See `Place`; an nsqlookupd knows the broker, so that new topics have to be looked up."""
    disk = SimulatedDisk()
    async with trio.open_nursery() as nursery:
        async with cluster("a", disk=disk, background=LateBackground(nursery), **OPTIONS) as (
            broker,
            _,
        ):
            server = HttpServer(broker, fast_path=fast_path)
            connections = await nursery.start(server.hold_connections)
            # The fast path writes all answers at once; the sockets hold fewer single ones.
            try:
                yield Place(broker, server, connections, disk, ping_count=120 if fast_path else 8)
            finally:
                with trio.CancelScope(shield=True):
                    await server.end_connections()
        nursery.cancel_scope.cancel()
    assert (broker.unsaved, disk.open_files) == ([], 0)


async def publish_all(here: Place, talk: HttpTalk) -> None:
    """Everything that publishes, whole and in pieces, to a new topic and to one without room."""
    await here.publish(talk, "new", [b"first"], post("/pub?topic=new", b"first"))
    whole = post("/pub?topic=t", b"in pieces")
    await here.publish(talk, "t", [b"in pieces"], whole[:9], whole[9:-4], whole[-4:])
    await here.publish(talk, "t", [b"later"], post("/pub?topic=t&defer=500", b"later"))
    await here.publish(talk, "t", [b"a", b"b"], post("/mpub?topic=t", b"a\nb\n"))
    counted = commands.publish_many("t", [b"c", b"d"]).partition(b"\n")[2][4:]
    await here.publish(talk, "t", [b"c", b"d"], post("/mpub?topic=t&binary=true", counted))
    chunks = b"4\r\nchun\r\n", b"3\r\nked\r\n", b"0\r\n\r\n"
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    await here.publish(talk, "t", [b"chunked"], head, *chunks)


async def publish_too_much(here: Place, talk: HttpTalk) -> None:
    """More than memory holds, one by one and in a long body; then answers that wait to be read."""
    bodies = numbered(4)
    here.sent["t"] = bodies
    await talk.send(b"".join(post("/pub?topic=t", body) for body in bodies))
    for body in bodies:
        assert await talk.answer() == (200, b"OK")
        here.answered.setdefault("t", []).append(body)
    await here.publish(talk, "long", LONG.split(b"\n"), post("/mpub?topic=long", LONG))
    await talk.send(get("/ping") * here.ping_count, get("/ping"))
    for _ in range(here.ping_count + 1):
        assert await talk.answer() == (200, b"OK")
    last = post("/pub?topic=t", b"last", more=b"Connection: close\r\n")
    await here.publish(talk, "t", [b"last"], last)
    await talk.end()


async def nothing_to_prepare(here: Place) -> None:
    """A topic and its channel are there."""


async def publish_one(here: Place, talk: HttpTalk) -> None:
    """One message."""
    await here.publish(talk, "t", [b"next"], post("/pub?topic=t", b"next"))


Session = Callable[[Place, HttpTalk], Awaitable[None]]


async def end_amid_a_session(
    cancel_at: CancelAt,
    *,
    session: Session,
    again: Session,
    fast_path: bool,
    how: str,
    prepare: Callable[[Place], Awaitable[object]] = nothing_to_prepare,
) -> None:
    """A session in which the connection, or the server, ends at one await of the connection.

    ``again`` has to succeed on the next connection.
    """
    with nothing_left_behind(), threads_in_mock_time():
        async with place(fast_path=fast_path) as here, trio.open_nursery() as nursery:
            here.broker.topic("t").channel("c")
            await prepare(here)
            await wait_all_tasks_blocked()
            others = set(here.connections.child_tasks)
            ended = trio.Event()
            async with here.connect() as stream:
                [cancel_at.root] = set(here.connections.child_tasks) - others
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
                    here.is_complete = True
                assert here.is_complete or cancel_at.has_fired
                cancel_at.root = None
            await trio.sleep(HALF_CLOSED_S)
            assert here.server._gate.connections.open == 0
            check_balances(here.broker)
            if how == "closed":
                async with here.connect() as stream:
                    await again(here, HttpTalk(stream))
            await check_nothing_lost(here)
            nursery.cancel_scope.cancel()


async def check_nothing_lost(here: Place) -> None:
    """What was answered comes to a consumer, once; what was not may come, or not."""
    for topic, sent in here.sent.items():
        consumer = Conversation.begin(here.broker, capacity_bytes=2**22)
        await consumer.subscribe(topic, "c", ready=2500)
        bodies = []
        with trio.move_on_after(SETTLE_S):
            while True:
                message = await consumer.message()
                bodies.append(message.body)
        consumer.close()
        await wait_all_tasks_blocked()
        assert set(here.answered.get(topic, [])) <= set(bodies) <= set(sent)
        assert len(bodies) == len(set(bodies))


def cut_offs(*case: object, in_test: str = "") -> list[Any]:
    """The case with each way in which its connection ends, and when.

    ``in_test``: the way that is part of `make test`, too; all are of the soaks.
    """
    return [
        pytest.param(
            *case,
            how,
            when,
            marks=more_in_soak if (how, when) == (in_test, "parked") else in_short_soak,
        )
        for how, when in product(HOWS, ("parked", "woken"))
    ]


@pytest.mark.parametrize(
    ("session", "fast_path", "how", "when"),
    [
        *cut_offs(publish_all, True, in_test="closed"),
        *cut_offs(publish_all, False, in_test="closed"),
        *cut_offs(publish_too_much, True, in_test="closed"),
        *cut_offs(publish_too_much, False),
    ],
)
def test_a_publisher_cut_off_at_any_await(
    session: Session, fast_path: bool, how: str, when: When
) -> None:
    """No task, socket or error is left, the next one publishes, and what was answered is there."""
    scenario = partial(
        end_amid_a_session, session=session, again=publish_one, fast_path=fast_path, how=how
    )
    sweep_awaits(scenario, when, least=8)
