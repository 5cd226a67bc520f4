"""GET /topic/log: what is shown, to whom it is refused, and when it ends (trionsq.http.logread)."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import consume, finish, numbered, publish
from tests.cancellation import CancelAt, When, run_counted, sweep_awaits
from tests.http.logreader import ask, begin, serving
from tests.http.ways import Way
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from trionsq.broker.broker import Broker
from trionsq.broker.logs import log_of
from trionsq.broker.runtime import Clock
from trionsq.http import logstream
from trionsq.httpget import get
from trionsq.storage.log import runs
from trionsq.storage.log.retention import Retention
from trionsq.storage.log.seeking import rfc3339
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.disk import SimulatedDisk
from trionsq.web import limits

START_NS = 1_700_000_000_000_000_000
FORMS = pytest.mark.parametrize("form", ["ndjson", "binary"])


def log_named(broker: Broker, name: str = "t") -> TopicLog:
    found = log_of(broker.topics[name])
    assert found is not None
    return found


async def publish_all(broker: Broker, count: int, first: int = 0, size: int = 50) -> None:
    """Numbered messages, three in a record; a segment has about four records."""
    bodies = numbered(first + count, size)[first:]
    for at in range(0, count, 3):
        publish(broker, "t", *bodies[at : at + 3])
    await wait_all_tasks_blocked()


@FORMS
async def test_each_message_is_shown_as_consumers_get_it(form: str) -> None:
    """With its id, its body and when it is due, over segments, and nothing of a channel changes."""
    disk = SimulatedDisk()
    async with serving(disk) as server:
        broker = server.broker
        broker.topic("t").channel("c")
        await publish_all(broker, 30)
    async with serving(disk) as server:
        broker = server.broker
        publish(broker, "t", b"", b"\xff\x00", "h<\u00e9".encode(), b"plain", b"x" * 200_000)
        publish(broker, "t", b"later", b"too", defer_ms=5_000)
        await publish_all(broker, 6, first=30)
        log = log_named(broker)
        before = len(log.cache), log.depth, broker.topics["t"].channels["c"].core.depth
        answer = await ask(server, format=form, count=1_000)
        assert answer.status == 200
        assert answer.outcome == ("end", 43)
        assert answer.skipped == []
        assert list(answer.bodies) == list(range(43))
        assert (len(log.cache), log.depth, broker.topics["t"].channels["c"].core.depth) == before
        _, messages = await consume(broker, "t", "c", 41)
        shown = {answer.ids[at]: body for at, body in answer.bodies.items()}
        assert len(shown) == 43
        for message in messages:
            assert shown[message.message_id] == message.body
        assert sorted(answer.due_ns) == [35, 36]
        assert answer.bodies[35] == b"later"


async def test_bodies_as_base64() -> None:
    """All of them, if that is asked for; else only what is no text."""
    async with serving() as server:
        publish(server.broker, "t", b"text", b"\xff")
        for body, expected in (("text", [b"utf-8", b"base64"]), ("base64", [b"base64"] * 2)):
            async with begin(server, body=body) as answer:
                data = b""
                while piece := await answer.receive():
                    data += piece
            encodings = [part.partition(b'"')[0] for part in data.split(b'body_encoding":"')[1:]]
            assert encodings == expected


REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    ({"topic": ""}, 400, "INVALID_TOPIC"),
    ({"topic": "none"}, 404, "TOPIC_NOT_FOUND"),
    ({"topic": "memory"}, 400, "TOPIC_HAS_NO_LOG: "),
    ({"topic": "t#ephemeral"}, 400, "TOPIC_HAS_NO_LOG: "),
    ({"from_": "yesterday"}, 400, "INVALID_ARG_FROM: "),
    ({"from_": "-1"}, 400, "INVALID_ARG_FROM: "),
    ({"to": "2026-13-01T00:00:00Z"}, 400, "INVALID_ARG_TO: "),
    ({"count": "0"}, 400, "INVALID_ARG_COUNT"),
    ({"count": "1000001"}, 400, "INVALID_ARG_COUNT"),
    ({"count": "1.5"}, 400, "INVALID_ARG_COUNT"),
    ({"wait": "61"}, 400, "INVALID_ARG_WAIT"),
    ({"wait": "-1"}, 400, "INVALID_ARG_WAIT"),
    ({"format": "xml"}, 400, "INVALID_ARG_FORMAT"),
    ({"body": "hex"}, 400, "INVALID_ARG_BODY"),
    ({"after": ""}, 400, "INVALID_ARG_AFTER: no token"),
    ({"after": "1.2.3"}, 400, "INVALID_ARG_AFTER: no token"),
    ({"after": b"1.2\xff"}, 400, "INVALID_ARG_AFTER: no token"),
    ({"after": "1.0", "from_": "0"}, 400, "INVALID_ARG_AFTER: not together with from"),
]


async def test_refusals() -> None:
    """Each says which parameter is wrong; other methods are refused as on other routes."""
    async with serving() as server:
        publish(server.broker, "t", b"message")
        server.broker.topic("t#ephemeral")
        server.broker.topic("memory", storage="default")
        for parameters, status, code in REFUSALS:
            answer = await ask(server, **{"topic": "t", **parameters})
            assert answer.status == status, parameters
            assert answer.notes[0]["message"].startswith(code), parameters
        for method in (b"HEAD", b"POST"):
            outcome = await server.exchange(
                [b"%b /topic/log?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % method]
            )
            assert outcome.answers.startswith(b"HTTP/1.1 405 ")


@FORMS
async def test_pages_by_their_tokens(form: str) -> None:
    """Whatever the pages are, each message is on one of them; a range ends before its end."""
    random = Random(5)
    async with serving() as server:
        await publish_all(server.broker, 60)
        where: dict[str, Any] = {"from_": 3, "to": 57}
        found: dict[int, bytes] = {}
        while True:
            answer = await ask(server, format=form, count=random.randint(1, 20), **where)
            assert not found.keys() & answer.bodies.keys()
            found |= answer.bodies
            where = {"after": answer.end["next"], "to": 57}
            if answer.end["reason"] == "to":
                break
            assert answer.end["reason"] == "count"
        assert found == dict(enumerate(numbered(57, 50)[3:], 3))
        # The token behind each block is one as well.
        answer = await ask(server, format=form)
        tokens = [note["next"] for note in answer.notes if note["note"] == "next"]
        assert len(tokens) > 2
        for token in tokens:
            rest = await ask(server, after=token)
            assert list(rest.bodies) == list(range(rest.notes[0]["from"], 60))


def time(seconds: float) -> str:
    return rfc3339(START_NS + int(seconds * 1e9))


async def test_positions(autojump_clock: MockClock) -> None:
    """A range begins and ends where a channel would that is made with the same value."""
    with threads_in_mock_time():
        async with serving(clock=Clock.from_trio(START_NS)) as server:
            for number in range(10):
                publish(server.broker, "t", b"%0100d" % number)
                await trio.sleep(1)
            for begin_at, end_at, expected in (
                ("beginning", "end", range(10)),
                (time(2), time(5), range(2, 5)),
                (time(2.5), time(5.5), range(3, 6)),
                ("4", time(-5), range(0)),
                ("end", "end", range(0)),
                ("7", "99", range(7, 10)),
            ):
                answer = await ask(server, from_=begin_at, to=end_at)
                assert list(answer.bodies) == list(expected), (begin_at, end_at)


async def test_a_token_of_another_log_is_refused() -> None:
    """Of a topic that was made again, of another topic, of a data path that was made anew, and of a
    place that this log has not reached."""
    async with serving() as server:
        publish(server.broker, "other", b"message")
        await publish_all(server.broker, 9)
        token = (await ask(server, count=5)).end["next"]
        number, sequence, first, salt = token.split(".")
        assert (await ask(server, "other", after=token)).status == 409
        ahead = await ask(server, after=f"{number}.10.{first}.{salt}")
        assert (ahead.status, ahead.notes[0]["message"][:21]) == (409, "TOKEN_OF_ANOTHER_LOG:")
        assert (await ask(server, after=f"{number}.9.{first}.{salt}")).status == 200
        assert (await ask(server, after=f"{number}.{sequence}.{first}.00000000")).status == 409
        await server.broker.delete_topic("t").wait()
        await publish_all(server.broker, 9)
        assert (await ask(server, after=token)).status == 409
    async with serving() as server:
        publish(server.broker, "other", b"message")
        await publish_all(server.broker, 9)
        assert (await ask(server, after=token)).status == 409


async def test_a_token_lasts_over_a_restart() -> None:
    """Nothing is lost or repeated by who goes on with it, also from a log that had nothing yet."""
    disk = SimulatedDisk()
    async with serving(disk) as server:
        server.broker.topic("t")
        start = (await ask(server)).end["next"]
        await publish_all(server.broker, 30)
        token = (await ask(server, count=14)).end["next"]
    async with serving(disk.after_kill()) as server:
        await publish_all(server.broker, 3, first=30)
        assert list((await ask(server, after=token)).bodies) == list(range(14, 33))
        assert list((await ask(server, after=start)).bodies) == list(range(33))


async def test_what_is_not_durable_is_not_shown() -> None:
    """A power failure may take it, and give its sequences to others; behind the fsync it comes."""
    async with serving(durability="interval", sync_timeout_ns=10**15) as server:
        await publish_all(server.broker, 9)
        log = log_named(server.broker)
        assert log.safe_end == 9
        # Each new segment syncs the one before.
        shown = (await ask(server)).bodies
        assert len(shown) < 9
        log.sync()
        await wait_all_tasks_blocked()
        assert len((await ask(server)).bodies) == 9
        publish(server.broker, "t", b"one more")
        assert len((await ask(server, to=10)).bodies) == 9


async def test_what_was_emptied_is_not_shown() -> None:
    """Also if it is within a record; it is no loss."""
    async with serving() as server:
        await publish_all(server.broker, 7)
        server.broker.topics["t"].empty()
        await publish_all(server.broker, 5, first=7)
        answer = await ask(server)
        assert list(answer.bodies) == list(range(7, 12))
        assert (answer.skipped, answer.notes[0]["from"]) == ([], 7)


async def retire(server: Way, broker: Broker) -> int:
    """Finish all, and let the old segments go; return the first that is left."""
    consumer, messages = await consume(
        broker, "t", "c", broker.topics["t"].channels["c"].core.depth
    )
    await finish(consumer, *messages)
    broker.logs.retentions.default = Retention()
    await broker.logs.take_snapshots()
    await wait_all_tasks_blocked()
    await broker.logs.take_snapshots()
    await wait_all_tasks_blocked()
    return log_named(broker).first


@FORMS
async def test_what_retention_removes_meanwhile_ends_the_answer(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clearly; the next answer says what is gone, and goes on behind it."""
    monkeypatch.setattr(logstream, "_BLOCK_BYTES", 100)
    async with serving() as server:
        broker = server.broker
        broker.logs.retentions.default = Retention(nbytes=10**9)
        broker.topic("t").channel("c")
        await publish_all(broker, 30)
        read = runs.read_run
        first = 0

        async def while_read() -> None:
            nonlocal first
            await started.wait()
            first = await retire(server, broker)

        started = trio.Event()

        def read_late(*arguments: Any, **more: Any) -> Any:
            found = read(*arguments, **more)
            if not first:
                trio.from_thread.run_sync(started.set)
                trio.from_thread.run(ended.wait)
            return found

        ended = trio.Event()
        monkeypatch.setattr(logstream, "read_run", read_late)
        async with trio.open_nursery() as nursery:

            async def retire_and_go_on() -> None:
                await while_read()
                ended.set()

            nursery.start_soon(retire_and_go_on)
            answer = await ask(server, form=form)
        assert first > 3
        assert answer.end["reason"] == "removed"
        behind = answer.end["sequence"]
        assert list(answer.bodies) == list(range(behind))
        answer = await ask(server, after=answer.end["next"])
        assert answer.skipped == [(behind, first, "removed")]
        assert list(answer.bodies) == list(range(first, 30))


async def test_what_goes_while_it_is_read_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be removed, or replaced, in the middle of a block."""
    async with serving() as server:
        await publish_all(server.broker, 30)
        log = log_named(server.broker)

        def read_what_goes(*_: Any, **__: Any) -> runs.LogRun:
            trio.from_thread.run_sync(log.retire_segments, 20)
            return runs.LogRun([runs.LostRange(0, 3)], next=3)

        monkeypatch.setattr(logstream, "read_run", read_what_goes)
        answer = await ask(server)
        assert (answer.outcome, answer.skipped) == (("removed", 0), [])
        assert log.first > 3


@FORMS
async def test_what_is_damaged_is_said(form: str) -> None:
    """In its place; what stands behind it follows, and a whole segment that is gone is no end."""
    disk = SimulatedDisk()
    async with serving(disk) as server:
        await publish_all(server.broker, 60)
        log = log_named(server.broker)
        one = log.segments[1]
        data = bytearray(disk.files()[one.name])
        data[one.end - 1] ^= 1
        disk.write_file(one.name, bytes(data))
        end = log.segments[2].first
        answer = await ask(server, format=form)
        assert answer.skipped == [(end - 3, end, "damaged")]
        assert list(answer.bodies) == [at for at in range(60) if not end - 3 <= at < end]
        assert answer.outcome == ("end", 60)
        disk.unlink(one.name)
        answer = await ask(server, format=form)
        assert answer.skipped == [(one.first, end, "damaged")]
        assert list(answer.bodies) == [at for at in range(60) if not one.first <= at < end]


async def test_a_disk_that_fails_ends_the_answer() -> None:
    """With the reason; when it is well again the token goes on."""
    disk = SimulatedDisk()
    async with serving(disk) as server:
        await publish_all(server.broker, 60)
        middle = log_named(server.broker).segments[2]
        disk.fail(errno.EIO, forever=True, only=("read",), name=middle.name)
        answer = await ask(server)
        assert answer.outcome == ("unreadable", middle.first)
        assert "Input/output error" in answer.end["error"]
        assert (await ask(server, from_=middle.first)).status == 500
        disk.heal()
        rest = await ask(server, after=answer.end["next"])
        assert list(answer.bodies) + list(rest.bodies) == list(range(60))


async def test_waiting_at_the_end(autojump_clock: MockClock) -> None:
    """What is published meanwhile comes; then the answer ends, and a token misses nothing."""
    with threads_in_mock_time():
        async with serving() as server, trio.open_nursery() as nursery:
            await publish_all(server.broker, 3)

            async def go_on() -> None:
                for number in range(3, 9):
                    await trio.sleep(3)
                    publish(server.broker, "t", *numbered(number + 1)[number:])

            nursery.start_soon(go_on)
            answer = await ask(server, from_=1, wait=10)
            assert answer.outcome == ("end", 6)
            assert list(answer.bodies) == [1, 2, 3, 4, 5]
            rest = await ask(server, after=answer.end["next"], wait=60, to=8)
            assert rest.outcome == ("to", 8)
            assert list(rest.bodies) == [6, 7]


async def test_a_time_that_is_not_there_yet(autojump_clock: MockClock) -> None:
    """The answer ends before the first message of that time; without one, when it has passed."""
    with threads_in_mock_time():
        async with (
            serving(clock=Clock.from_trio(START_NS)) as server,
            trio.open_nursery() as nursery,
        ):

            async def publish_seconds() -> None:
                for number in range(20):
                    publish(server.broker, "t", b"%d" % number)
                    await trio.sleep(1)

            nursery.start_soon(publish_seconds)
            await trio.sleep(2.5)
            to = rfc3339(START_NS + 10_000_000_000)
            assert (await ask(server, to=to)).outcome == ("end", 3)
            answer = await ask(server, to=to, wait=60)
            assert answer.outcome == ("to", 10)
            assert list(answer.bodies) == list(range(10))
            to = rfc3339(START_NS + 30_000_000_000)
            began_s = trio.current_time()
            answer = await ask(server, from_="end", to=to, wait=60)
            assert answer.end["reason"] == "to"
            assert trio.current_time() - began_s < 30


@pytest.mark.parametrize("why", ["deleted", "stopping", "time"])
async def test_other_ends(why: str, autojump_clock: MockClock, monkeypatch: Any) -> None:
    """A topic that is deleted, an nsqd that stops, and an answer that takes too long."""
    if why == "time":
        monkeypatch.setattr(logstream, "LIFE_S", 20.0)
    with threads_in_mock_time():
        async with serving() as server, trio.open_nursery() as nursery:
            await publish_all(server.broker, 3)

            async def end() -> None:
                await trio.sleep(5)
                if why == "deleted":
                    await server.broker.delete_topic("t").wait()
                elif why == "stopping":
                    server.broker.stop()

            nursery.start_soon(end)
            answer = await ask(server, wait=60)
            assert answer.outcome == (why, 3)
            assert (answer.end["next"] is None) == (why == "deleted")


async def readers(server: Way) -> list[str]:
    """How many read, and how many were refused, as /metrics says it."""

    async def dial(_host: str, _port: int) -> trio.SocketStream:
        return server.connect()

    page = (await get("http://localhost:1/metrics", dial=dial)).body.decode()
    rows = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return [rows["nsqd_log_readers"], rows["nsqd_log_readers_refused_total"]]


async def test_too_many_readers_are_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 503 and when to come again; as soon as one has ended another one may read."""
    monkeypatch.setattr("trionsq.web.metrics._CACHED_S", 0.0)
    monkeypatch.setattr("trionsq.http.logread.MAX_READERS", 2)
    monkeypatch.setattr(logstream, "MAX_READERS", 2)
    with threads_in_mock_time():
        async with serving() as server:
            await publish_all(server.broker, 3)
            async with begin(server, wait=60), begin(server, wait=60):
                answer = await ask(server)
                assert (answer.status, answer.headers["retry-after"]) == (503, "5")
                assert answer.notes == [{"message": "TOO_MANY_READERS"}]
                assert await readers(server) == ["2.0", "1.0"]
            await trio.sleep(1)
            assert await readers(server) == ["0.0", "1.0"]
            assert (await ask(server)).outcome == ("end", 3)


async def test_a_client_that_stalls_is_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up neither consumers nor publishers nor readers, and its place is free again."""
    monkeypatch.setattr("trionsq.http.logread.MAX_READERS", 2)
    monkeypatch.setattr(logstream, "MAX_READERS", 2)
    with threads_in_mock_time():
        async with serving() as server:
            broker = server.broker
            broker.topic("t").channel("c")
            await publish_all(broker, 3_000, size=1_000)
            stream = server.connect()
            await stream.send_all(b"GET /topic/log?topic=t&count=3000 HTTP/1.1\r\nHost: a\r\n\r\n")
            await trio.sleep(1)
            consumer, messages = await consume(broker, "t", "c", 1_000)
            await finish(consumer, *messages)
            publish(broker, "t", b"more")
            assert (await ask(server, from_="end")).status == 200
            await trio.sleep(limits.WRITE_STALL_S + 5)
            received = 0
            with suppress(trio.BrokenResourceError):
                async for data in stream:
                    received += len(data)
            assert 0 < received < 3_000_000
            await stream.aclose()
            async with begin(server), begin(server):
                assert (await ask(server)).status == 503


async def serve_cut_off(cancel_at: CancelAt) -> None:
    """A connection that reads a log, and waits at its end, is cancelled at one await."""
    with threads_in_mock_time(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("trionsq.http.logread.MAX_READERS", 1)
        patch.setattr(logstream, "MAX_READERS", 1)
        patch.setattr(logstream, "_BLOCK_BYTES", 500)
        async with serving() as server:
            await publish_all(server.broker, 24)
            with nothing_left_behind():
                ours, theirs = socket.socketpair()
                client = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                request = b"GET /topic/log?topic=t&wait=2 HTTP/1.0\r\nHost: a\r\n\r\n"
                came = b""

                async def receive() -> None:
                    nonlocal came
                    with suppress(trio.BrokenResourceError):
                        await client.send_all(request)
                        async for data in client:
                            came += data

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive)
                    await run_counted(cancel_at, lambda: server.server.serve(theirs))
                await client.aclose()
            assert cancel_at.has_fired or came.endswith(b'"}\n')
            assert (await ask(server)).outcome == ("end", 24)


@pytest.mark.parametrize("when", ["parked", "woken"])
def test_an_answer_cut_off_at_any_await(when: When) -> None:
    """No task, no open file and no place of a reader is left: the next one reads all."""
    sweep_awaits(serve_cut_off, when, least=30)
