"""A foreign client reads a log again, which it knows nothing of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from tests.foreign.programs import LIMIT_S, ROOT
from tests.processes import NsqdProcess, running_nsqd
from tests.soak import in_short_soak
from trionsq.httpget import post

COUNT = 300


@in_short_soak
async def test_each_message_of_the_range_comes_once_more_with_its_id(tmp_path: Path) -> None:
    """To the same channel after a seek, and to a new one; as if it were delivered first."""
    flags = ["--storage=log", "--retain-bytes=1000000"]
    async with running_nsqd(tmp_path, flags) as nsqd:
        await ask(nsqd, "/topic/create?topic=t")
        bodies = b"\n".join(b"%d" % number for number in range(COUNT))
        await ask(nsqd, "/mpub?topic=t", bodies)
        first = await consumed(nsqd, "c", COUNT)
        assert [int(body) for _, body, _ in first] == [*range(COUNT)]
        await ask(nsqd, "/channel/seek?topic=t&channel=c&to=100")
        assert await consumed(nsqd, "c", COUNT - 100) == first[100:]
        await ask(nsqd, "/channel/create?topic=t&channel=d&from=beginning")
        assert await consumed(nsqd, "d", COUNT) == first


async def ask(nsqd: NsqdProcess, path: str, body: bytes = b"") -> None:
    url = f"http://{nsqd.http_address}{path}"
    assert (await post(url, body, request_timeout_s=60.0)).status == 200


async def consumed(nsqd: NsqdProcess, channel: str, count: int) -> list[tuple[str, str, int]]:
    """Id, body and attempts of all messages that a channel gets, in the order of their ids."""
    module = "tests.foreign.pynsq_replay_program"
    command = [sys.executable, "-m", module, nsqd.tcp_address, "t", channel, str(count)]
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(command, cwd=ROOT, capture_stdout=True)
    return sorted((id_, body, attempts) for id_, body, attempts in json.loads(done.stdout))
