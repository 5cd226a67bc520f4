"""Foreign clients read a log again, which they know nothing of. Real processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.foreign.programs import LIMIT_S, ROOT
from tests.foreign.reading_program import LAST, READING
from tests.later import later_command
from tests.processes import NsqdProcess, running_nsqd
from tests.soak import by_level, in_short_soak
from trionsq.httpget import get, post

DAY = timedelta(days=1)
COUNT = by_level(test=300, short=300, full=5_000)
LIVE = by_level(test=2_000, short=10_000, full=50_000)
BATCH = 20
# An answer E_FIN_FAILED ends what they read, for good or until more comes, and a seek makes those
# of what is in flight fail.
STOP_AT_ERRORS = {"ansq", "asyncnsq"}
FLAGS = ["--storage=log", "--durability=always", "--retain=48h"]

Receipt = tuple[str, str, int]


@in_short_soak
@pytest.mark.parametrize("client", READING)
async def test_a_channel_that_is_made_a_day_later(client: str, tmp_path: Path) -> None:
    """From the beginning, it gets each message of the day before once more, with its id, as if it
    were delivered first; from a time, those since then. nsqd is killed overnight."""
    async with running_nsqd(tmp_path, FLAGS) as nsqd:
        await ask(nsqd, "/topic/create?topic=orders")
        await publish(nsqd, range(COUNT))
        first = await consumed(client, nsqd, "old")
        assert [body for _, body, _ in first] == [*map(str, range(COUNT)), LAST]
        os.kill(nsqd.process.pid, 9)
        await nsqd.process.wait()
    noon = datetime.now(UTC) + DAY / 2
    async with running_nsqd(tmp_path, FLAGS, command=later_command(DAY)) as nsqd:
        place = await ask(nsqd, "/channel/create?topic=orders&channel=yesterday&from=beginning")
        assert place["sequence"] == 0
        assert datetime.fromisoformat(place["time"]) < noon
        assert await consumed(client, nsqd, "yesterday") == first
        await publish(nsqd, range(COUNT, 2 * COUNT))
        since_noon = noon.isoformat().replace("+00:00", "Z")
        place = await ask(nsqd, f"/channel/create?topic=orders&channel=today&from={since_noon}")
        assert place["sequence"] == COUNT + 1
        assert datetime.fromisoformat(place["time"]) > noon
        second = await consumed(client, nsqd, "today")
        assert [body for _, body, _ in second] == [*map(str, range(COUNT, 2 * COUNT)), LAST]
        assert min(second) > max(first)  # ids
        # The old one may have some of the first day again, for the kill; it skips them.
        await ask(nsqd, f"/channel/seek?topic=orders&channel=old&to={since_noon}")
        assert await consumed(client, nsqd, "old") == second


@in_short_soak
@pytest.mark.parametrize("client", READING)
async def test_a_seek_while_messages_are_published_and_consumed(
    client: str, tmp_path: Path
) -> None:
    """Each message from there on comes once more, in order, with its id; the client stays
    connected. The channel of one that stops at errors is paused first."""
    position = LIVE // 4
    async with running_nsqd(tmp_path, FLAGS) as nsqd, trio.open_nursery() as nursery:
        for path in ("/topic/create?topic=orders", "/channel/create?topic=orders&channel=old"):
            await ask(nsqd, path)
        receipts: list[Receipt] = []

        async def consume() -> None:
            receipts.extend(await consumed(client, nsqd, "old"))

        nursery.start_soon(consume)
        sought = trio.Event()

        async def seek() -> None:
            while (await channel(nsqd))["message_count"] < LIVE // 2:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
            if client in STOP_AT_ERRORS:
                await ask(nsqd, "/channel/pause?topic=orders&channel=old")
                while (await channel(nsqd))["in_flight_count"]:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)
            await ask(nsqd, f"/channel/seek?topic=orders&channel=old&to={position}")
            await ask(nsqd, "/channel/unpause?topic=orders&channel=old")
            sought.set()

        nursery.start_soon(seek)
        await publish(nsqd, range(LIVE), last=False)
        await sought.wait()
        await publish(nsqd, ())
    found = [body for _, body, _ in receipts]
    behind = [*map(str, range(LIVE)), LAST]
    again = len(found) - len(behind)
    assert position + again > 0
    assert found == [*behind[: position + again], *behind[position:]]
    assert len({(id_, body, attempts) for id_, body, attempts in receipts}) == len(behind)
    assert {attempts for _, _, attempts in receipts} == {1}


async def ask(nsqd: NsqdProcess, path: str, body: bytes = b"") -> Any:
    """The answer to a POST, which is 200."""
    answer = await post(
        f"http://{nsqd.http_address}{path}", body, connect_timeout_s=60.0, request_timeout_s=60.0
    )
    assert answer.status == 200, answer
    return json.loads(answer.body) if answer.body.startswith(b"{") else None


async def publish(nsqd: NsqdProcess, numbers: Iterable[int], *, last: bool = True) -> None:
    """Publish numbers, some at a time, and behind them what ends a client."""
    bodies = [*map(str, numbers), *([LAST] if last else ())]
    for first in range(0, len(bodies), BATCH):
        await ask(nsqd, "/mpub?topic=orders", "\n".join(bodies[first : first + BATCH]).encode())


async def channel(nsqd: NsqdProcess) -> dict[str, Any]:
    """The statistics of the channel."""
    url = f"http://{nsqd.http_address}/stats?format=json&topic=orders&channel=old"
    [topic] = json.loads((await get(url, connect_timeout_s=60.0, request_timeout_s=60.0)).body)[
        "topics"
    ]
    return dict(topic["channels"][0])


async def consumed(client: str, nsqd: NsqdProcess, channel: str) -> list[Receipt]:
    """Id, body and attempts of what a channel gets, in that order, up to the last."""
    module = "tests.foreign.reading_program"
    command = [sys.executable, "-m", module, client, nsqd.tcp_address, "orders", channel]
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(command, cwd=ROOT, capture_stdout=True, stderr=2)
    return [(id_, body, attempts) for id_, body, attempts in json.loads(done.stdout)]
