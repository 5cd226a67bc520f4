"""TopicLogReader: what a program reads of a log, whatever happens to connections and to nsqd."""

from __future__ import annotations

from contextlib import aclosing
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import numbered, publish
from tests.cancellation import CancelAt, When, run_counted, sweep_awaits
from tests.http.logreader import serving
from tests.http.ways import Way
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from trionsq.broker.logs import log_of
from trionsq.client import Config, ConnectError, LogRefusedError, TopicLogReader
from trionsq.http import logstream
from trionsq.storage.log.retention import Retention

BODIES = numbered(60, 100)


class CutStream(trio.abc.Stream):
    """A connection that breaks when so many bytes have come."""

    def __init__(self, stream: trio.abc.Stream, nbytes: int, *, resets: bool) -> None:
        self._stream = stream
        self._left = nbytes
        self._resets = resets

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._left:
            await trio.lowlevel.checkpoint()
            if self._resets:
                raise trio.BrokenResourceError
            return b""
        data = bytes(await self._stream.receive_some(min(max_bytes or 65_536, self._left)))
        self._left -= len(data)
        return data

    async def send_all(self, data: Any) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()


def reader_of(server: Way, random: Random | None = None, **where: Any) -> TopicLogReader:
    """A reader; with ``random`` most of its connections break."""

    async def dial(_host: str, _port: int) -> trio.abc.Stream:
        stream = server.connect()
        if random is None or random.random() < 0.2:
            return stream
        nbytes = random.choice([0, random.randrange(300, 700), random.randrange(20_000)])
        return CutStream(stream, nbytes, resets=random.random() < 0.5)

    return TopicLogReader("t", "localhost:1", dial=dial, random=Random(1), **where)


async def read_all(reader: TopicLogReader) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async with aclosing(reader.batches()) as batches:
        async for sequence, _, columns in batches:
            new = dict(enumerate(columns.bodies, sequence))
            assert not found.keys() & new.keys()
            found |= new
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_each_message_once_over_broken_connections(
    seed: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they break: in the head, in a frame, in front of the end."""
    monkeypatch.setattr(logstream, "_BLOCK_BYTES", 500)
    monkeypatch.setattr("trionsq.client.topiclog._COUNT", 23)
    random = Random(seed)
    with threads_in_mock_time():
        async with serving() as server, trio.open_nursery() as nursery:
            for at in range(0, 30, 3):
                publish(server.broker, "t", *BODIES[at : at + 3])

            async def publish_more() -> None:
                for body in BODIES[30:]:
                    await trio.sleep(0.1)
                    publish(server.broker, "t", body)

            nursery.start_soon(publish_more)
            reader = reader_of(server, random, begin="2", to="end")
            while True:
                try:
                    found = await read_all(reader)
                    break
                except ConnectError:  # of the first connection
                    assert reader.sequence is None
            # The end is that of the first answer.
            assert reader._to is not None
            end = int(reader._to)
            assert found == dict(enumerate(BODIES[2:end], 2))
            assert (reader.sequence, reader.skipped) == (end, 0)
            assert end < 60


async def test_it_waits_for_what_is_to_come(autojump_clock: MockClock) -> None:
    """Without an end for ever, else until the message that ends the range."""
    with threads_in_mock_time():
        async with serving() as server, trio.open_nursery() as nursery:
            publish(server.broker, "t", *BODIES[:5])

            async def publish_late() -> None:
                for body in BODIES[5:10]:
                    await trio.sleep(25)
                    publish(server.broker, "t", body)

            nursery.start_soon(publish_late)
            assert await read_all(reader_of(server, to="8")) == dict(enumerate(BODIES[:8]))
            came: list[bytes] = []
            async with aclosing(reader_of(server, begin="3").batches()) as batches:
                async for messages in batches:
                    came += messages.columns.bodies
                    if len(came) == 7:
                        break
            assert came == BODIES[3:10]


async def test_what_it_misses_is_counted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes what it has not read yet; it goes on behind that."""
    monkeypatch.setattr(logstream, "_BLOCK_BYTES", 500)
    with threads_in_mock_time():
        async with serving() as server:
            broker = server.broker
            broker.logs.retentions.default = Retention(nbytes=10**9)
            for at in range(0, 60, 3):
                publish(broker, "t", *BODIES[at : at + 3])
            topic_log = log_of(broker.topics["t"])
            assert topic_log is not None
            reader = reader_of(server, to="end")
            async with aclosing(reader.batches()) as batches:
                first = await anext(batches)
                assert first.sequence == 0
                topic_log.frontier = 60
                topic_log.retire_segments(50)
                left = topic_log.first
                found = [one async for one in batches]
            assert 0 < left <= 50
            behind = first.sequence + len(first.columns.ids)
            rest = [body for one in found for body in one.columns.bodies]
            # What nsqd had sent before came as well.
            assert 0 < reader.skipped <= left - behind
            assert rest == BODIES[behind : left - reader.skipped] + BODIES[left:]
            topic_log.depth = 0


def test_what_came_before_a_break_is_not_missed() -> None:
    """A token may be of a place before that; retention may have removed both."""
    reader = TopicLogReader("t", "localhost:1")
    reader._take_note("begin", {"from": 5, "to": None, "next": "token"})
    reader.sequence = 12
    reader._take_note("begin", {"from": 8, "to": None, "next": "token"})
    reader._take_note("skipped", {"from": 8, "to": 20, "reason": "removed"})
    assert (reader.sequence, reader.skipped) == (20, 8)
    reader._take_note("skipped", {"from": 8, "to": 20, "reason": "removed"})
    assert (reader.sequence, reader.skipped) == (20, 8)


async def test_refusals_end_it() -> None:
    """A topic that there is not, or without a log, or that was deleted; with nsqd's own words."""
    async with serving() as server:
        server.broker.topic("t", storage="default")
        with pytest.raises(LogRefusedError, match="TOPIC_HAS_NO_LOG"):
            await read_all(reader_of(server))
        await server.broker.delete_topic("t").wait()
        with pytest.raises(LogRefusedError, match="404 TOPIC_NOT_FOUND"):
            await read_all(reader_of(server))
        publish(server.broker, "t", *BODIES)
        await wait_all_tasks_blocked()
        reader = reader_of(server)
        async with aclosing(reader.batches()) as batches:
            await anext(batches)
            await server.broker.delete_topic("t").wait()
            publish(server.broker, "t", *BODIES)
            with pytest.raises(LogRefusedError, match=r"deleted|TOKEN_OF_ANOTHER_LOG"):
                async for _ in batches:
                    pass


async def read_and_stop(cancel_at: CancelAt) -> None:
    """A reader is cancelled at one await, while messages come."""
    with threads_in_mock_time():
        async with serving() as server:
            publish(server.broker, "t", *BODIES[:30])
            await wait_all_tasks_blocked()
            with nothing_left_behind():
                found: list[bytes] = []

                async def read() -> None:
                    async with aclosing(reader_of(server, to="40").batches()) as batches:
                        async for messages in batches:
                            found.extend(messages.columns.bodies)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run_counted, cancel_at, read)
                    await trio.sleep(3)
                    publish(server.broker, "t", *BODIES[30:50])
                assert found == BODIES[: len(found)]
                assert cancel_at.has_fired or len(found) == 40
                await trio.sleep(10)  # nsqd gives up connections that were left
            # Whatever was cancelled: its place is free, and the next one reads all.
            assert len(await read_all(reader_of(server, to="end"))) == 50


@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_reader_cancelled_at_any_await(when: When) -> None:
    """It leaves no connection, and nsqd no task and no open file."""
    sweep_awaits(read_and_stop, when, least=10, one_in=3)


async def test_a_token_says_where_to_begin_and_a_secret_is_sent(autojump_clock: MockClock) -> None:
    """With a token an nsqd that does not answer is awaited; auth_secret is a bearer token."""
    heads: list[bytes] = []

    class Listening(CutStream):
        async def send_all(self, data: Any) -> None:
            heads.append(bytes(data))
            await super().send_all(data)

    with threads_in_mock_time():
        async with serving() as server:
            publish(server.broker, "t", *BODIES[:9])
            first = reader_of(server, begin="0", to="5")
            await read_all(first)

            async def dial(_host: str, _port: int) -> trio.abc.Stream:
                if not refusals:
                    return Listening(server.connect(), 10**6, resets=False)
                raise refusals.pop()

            refusals = [OSError("refused"), OSError("refused")]
            config = Config(auth_secret="s3cret")
            reader = TopicLogReader(
                "t", "localhost:1", after=first._token, to="9", config=config, dial=dial
            )
            assert await read_all(reader) == dict(enumerate(BODIES[5:9], 5))
    assert not refusals
    assert b"\r\nauthorization: bearer s3cret\r\n" in heads[0].lower()
