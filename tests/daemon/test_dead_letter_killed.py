"""nsqd is killed while messages become dead letters, and while these go back. Real processes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from tests.processes import NsqdProcess, running_nsqd
from tests.soak import by_level, in_short_soak, more_in_soak
from trionsq.httpget import GetError, get, post

COUNT = 400
STORAGES = by_level(test=["log"], short=["default", "log"], full=["default", "log"])
LOG = ["--storage=log", "--durability=always", "--state-interval=200ms"]
POLICY = '[poison]\ntopics = "t"\nmax_attempts = 2\n'


async def ask(nsqd: NsqdProcess, path: str, body: bytes = b"") -> Any:
    url = f"http://{nsqd.http_address}{path}"
    response = await post(url, body, request_timeout_s=60.0)
    assert response.status == 200, (path, response.body)
    return json.loads(response.body) if response.body.startswith(b"{") else None


async def letters(nsqd: NsqdProcess) -> Counter[str]:
    """The bodies of all dead letters."""
    found: Counter[str] = Counter()
    after: int | None = 0
    while after is not None:
        url = f"http://{nsqd.http_address}/deadletter?limit=1000&after={after}"
        page = json.loads((await get(url, request_timeout_s=60.0)).body)
        found.update(one["body"] for one in page["deadletters"])
        after = page["next"]
    return found


async def letter_count(nsqd: NsqdProcess) -> int:
    url = f"http://{nsqd.http_address}/deadletter?limit=1"
    return int(json.loads((await get(url, request_timeout_s=60.0)).body)["count"])


@asynccontextmanager
async def subscribed(nsqd: NsqdProcess, channel: str) -> AsyncIterator[trio.SocketStream]:
    host, _, port = nsqd.tcp_address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        await stream.send_all(b"  V2SUB t %b\nRDY 100\n" % channel.encode())
        yield stream


async def messages(stream: trio.SocketStream) -> AsyncGenerator[tuple[bytes, str], None]:
    """Id and body of each message, until the connection breaks."""
    data = b""
    while piece := await stream.receive_some(65536):
        data += piece
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4])):
            if data[4:8] == b"\0\0\0\2":
                yield data[18:34], data[34:end].decode()
            data = data[end:]


async def requeue_all(nsqd: NsqdProcess, channel: str) -> None:
    """Give back all messages at once, until nsqd is gone."""
    with suppress(trio.BrokenResourceError, OSError):
        async with subscribed(nsqd, channel) as stream, aclosing(messages(stream)) as incoming:
            async for id_, _ in incoming:
                await stream.send_all(b"REQ %b 0\n" % id_)


async def drained(nsqd: NsqdProcess, channel: str, quiet_s: float = 1.5) -> Counter[str]:
    """What a channel has, finished; it has no more when nothing comes for a while."""
    found: Counter[str] = Counter()
    async with subscribed(nsqd, channel) as stream, aclosing(messages(stream)) as incoming:
        while True:
            with trio.move_on_after(quiet_s) as scope:
                id_, body = await anext(incoming)
                found[body] += 1
                await stream.send_all(b"FIN %b\n" % id_)
            if scope.cancelled_caught:
                return found


async def begin(nsqd: NsqdProcess) -> None:
    await ask(nsqd, "/topic/create?topic=t")
    for channel in ("c", "other"):
        await ask(nsqd, f"/channel/create?topic=t&channel={channel}")


async def publish_all(nsqd: NsqdProcess) -> None:
    bodies = b"\n".join(b"%06d" % number for number in range(COUNT))
    await ask(nsqd, "/mpub?topic=t", bodies)


def flags(path: Path, *more: str) -> list[str]:
    policies = path / "policies.toml"
    policies.write_text(POLICY)
    return [f"--policy-file={policies}", *more]


ALL = {f"{number:06}" for number in range(COUNT)}


@more_in_soak
async def test_no_message_is_lost_while_they_die(tmp_path: Path) -> None:
    """Each is in its channel, or a letter; both at most for what one --state-interval had."""
    random = Random(11)
    cut_short = 0
    for attempt in range(by_level(test=1, short=4, full=40)):
        path = tmp_path / str(attempt)
        path.mkdir()
        async with running_nsqd(path, flags(tmp_path, *LOG)) as nsqd:
            await begin(nsqd)
            await publish_all(nsqd)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requeue_all, nsqd, "c")
                least = random.choice((0, 1, COUNT // 2))
                while (await letter_count(nsqd)) < least:
                    pass
                os.kill(nsqd.process.pid, 9)
                await nsqd.process.wait()
        async with running_nsqd(path, LOG) as nsqd:
            dead = await letters(nsqd)
            cut_short += 0 < len(dead) < COUNT
            left = await drained(nsqd, "c")
            assert dead.keys() | left.keys() == ALL
            assert set(dead.values()) <= {1}, "a message has one letter"
            assert set(left.values()) <= {1}
            assert await drained(nsqd, "other") == Counter(ALL)
    if by_level(test=0, short=1, full=1):
        assert cut_short


@in_short_soak
async def test_no_letter_is_lost_while_they_go_back(tmp_path: Path) -> None:
    """Each is a letter, or in its channel; both for one batch at most, and in no other channel."""
    random = Random(12)
    for attempt in range(by_level(test=0, short=2, full=40)):
        path = tmp_path / str(attempt)
        path.mkdir()
        async with running_nsqd(path, flags(tmp_path, *LOG)) as nsqd:
            await begin(nsqd)
            await publish_all(nsqd)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requeue_all, nsqd, "c")
                while len(await letters(nsqd)) < COUNT:  # noqa: ASYNC110 - another process
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            assert await drained(nsqd, "other") == Counter(ALL)
            await trio.sleep(0.5)  # two snapshots: what is finished does not come again
            async with trio.open_nursery() as nursery:
                with suppress(GetError):
                    await ask(nsqd, "/deadletter/replay?topic=t&channel=c&rate=1000")
                await trio.sleep(random.uniform(0.0, 0.4))
                os.kill(nsqd.process.pid, 9)
                await nsqd.process.wait()
        async with running_nsqd(path, LOG) as nsqd:
            # What was asked for goes on.
            while await letters(nsqd):  # noqa: ASYNC110 - another process
                await trio.sleep(0.05)
            back = await drained(nsqd, "c")
            assert back.keys() == ALL
            twice = [body for body, count in back.items() if count > 1]
            assert len(twice) <= 100
            assert set(back.values()) <= {1, 2}
            assert not await drained(nsqd, "other")


@more_in_soak
@pytest.mark.parametrize("storage", STORAGES)
async def test_a_proper_stop_keeps_the_account(tmp_path: Path, storage: str) -> None:
    """Whenever it comes: each message is in its channel once, or is a letter once; then all die,
    and all come back."""
    options = flags(tmp_path, f"--storage={storage}")
    async with running_nsqd(tmp_path, options) as nsqd:
        await begin(nsqd)
        await publish_all(nsqd)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(requeue_all, nsqd, "c")
            await trio.sleep(0.05)
            nsqd.process.terminate()
            await nsqd.process.wait()
    async with running_nsqd(tmp_path, options) as nsqd:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(requeue_all, nsqd, "c")
            with trio.fail_after(60):
                while len(await letters(nsqd)) < COUNT:  # noqa: ASYNC110 - another process
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        assert await letters(nsqd) == Counter(ALL)
        await ask(nsqd, "/deadletter/replay?topic=t&channel=c&rate=10000")
        assert await drained(nsqd, "c") == Counter(ALL)
        assert not await letters(nsqd)
