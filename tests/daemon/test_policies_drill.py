"""Policies with consumers that are slow, broken or gone, and a killed nsqd. Real processes.

Each promise of docs/policies.md is kept on both engines, and on a log while nsqd is killed:

    dead letters                     test_dead_letter_killed.py
    bounds of topics and channels    here
    bounds of the node               test_node_drill.py
    expiry                           here; to the dead letters: test_node_drill.py
    long delays                      test_node_drill.py, those that are cancelled
    retry schedules                  here
    drain                            tests/foreign/test_drain.py; killed: test_node_drill.py
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.processes import NsqdProcess, running_nsqd
from tests.soak import by_level, in_short_soak
from trionsq.client import Config, Consumer
from trionsq.httpget import get, post

COUNT = by_level(test=2_000, short=8_000, full=200_000)
BOUND = COUNT // 4
LOG = ["--storage=log", "--durability=always"]
ENGINES = pytest.mark.parametrize(
    "flags",
    [pytest.param([], id="default"), pytest.param(LOG, id="log", marks=in_short_soak)],
)


async def set_policy(nsqd: NsqdProcess, **settings: Any) -> None:
    request = urllib.request.Request(
        f"http://{nsqd.http_address}/policy/drill", json.dumps(settings).encode(), method="PUT"
    )

    def send() -> None:
        with urllib.request.urlopen(request, timeout=60.0) as answer:
            assert answer.status == 200

    await trio.to_thread.run_sync(send)


async def ask(nsqd: NsqdProcess, path: str, body: bytes = b"") -> int:
    url = f"http://{nsqd.http_address}/{path}"
    return (await post(url, body, request_timeout_s=60.0)).status


async def publish(nsqd: NsqdProcess, first: int, count: int) -> int:
    """Publish numbers as messages of 1,000 bytes; the status."""
    bodies = b"\n".join(b"%01000d" % number for number in range(first, first + count))
    return await ask(nsqd, "mpub?topic=t", bodies)


async def depth(nsqd: NsqdProcess) -> int:
    """Messages that wait at the channel, when the topic has handed on all."""
    url = f"http://{nsqd.http_address}/stats?format=json&topic=t"
    while True:
        [topic] = json.loads((await get(url, request_timeout_s=60.0)).body)["topics"]
        if not topic["depth"]:
            [channel] = topic["channels"]
            found: int = channel["depth"]
            return found
        await trio.sleep(0.05)


async def received(nsqd: NsqdProcess, wanted: int) -> list[int]:
    """The numbers that a consumer gets, and finishes; none comes behind those that are wanted."""
    found: list[int] = []
    address = nsqd.tcp_address
    config = Config(max_in_flight=500)
    async with Consumer("t", "c", nsqd_tcp_addresses=[address], config=config) as messages:
        with trio.move_on_after(60) as waiting:
            async for message in messages:
                found.append(int(message.body))
                message.finish()
                if len(found) == wanted:
                    waiting.deadline = min(waiting.deadline, trio.current_time() + 0.3)
    return found


async def new_channel(nsqd: NsqdProcess) -> None:
    for command in ("topic/create?topic=t", "channel/create?topic=t&channel=c"):
        assert await ask(nsqd, command) == 200


@ENGINES
async def test_a_channel_that_nobody_reads_keeps_the_newest(
    tmp_path: Path, flags: list[str]
) -> None:
    """With drop_oldest the backlog never exceeds its bound, and has the newest messages; after
    kill -9 the policy still holds, and on a log no message that is not dropped is lost."""
    async with running_nsqd(tmp_path, flags) as nsqd:
        await set_policy(nsqd, topics="t", max_messages=BOUND)
        await new_channel(nsqd)
        for first in range(0, COUNT, 100):
            assert await publish(nsqd, first, 100) == 200
            assert await depth(nsqd) <= BOUND
        if not flags:
            assert await received(nsqd, BOUND) == list(range(COUNT - BOUND, COUNT))
            return
        os.kill(nsqd.process.pid, 9)
        await nsqd.process.wait()
    async with running_nsqd(tmp_path, flags) as nsqd:
        assert await publish(nsqd, COUNT, 100) == 200
        while await depth(nsqd) > BOUND:  # noqa: ASYNC110 - it is another process
            await trio.sleep(0.1)
        kept = await received(nsqd, BOUND)
        assert sorted(kept) == list(range(COUNT + 100 - BOUND, COUNT + 100))


@ENGINES
async def test_publishers_are_refused_and_nothing_is_lost(tmp_path: Path, flags: list[str]) -> None:
    """With refuse each publish that got OK is delivered once, each other one never; on a log also
    over kill -9."""
    taken: list[int] = []
    async with running_nsqd(tmp_path, flags) as nsqd:
        await set_policy(nsqd, topics="t", max_bytes=BOUND * 1000, when_full="refuse")
        await new_channel(nsqd)
        for first in range(0, COUNT, 100):
            status = await publish(nsqd, first, 100)
            assert status == (200 if first < BOUND else 429)
            if status == 200:
                taken += range(first, first + 100)
            await depth(nsqd)
        if not flags:
            assert sorted(await received(nsqd, len(taken))) == taken
            assert await publish(nsqd, 0, 100) == 200
            return
        os.kill(nsqd.process.pid, 9)
        await nsqd.process.wait()
    async with running_nsqd(tmp_path, flags) as nsqd:
        assert sorted(await received(nsqd, len(taken))) == taken
        assert await publish(nsqd, 0, 100) == 200


@ENGINES
@in_short_soak
async def test_no_consumer_gets_an_expired_message(tmp_path: Path, flags: list[str]) -> None:
    """A consumer that comes late gets the messages that are young enough, and no other; they go
    also without it."""
    async with running_nsqd(tmp_path, flags) as nsqd:
        await set_policy(nsqd, topics="t", message_ttl="3s")
        await new_channel(nsqd)
        assert await publish(nsqd, 0, 500) == 200
        await trio.sleep(3.1)
        assert await publish(nsqd, 500, 500) == 200
        found = await received(nsqd, 500)
        assert found
        assert min(found) >= 500
        assert await publish(nsqd, 1000, 500) == 200
        while await depth(nsqd):  # noqa: ASYNC110 - it is another process
            await trio.sleep(0.1)


@ENGINES
async def test_a_consumer_that_knows_no_backoff_gets_it(tmp_path: Path, flags: list[str]) -> None:
    """Messages that are requeued with 0 come again after the delay of the attempt, not before."""
    times: dict[bytes, list[float]] = {}
    async with running_nsqd(tmp_path, flags) as nsqd:
        await set_policy(nsqd, topics="t", retry_delays=["300ms", "1s"], max_in_flight=3)
        await new_channel(nsqd)
        assert await publish(nsqd, 0, 10) == 200
        config = Config(max_in_flight=100)
        address = nsqd.tcp_address
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], config=config) as messages:
            with trio.fail_after(60):
                async for message in messages:
                    came = times.setdefault(message.body, [])
                    came.append(trio.current_time())
                    assert message.attempts == len(came)
                    if len(came) == 3:
                        message.finish()
                        if [len(one) for one in times.values()] == [3] * 10:
                            break
                    else:
                        message.requeue(0, backoff=False)
    for first, second, third in times.values():
        assert second - first >= 0.27
        assert third - second >= 0.9


@in_short_soak
async def test_a_schedule_outlives_a_kill(tmp_path: Path) -> None:
    """kill -9 on a log while messages wait for their next delivery: those that were requeued come
    again with their attempts and not before their time, those that were finished do not."""
    flags = [*LOG, "--state-interval=100ms"]
    requeued: dict[int, float] = {}
    finished: set[int] = set()
    async with running_nsqd(tmp_path, flags) as nsqd:
        await set_policy(nsqd, topics="t", retry_delays=["8s"])
        await new_channel(nsqd)
        assert await publish(nsqd, 0, 100) == 200
        config = Config(max_in_flight=100)
        async with Consumer(
            "t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=config
        ) as messages:
            with trio.fail_after(60):
                async for message in messages:
                    number = int(message.body)
                    if number % 2:
                        requeued[number] = time.time()
                        message.requeue(0, backoff=False)
                    else:
                        finished.add(number)
                        message.finish()
                    if len(requeued) + len(finished) == 100:
                        break
            await trio.sleep(1.0)  # ten times --state-interval
            os.kill(nsqd.process.pid, 9)
            await nsqd.process.wait()
    again: set[int] = set()
    async with (
        running_nsqd(tmp_path, flags) as nsqd,
        Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as messages,
    ):
        with trio.fail_after(60):
            async for message in messages:
                number = int(message.body)
                assert (message.attempts, number in again) == (2, False)
                # A delay is shorter by up to a tenth.
                assert time.time() - requeued[number] >= 7.1
                again.add(number)
                message.finish()
                if len(again) == len(requeued):
                    break
        assert again == set(requeued)
        assert await depth(nsqd) == 0
