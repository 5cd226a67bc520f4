"""nsqd is killed while a channel seeks, and messages come in. Real processes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import trio

from tests.processes import NsqdProcess, running_nsqd
from tests.soak import by_level, more_in_soak
from trionsq.client import Config, Consumer
from trionsq.httpget import GetError, get, post

COUNT = 1_000
FLAGS = ["--storage=log", "--durability=always", "--retain=1h"]


async def ask(nsqd: NsqdProcess, path: str, body: bytes = b"") -> int:
    url = f"http://{nsqd.http_address}{path}"
    return (await post(url, body, request_timeout_s=60.0)).status


async def depths_of(nsqd: NsqdProcess) -> dict[str, int]:
    """The depth of each channel, when the topic has handed on all."""
    url = f"http://{nsqd.http_address}/stats?format=json&topic=t"
    while True:
        [topic] = json.loads((await get(url, request_timeout_s=60.0)).body)["topics"]
        if not topic["depth"]:
            return {one["channel_name"]: one["depth"] for one in topic["channels"]}
        await trio.sleep(0.02)


@more_in_soak
async def test_a_channel_is_where_it_was_or_where_it_was_to_go(tmp_path: Path) -> None:
    """Behind an answer it is there; each message from there on comes, under the id that it has in
    another channel."""
    random = Random(11)
    for attempt in range(by_level(test=1, short=10, full=60)):
        path = tmp_path / str(attempt)
        path.mkdir()
        position, answers = random.randrange(COUNT), list[int]()
        async with running_nsqd(path, FLAGS) as nsqd:
            for command in ("topic/create?topic=t", *map(create, "ab")):
                assert await ask(nsqd, f"/{command}") == 200
            bodies = b"\n".join(b"%d" % number for number in range(COUNT))
            assert await ask(nsqd, "/mpub?topic=t", bodies) == 200
            await depths_of(nsqd)
            assert await ask(nsqd, "/channel/empty?topic=t&channel=a") == 200
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(_publish, nsqd)
                nursery.start_soon(_seek, nsqd, position, answers)
                await trio.sleep(random.uniform(0.0, 0.015))
                os.kill(nsqd.process.pid, 9)
                await nsqd.process.wait()
        async with running_nsqd(path, FLAGS) as nsqd:
            depths = await depths_of(nsqd)
            there = depths["b"] - depths["a"]
            assert there in ([position] if answers else [position, COUNT])
            mine, others = await _read(nsqd, "a", depths["a"]), await _read(nsqd, "b", depths["b"])
            assert sorted(mine.items()) == sorted(others.items())[there:]
            assert [int(body) for _, body in sorted(others.items())][:COUNT] == [*range(COUNT)]


def create(channel: str) -> str:
    return f"channel/create?topic=t&channel={channel}"


async def _read(nsqd: NsqdProcess, channel: str, count: int) -> dict[bytes, bytes]:
    """The bodies of all messages of a channel, by id."""
    found: dict[bytes, bytes] = {}
    config = Config(max_in_flight=500)
    if count:
        async with Consumer(
            "t", channel, nsqd_tcp_addresses=[nsqd.tcp_address], config=config
        ) as messages:
            async for message in messages:
                found[message.id] = message.body
                message.finish()
                if len(found) == count:
                    break
    return found


async def _publish(nsqd: NsqdProcess) -> None:
    with suppress(GetError):  # until it is killed
        while True:
            await ask(nsqd, "/pub?topic=t", b"99999")


async def _seek(nsqd: NsqdProcess, position: int, answers: list[int]) -> None:
    with suppress(GetError):  # it is killed
        status = await ask(nsqd, f"/channel/seek?topic=t&channel=a&to={position}")
        assert status == 200
        answers.append(status)
