"""What bounds a whole node, and a drain that is killed; letters of what expires, cancelled delays.

Real processes; on the log engine they are killed in the middle.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.daemon.test_policies_drill import (
    ENGINES,
    LOG,
    ask,
    depth,
    new_channel,
    publish,
    received,
    set_policy,
)
from tests.pipelines.drill.disk import small_disk
from tests.processes import NsqdProcess, running_nsqd
from tests.soak import by_level, in_short_soak
from trionsq.client import Config, Consumer
from trionsq.httpget import get

COUNT = by_level(test=1_000, short=10_000, full=100_000)
# Bytes of a message of `publish`.
SIZE = 1000


async def document(nsqd: NsqdProcess, path: str) -> Any:
    return json.loads((await get(f"http://{nsqd.http_address}{path}", request_timeout_s=60.0)).body)


async def figure(nsqd: NsqdProcess, name: str) -> float:
    """A figure of /metrics without labels."""
    page = (await get(f"http://{nsqd.http_address}/metrics", request_timeout_s=60.0)).body.decode()
    [value] = [line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(value)


async def kill(nsqd: NsqdProcess) -> None:
    os.kill(nsqd.process.pid, 9)
    await nsqd.process.wait()


@in_short_soak
@ENGINES
async def test_memory_is_bounded_and_nothing_is_lost(tmp_path: Path, flags: list[str]) -> None:
    """Four times --max-memory waits: memory holds no more than the limit and what a tenth of a
    second brings; each message comes once, on a log also after kill -9."""
    limit = COUNT * SIZE // 4
    flags = [*flags, f"--max-memory={limit}", f"--mem-queue-size={COUNT}"]
    async with running_nsqd(tmp_path, flags) as nsqd:
        await new_channel(nsqd)
        highest = 0.0
        for first in range(0, COUNT, 100):
            assert await publish(nsqd, first, 100) == 200
            if first % 1000 == 900:
                await trio.sleep(0.3)
                highest = max(highest, await figure(nsqd, "nsqd_memory_message_bytes"))
        assert await depth(nsqd) == COUNT
        assert highest <= limit + 1000 * SIZE
        if not flags[0].startswith("--storage"):
            assert sorted(await received(nsqd, COUNT)) == list(range(COUNT))
            return
        await kill(nsqd)
    async with running_nsqd(tmp_path, flags) as nsqd:
        assert sorted(await received(nsqd, COUNT)) == list(range(COUNT))


@in_short_soak
@ENGINES
async def test_a_disk_without_room_refuses_publishes(tmp_path: Path, flags: list[str]) -> None:
    """With less free than --min-free-disk each publish is refused, /ready says why, and consumers
    go on with what is there; with more it takes them again."""
    async with running_nsqd(tmp_path, flags) as nsqd:
        await new_channel(nsqd)
        assert await publish(nsqd, 0, 200) == 200
        await depth(nsqd)
    async with running_nsqd(tmp_path, [*flags, f"--min-free-disk={2**60}"]) as nsqd:
        with trio.fail_after(60):
            while await publish(nsqd, 200, 100) != 503:  # noqa: ASYNC110 - another process
                await trio.sleep(0.1)
        ready = await get(f"http://{nsqd.http_address}/ready", request_timeout_s=60.0)
        assert (ready.status, b"bytes free" in ready.body) == (503, True)
        got = await received(nsqd, await depth(nsqd))
        assert set(got) >= set(range(200))
    async with running_nsqd(tmp_path, [*flags, "--min-free-disk=1"]) as nsqd:
        assert await publish(nsqd, 300, 100) == 200
        assert sorted(await received(nsqd, 100)) == list(range(300, 400))


@in_short_soak
@ENGINES
async def test_publishes_stop_before_a_small_disk_is_full(tmp_path: Path, flags: list[str]) -> None:
    """On a file system of its own nsqd refuses publishes while there is room; all that got OK is
    delivered, on a log also after kill -9; with more room publishes are taken again."""
    with small_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("mounting is not permitted")
        flags = [*flags, f"--min-free-disk={8 << 20}", "--mem-queue-size=0"]
        flags.append(f"--max-bytes-per-file={4 << 20}")
        taken: list[int] = []
        ballast = tmp_path / "disk" / "ballast"
        ballast.write_bytes(bytes(12 << 20))
        async with running_nsqd(tmp_path / "disk", flags) as nsqd:
            await new_channel(nsqd)
            for first in range(0, 25_000, 250):
                status = await publish_large(nsqd, first, 250)
                if status != 200:
                    break
                taken += range(first, first + 250)
                await trio.sleep(0.2)  # nsqd looks at the disk twice a second
            assert (status, len(taken) >= 2_000) == (503, True)
            free = shutil.disk_usage(tmp_path / "disk").free
            assert 0 < free < 9 << 20
            await depth(nsqd)
            if LOG[0] in flags:
                await kill(nsqd)
            else:
                assert sorted(await received(nsqd, len(taken))) == taken
                ballast.unlink()
                await until_taken(nsqd)
                return
        async with running_nsqd(tmp_path / "disk", flags) as nsqd:
            assert sorted(await received(nsqd, len(taken))) == taken
            ballast.unlink()
            await until_taken(nsqd)


async def publish_large(nsqd: NsqdProcess, first: int, count: int) -> int:
    """As `publish`, with messages of 4,000 bytes."""
    bodies = b"\n".join(b"%04000d" % number for number in range(first, first + count))
    return await ask(nsqd, "mpub?topic=t", bodies)


async def until_taken(nsqd: NsqdProcess) -> None:
    """Wait until a publish is taken again."""
    with trio.fail_after(90):
        while await publish_large(nsqd, 25_000, 1) != 200:  # noqa: ASYNC110 - another process
            await trio.sleep(0.1)


async def test_a_drain_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle of a drain, on the log engine: after the start the node takes publishes
    again, and delivers what was not finished; a second drain then ends it."""
    finished: set[int] = set()
    async with running_nsqd(tmp_path, LOG) as nsqd:
        await new_channel(nsqd)
        for first in range(0, COUNT, 100):
            assert await publish(nsqd, first, 100) == 200
        await depth(nsqd)
        config = Config(max_in_flight=10)
        address = nsqd.tcp_address
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], config=config) as messages:
            async for message in messages:
                if not finished:
                    assert await put_drain(nsqd, b"true") == 200
                    assert await publish(nsqd, COUNT, 1) == 503
                finished.add(int(message.body))
                message.finish()
                if len(finished) == COUNT // 2:
                    assert (await document(nsqd, "/config/drain"))["state"] == "draining"
                    await kill(nsqd)
                    break
    async with running_nsqd(tmp_path, LOG) as nsqd:
        assert (await document(nsqd, "/config/drain"))["state"] not in ("draining", "drained")
        assert await publish(nsqd, COUNT, 100) == 200
        found = await received(nsqd, await depth(nsqd))
        assert finished | set(found) == set(range(COUNT + 100))
        # FINs of the last moments before a kill may be lost with it.
        assert len(found) == len(set(found))
        assert await put_drain(nsqd, b"true") == 200
        with trio.fail_after(60):
            assert await nsqd.process.wait() == 0


async def put_drain(nsqd: NsqdProcess, body: bytes) -> int:
    def send() -> int:
        import urllib.request

        url = f"http://{nsqd.http_address}/config/drain"
        request = urllib.request.Request(url, body, method="PUT")
        with urllib.request.urlopen(request, timeout=60.0) as answer:
            status: int = answer.status
            return status

    return await trio.to_thread.run_sync(send)


@in_short_soak
@ENGINES
async def test_what_expires_is_a_letter(tmp_path: Path, flags: list[str]) -> None:
    """Each message that nobody reads in time is one, in none or two places at no time; on a log
    nsqd is killed while they become letters."""
    count = COUNT // 2
    policy: dict[str, Any] = {"topics": "t", "message_ttl": "1s", "when_expired": "dead_letter"}
    async with running_nsqd(tmp_path, flags) as nsqd:
        await set_policy(nsqd, **policy)
        await new_channel(nsqd)
        for first in range(0, count, 100):
            assert await publish(nsqd, first, 100) == 200
        if flags:
            with trio.fail_after(90):
                while not (await document(nsqd, "/deadletter"))["count"]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await kill(nsqd)
        else:
            await until_letters(nsqd, count)
            return
    async with running_nsqd(tmp_path, flags) as nsqd:
        await until_letters(nsqd, count)


async def until_letters(nsqd: NsqdProcess, count: int) -> None:
    """Wait until each message is a letter, and the channel has none."""
    with trio.fail_after(90):
        while (await document(nsqd, "/deadletter?topic=t&reason=expired"))["count"] < count:  # noqa: ASYNC110
            await trio.sleep(0.1)
        while await depth(nsqd):  # noqa: ASYNC110
            await trio.sleep(0.1)
    bodies: set[int] = set()
    after: int | None = 0
    while after is not None:
        page = await document(nsqd, f"/deadletter?topic=t&limit=1000&max_body=1000&after={after}")
        bodies |= {int(one["body"]) for one in page["deadletters"]}
        after = page["next"]
    assert bodies == set(range(count))


@in_short_soak
@ENGINES
async def test_a_cancelled_message_does_not_come_again(tmp_path: Path, flags: list[str]) -> None:
    """Of deferred messages those that were cancelled never come, on a log not after kill -9; one
    that waits for hours keeps its time."""
    flags = [*flags, "--state-interval=100ms", "--max-defer-timeout=3h"]
    path = "/channel/peek?topic=t&channel=c&state=deferred&limit=100"
    async with running_nsqd(tmp_path, flags) as nsqd:
        await new_channel(nsqd)
        for number in range(20):
            assert await ask(nsqd, "pub?topic=t&defer=3000", b"%d" % number) == 200
        assert await ask(nsqd, "pub?topic=t&defer=7200000", b"1000") == 200
        with trio.fail_after(60):
            while len(found := (await document(nsqd, path))["messages"]) < 21:  # noqa: ASYNC110
                await trio.sleep(0.02)
        for one in found:
            if int(one["body"]) % 2:
                query = f"topic=t&channel=c&id={one['id']}&due={one['due']}"
                assert await ask(nsqd, f"channel/deferred/cancel?{query}") == 200
        if flags[0] == LOG[0]:
            await trio.sleep(1.0)  # ten times --state-interval
            await kill(nsqd)
    # The default engine was stopped.
    async with running_nsqd(tmp_path, flags) as nsqd:
        assert sorted(await received(nsqd, 10)) == list(range(0, 20, 2))
        [left] = (await document(nsqd, path))["messages"]
        assert left["body"] == "1000"
        # In memory due times are of a clock that does not go back.
        assert abs(left["due"] - found[-1]["due"]) < 60e9
