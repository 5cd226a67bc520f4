"""nsqd is killed while it moves a topic to a log. Real processes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import trio

from tests.processes import NsqdProcess, running_nsqd
from tests.soak import by_level, more_in_soak
from trionsq.httpget import GetError, get, post

COUNT = 5_000
FLAGS = ["--mem-queue-size=0", "--storage=default"]


async def ask(nsqd: NsqdProcess, path: str, body: bytes = b"") -> int:
    url = f"http://{nsqd.http_address}{path}"
    return (await post(url, body, request_timeout_s=60.0)).status


async def depths_of(nsqd: NsqdProcess) -> dict[str, int]:
    """The depth of each channel, and that of the topic under the empty name."""
    url = f"http://{nsqd.http_address}/stats?format=json&topic=t"
    [topic] = json.loads((await get(url, request_timeout_s=60.0)).body)["topics"]
    depths = {one["channel_name"]: one["depth"] for one in topic["channels"]}
    return {"": topic["depth"]} | depths


@more_in_soak
async def test_nothing_is_lost_whenever_nsqd_is_killed(tmp_path: Path) -> None:
    """The next start has all messages of both channels and of the topic, whatever their engine;
    then the move succeeds."""
    random = Random(7)
    for attempt in range(by_level(test=1, short=6, full=40)):
        path = tmp_path / str(attempt)
        path.mkdir()
        async with running_nsqd(path, FLAGS) as nsqd:
            for command in ("topic/create?topic=t", "channel/create?topic=t&channel=a"):
                assert await ask(nsqd, f"/{command}") == 200
            bodies = b"\n".join(b"%0100d" % number for number in range(COUNT))
            assert await ask(nsqd, "/mpub?topic=t", bodies) == 200
            await fan_out_ends(nsqd)
            assert await ask(nsqd, "/channel/create?topic=t&channel=b") == 200
            # It is answered when the metadata are saved, those of the new channel with it.
            assert await ask(nsqd, "/topic/pause?topic=t") == 200
            assert await ask(nsqd, "/mpub?topic=t", bodies) == 200
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_move, nsqd)
                await trio.sleep(random.uniform(0.0, 0.5))
                os.kill(nsqd.process.pid, 9)
                await nsqd.process.wait()
        async with running_nsqd(path, FLAGS) as nsqd:
            # After an unclean stop the old engine does not count until it has read all.
            assert await ask(nsqd, "/topic/move?topic=t&storage=log") in (200, 409)
            assert await ask(nsqd, "/topic/unpause?topic=t") == 200
            depths = await fan_out_ends(nsqd)
            # The old engine may fan out once more what it did shortly before the kill.
            assert depths["a"] >= 2 * COUNT
            assert depths["b"] >= COUNT


async def fan_out_ends(nsqd: NsqdProcess) -> dict[str, int]:
    while (depths := await depths_of(nsqd))[""]:  # noqa: ASYNC110 - it is another process
        await trio.sleep(0.05)
    return depths


async def _move(nsqd: NsqdProcess) -> None:
    with suppress(GetError):  # it is killed
        await ask(nsqd, "/topic/move?topic=t&storage=log")
