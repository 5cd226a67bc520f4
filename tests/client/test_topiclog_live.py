"""TopicLogReader on real sockets: beside publishers and retention, and over kills of nsqd."""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from random import Random

import trio

from tests.processes import free_address, running_nsqd
from tests.soak import by_level, more_in_soak
from tests.tools.support import LIMIT_S, PATIENT, until
from trionsq.client import Consumer, Producer, TopicLogReader
from trionsq.httpget import post
from trionsq.testing import open_broker

FLAGS = ["--storage=log", "--durability=always"]
READING_LIMIT_S = by_level(test=LIMIT_S, short=LIMIT_S, full=10 * LIMIT_S)
"""The full soak reads 200,000 messages three times, in the process that publishes and consumes."""
KEEPING_UP = replace(PATIENT, max_in_flight=7)
"""With one message in flight a consumer falls far behind. What it has not had is retained, so the
fast readers would miss hardly any. Seven do not divide the fifty messages of a publish."""


def body(number: int) -> bytes:
    return b"%0200d" % number


@more_in_soak
async def test_readers_beside_publishers_and_retention() -> None:
    """Each message that a reader gets has its body, none comes twice, and what does not come is
    counted; consumers get all."""
    count = by_level(test=3_000, short=30_000, full=200_000)
    async with open_broker(
        storage="log", durability="always", state_interval_ns=20_000_000, retain_bytes=100_000
    ) as nsqd:
        assert nsqd.broker.logs.node is not None
        nsqd.broker.logs.node.segment_bytes = 20_000
        nsqd.broker.topic("t").channel("c")
        consumed: list[bytes] = []

        async def publish() -> None:
            async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
                for first in range(0, count, 50):
                    bodies = [body(number) for number in range(first, first + 50)]
                    await producer.publish_many("t", bodies)

        async def consume() -> None:
            async with Consumer(
                "t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=KEEPING_UP
            ) as consumer:
                async for batch in consumer.batches():
                    consumed.extend(batch.bodies)
                    batch.finish()
                    if len(consumed) == count:
                        return

        async def read(begin: str, pause_s: float) -> None:
            reader = TopicLogReader("t", nsqd.http_address, begin=begin, to=str(count))
            expected, missing, skipped_first = -1, 0, 0
            async with aclosing(reader.batches()) as batches:
                async for sequence, _, columns in batches:
                    if expected < 0:
                        expected, skipped_first = sequence, reader.skipped
                    assert sequence >= expected
                    missing += sequence - expected
                    expected = sequence + len(columns.bodies)
                    assert columns.bodies == [body(at) for at in range(sequence, expected)]
                    await trio.sleep(pause_s)
            assert expected == count
            assert missing == reader.skipped - skipped_first

        with trio.fail_after(READING_LIMIT_S):
            async with trio.open_nursery() as nursery:
                for work in (publish, consume):
                    nursery.start_soon(work)
                for pause_s in (0.0, 0.0, 0.05):
                    nursery.start_soon(read, "0", pause_s)
        assert sorted(consumed) == [body(number) for number in range(count)]


@more_in_soak
async def test_a_read_over_kills_of_nsqd(tmp_path: Path) -> None:
    """By its tokens a reader goes on behind each start: every message once, in order."""
    random = Random(7)
    kills = by_level(test=1, short=5, full=30)
    http = free_address()
    count = 4_000
    found: list[int] = []

    async def read() -> None:
        reader = TopicLogReader("t", http, to=str(count * (kills + 1)), config=PATIENT)
        async with aclosing(reader.batches()) as batches:
            async for sequence, _, columns in batches:
                assert sequence == len(found)
                found.extend(map(int, columns.bodies))
                await trio.sleep(0.001)
        assert reader.skipped == 0

    async with trio.open_nursery() as nursery:
        for attempt in range(kills + 1):
            async with running_nsqd(tmp_path, [*FLAGS, f"--http-address={http}"]) as nsqd:
                for part in range(4):
                    first = attempt * count + part * count // 4
                    bodies = b"\n".join(body(at) for at in range(first, first + count // 4))
                    url = f"http://{http}/mpub?topic=t"
                    answer = await post(url, bodies, request_timeout_s=LIMIT_S)
                    assert answer.status == 200
                    if not attempt and not part:
                        nursery.start_soon(read)
                wanted = (attempt + 1) * count if attempt == kills else attempt * count + 1
                await until(lambda wanted=wanted: len(found) >= wanted)  # type: ignore[misc]
                if attempt < kills:
                    await trio.sleep(random.uniform(0, 0.02))
                    os.kill(nsqd.process.pid, 9)
                    await nsqd.process.wait()
    assert found == list(range(count * (kills + 1)))
