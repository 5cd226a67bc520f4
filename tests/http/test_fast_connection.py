"""The fast path by itself, on connections in memory: bounds and ends."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.http.ways import LIMITS, answers_of
from trionsq.broker.broker import Broker
from trionsq.http.fast_connection import FastConnection
from trionsq.http.fast_path import FastPath, WaitLimits
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryStream, MemoryTransport, memory_connection
from trionsq.web.limits import PACE
from trionsq.web.sites import SiteGuard

PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
LIMITS_S = WaitLimits(request_s=75, body_s=30, body_pace=PACE, peer_s=20, linger_s=0.5)


def pub(body: bytes = b"x", topic: bytes = b"t", more: bytes = b"") -> bytes:
    """A message."""
    head = b"POST /pub?topic=%b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n%b"
    return head % (topic, len(body), more, body)


@pytest.fixture
def autojump_clock() -> MockClock:
    """Time leaps when all tasks wait."""
    return MockClock(autojump_threshold=0)


class Talk:
    """A connection to the fast path, and how that ended."""

    def __init__(
        self, fast_path: FastPath, stream: MemoryStream, transport: MemoryTransport
    ) -> None:
        self.fast_path = fast_path
        self.stream = stream
        self.transport = transport
        self.connection = FastConnection(fast_path, transport)
        self.ended = trio.Event()
        self.handed_back: bytes | None = None

    async def run(self) -> None:
        """The connection's life."""
        self.handed_back = await self.connection.run()
        self.transport.close()
        self.ended.set()

    async def send(self, data: bytes) -> None:
        """Send, and let the server do all that it can do now."""
        await self.stream.send_all(data)
        await wait_all_tasks_blocked()

    async def answers(self, count: int) -> list[bytes]:
        """So many answers."""
        came = b""
        while len(answers_of(came)) < count:
            data = await self.stream.receive_some()
            assert data, came
            came += data
        return [answer.partition(b"\r\n\r\n")[2] for answer in answers_of(came)]


class Place:
    """A broker with a fast path."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self.broker = broker
        self.fast_path = FastPath(broker, LIMITS_S, SiteGuard())
        self._nursery = nursery
        nursery.start_soon(self.fast_path.watch_connections)

    def connect(self, capacity_bytes: int = 65536) -> Talk:
        """A new connection."""
        talk = Talk(self.fast_path, *memory_connection(capacity_bytes))
        self._nursery.start_soon(talk.run)
        return talk


@asynccontextmanager
async def place(**options: Any) -> AsyncIterator[Place]:
    """A running broker."""
    async with (
        nsqd_in_memory(**{**LIMITS, **options}) as broker,
        trio.open_nursery() as nursery,
    ):
        yield Place(broker, nursery)
        nursery.cancel_scope.cancel()


async def test_requests_of_one_read_are_answered_by_one_write(autojump_clock: MockClock) -> None:
    """Messages to one topic are one batch; the answers have the order of the requests."""
    async with place() as here:
        talk = here.connect()
        await talk.send(pub() * 3 + PING + pub(topic=b"bad$") + pub(topic=b"u") + pub() * 2)
        assert len(talk.transport.outgoing) > 0
        bodies = await talk.answers(8)
        assert bodies == [b"OK"] * 4 + [b'{"message":"INVALID_TOPIC"}'] + [b"OK"] * 3
        assert here.broker.topics["t"].core.message_count == 5
        assert here.broker.topics["u"].core.message_count == 1


@pytest.mark.parametrize(
    "strange",
    [
        b"GET /stats HTTP/1.1\r\nHost: a\r\n\r\n",
        pub(b"y" * 101),
        pub(more=b"Expect: 100-continue\r\n"),
        b"\x16\x03\x01\x02",
        b"GET /ping HTTP/1.1\nHost: a\n\n",
        b"G" * 8192,
        b"POST /mpub?topic=bad$ HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\nab",
    ],
)
async def test_what_is_strange_is_handed_back(strange: bytes, autojump_clock: MockClock) -> None:
    """From its first byte on, with all that follows it; what came before has its answer."""
    async with place() as here:
        talk = here.connect()
        await talk.send(pub() + strange + PING)
        await talk.ended.wait()
        assert await talk.answers(1) == [b"OK"]
        assert talk.handed_back == strange + PING
        assert here.fast_path.connections == set()


async def test_what_has_begun_when_the_peer_half_closes_is_handed_back(
    autojump_clock: MockClock,
) -> None:
    """The framework knows what to say of it; a connection that owes nothing just ends."""
    async with place() as here:
        begun, idle = here.connect(), here.connect()
        await begun.send(pub()[:-1])
        await idle.send(pub())
        for talk in (begun, idle):
            await talk.stream.send_eof()
            await talk.ended.wait()
        assert begun.handed_back == pub()[:-1]
        assert idle.handed_back is None


async def test_a_peer_that_takes_no_answer_is_not_read_from(autojump_clock: MockClock) -> None:
    """What it sends stays with it; after a time it is given up."""
    async with place() as here:
        talk = here.connect(capacity_bytes=1000)
        began_s = trio.current_time()
        with trio.move_on_after(10):
            while True:
                await talk.stream.send_all(pub() * 10)
        assert here.broker.topics["t"].core.message_count < 50
        await talk.ended.wait()
        assert talk.handed_back is None
        assert 20 <= trio.current_time() - began_s < 25


async def test_a_slow_peer_that_takes_its_answers_is_served(autojump_clock: MockClock) -> None:
    """However long that takes."""
    async with place() as here:
        talk = here.connect(capacity_bytes=100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk.stream.send_all, pub() * 20)
            came = b""
            while len(came) < 20 * 100 or not came.endswith(b"OK"):
                await trio.sleep(5)
                came += await talk.stream.receive_some()
        assert here.broker.topics["t"].core.message_count == 20
        assert trio.current_time() > 100


@pytest.mark.parametrize("begun", [b"", PING[:10], PING])
async def test_idle_connections_are_closed(begun: bytes, autojump_clock: MockClock) -> None:
    """75 seconds after the last answer, also if a head comes a byte at a time."""
    async with place() as here:
        talk = here.connect()
        began_s = trio.current_time()
        for at in range(len(begun)):
            await talk.stream.send_all(begun[at : at + 1])
            await trio.sleep(1)
        await talk.ended.wait()
        assert talk.handed_back is None
        assert trio.current_time() - began_s < 75 + 3 + (len(PING) if begun == PING else 0)


@pytest.mark.parametrize(("target", "topics"), [(b"/pub", set()), (b"/mpub", {"t"})])
async def test_a_body_that_stalls_is_refused(
    target: bytes, topics: set[str], autojump_clock: MockClock
) -> None:
    """30 seconds after its last byte; as long as bytes come, it is waited for, for a while."""
    async with place() as here:
        talk = here.connect()
        head = b"POST %b?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
        await talk.stream.send_all(head % target)
        for _ in range(3):
            await trio.sleep(25)
            await talk.stream.send_all(b"a")
        began_s = trio.current_time()
        assert await talk.answers(1) == [b'{"message":"INTERNAL_ERROR"}']
        await talk.ended.wait()
        assert 29 <= trio.current_time() - began_s < 33
        assert set(here.broker.topics) == topics


async def test_a_body_that_comes_byte_by_byte_is_joined_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is whole, it is not looked at again."""
    turns = 0

    def count_turn() -> None:
        nonlocal turns
        turns += 1

    async with place(max_body_size=100_000) as here:
        here.fast_path.responses.renew()
        monkeypatch.setattr(here.fast_path.responses, "renew", count_turn)
        talk = here.connect()
        body = b"ab\n" * 1000
        await talk.send(b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n")
        for at in range(len(body)):
            await talk.stream.send_all(body[at : at + 1])
            await trio.lowlevel.checkpoint()
        assert await talk.answers(1) == [b"OK"]
        assert here.broker.topics["t"].core.message_count == 1000
        assert turns == 2


async def test_the_end_waits_for_answers_only(autojump_clock: MockClock) -> None:
    """Idle connections end at once; a body under way may come, and is answered, then it ends."""
    async with place() as here:
        idle, head, sending = here.connect(), here.connect(), here.connect()
        await idle.send(PING)
        await head.send(PING[:5])
        await sending.send(pub()[:-1])
        here.fast_path.end_connections()
        await wait_all_tasks_blocked()
        assert (idle.ended.is_set(), head.ended.is_set()) == (True, True)
        assert not sending.ended.is_set()
        await sending.send(pub()[-1:])
        assert await sending.answers(1) == [b"OK"]
        await sending.ended.wait()


async def test_an_exiting_broker_refuses(autojump_clock: MockClock) -> None:
    """503 for what would change something; it still says how it does."""
    async with place() as here:
        talk = here.connect()
        await talk.send(pub())
        assert await talk.answers(1) == [b"OK"]
        here.broker._stop.set()
        await talk.send(pub() + PING + pub(b""))
        exiting = b'{"message":"EXITING"}'
        assert await talk.answers(3) == [exiting, b"OK", exiting]


@pytest.mark.parametrize("engine", [{}, {"storage": "log", "durability": "always"}])
async def test_a_sick_disk_shows(engine: dict[str, str], autojump_clock: MockClock) -> None:
    """What the disk does not take is answered 503 with the disk's reason, and /ping is red.

    So is what the disk refuses before the publish returns.
    """
    disk = SimulatedDisk()
    async with place(disk=disk, mem_queue_size=1, **engine) as here:
        talk = here.connect()
        await talk.send(pub())
        disk.fail(errno.ENOSPC, forever=True)
        await talk.send(pub() * 3 + PING)
        bodies = await talk.answers(5)
        assert all(body.startswith(b'{"message":"PUB_FAILED: ') for body in bodies[1:4])
        assert bodies[4].startswith(b"NOK - ")


async def test_a_connection_that_breaks_is_no_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is."""
    async with place() as here:
        for sent in (b"", PING[:5], pub()[:-1], pub()):
            talk = here.connect()
            await talk.send(sent)
            talk.transport.incoming.break_with(ConnectionResetError())
            await talk.ended.wait()
            assert talk.handed_back is None
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_known_heads_are_bounded(autojump_clock: MockClock) -> None:
    """Heads that are all different do not fill the memory."""
    async with place() as here:
        talk = here.connect()
        for number in range(3000):
            await talk.stream.send_all(pub(more=b"X-Id: %d\r\n" % number))
            await talk.answers(1)
        assert len(here.fast_path.requests) <= 1024
        await talk.send(pub(more=b"X-Id: %b\r\n" % (b"x" * 2000)))
        assert await talk.answers(1) == [b"OK"]
        assert max(map(len, here.fast_path.requests)) < 1024


async def test_publishers_wait_until_their_topic_has_room(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before has its answer; nothing is read meanwhile; then it goes on in order."""
    async with place() as here:
        full, other = here.broker.topic("t"), here.broker.topic("u")
        room = trio.Event()

        async def wait_for_room(count: int) -> None:
            assert count == 2
            await room.wait()

        monkeypatch.setattr(full, "should_wait", lambda _count: not room.is_set())
        monkeypatch.setattr(full, "wait_for_room", wait_for_room)
        talk = here.connect()
        await talk.send(pub(topic=b"u") + pub() * 2 + PING + pub(topic=b"u"))
        assert await talk.answers(1) == [b"OK"]
        await talk.send(PING)
        assert len(talk.transport.incoming) == len(PING)
        await trio.sleep(1000)
        assert (full.core.message_count, other.core.message_count) == (0, 1)
        room.set()
        assert await talk.answers(5) == [b"OK"] * 5
        assert (full.core.message_count, other.core.message_count) == (2, 2)


async def test_waiting_publishers_are_answered_when_the_topic_goes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 503; the next one finds a new topic."""
    async with place() as here:
        topic = here.broker.topic("t")
        gone = trio.Event()

        async def wait_for_room(_count: int) -> None:
            await gone.wait()

        monkeypatch.setattr(topic, "should_wait", lambda _count: not gone.is_set())
        monkeypatch.setattr(topic, "wait_for_room", wait_for_room)
        talk = here.connect()
        await talk.send(pub() * 2 + PING + pub(more=b"Connection: close\r\n") + PING)
        here.broker.delete_topic("t")
        gone.set()
        exiting = b'{"message":"EXITING"}'
        assert await talk.answers(4) == [exiting, exiting, b"OK", b"OK"]
        await talk.ended.wait()
        assert here.broker.topics["t"].core.message_count == 1
