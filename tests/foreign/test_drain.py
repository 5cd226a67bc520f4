"""A node is replaced under load; a foreign client consumes, our Producer publishes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from tests.foreign.programs import LIMIT_S, ROOT
from tests.processes import running_nsqd, running_nsqlookupd
from tests.soak import by_level, in_short_soak
from trionsq.client import Producer
from trionsq.httpget import get, post

COUNT = by_level(test=0, short=2_000, full=50_000)
TASKS = 20
# Messages in a second: the drain falls among them.
RATE = by_level(test=0, short=500, full=5_000)


@in_short_soak
@pytest.mark.parametrize("storage", ["default", "log"])
@pytest.mark.time_limit(3 * LIMIT_S)
async def test_no_message_waits_behind_a_drained_node(storage: str, tmp_path: Path) -> None:
    """Every message is accepted and consumed; the node ends with 0, and has none."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with running_nsqlookupd() as lookupd:
        flags = [
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            f"--storage={storage}",
        ]
        async with (
            running_nsqd(tmp_path / "one", flags) as one,
            running_nsqd(tmp_path / "two", flags) as two,
            Producer(one.tcp_address, two.tcp_address) as producer,
            trio.open_nursery() as nursery,
        ):
            for nsqd in (one, two):
                await post(f"http://{nsqd.http_address}/topic/create?topic=t", b"")
                await post(f"http://{nsqd.http_address}/channel/create?topic=t&channel=c", b"")
            found: list[str] = []
            is_under_way, is_drained, all_consumed = trio.Event(), trio.Event(), trio.Event()

            async def consume() -> None:
                module = "tests.foreign.pynsq_cluster_program"
                words = [lookupd.http_address, "t", "c", str(COUNT)]
                command = [sys.executable, "-m", module, *words]
                done = await trio.run_process(command, cwd=ROOT, capture_stdout=True)
                found.extend(json.loads(done.stdout))
                all_consumed.set()

            async def publish(first: int) -> None:
                for number in range(first, COUNT, TASKS):
                    await producer.publish("t", b"%d" % number)
                    await trio.sleep(TASKS / RATE)
                    if number >= COUNT // 4:
                        is_under_way.set()
                    if number >= 3 * COUNT // 4:
                        await is_drained.wait()

            with trio.fail_after(LIMIT_S):
                nursery.start_soon(consume)
                for first in range(TASKS):
                    nursery.start_soon(publish, first)
                await is_under_way.wait()
                command = [sys.executable, "-m", "trionsq.tools.nsq_drain", "--limit=60"]
                await trio.run_process([*command, f"http://{one.http_address}"])
                assert await one.process.wait() == 0
                is_drained.set()
                await all_consumed.wait()
            assert sorted(map(int, found)) == [*range(COUNT)]
            assert producer.nsqd_address == two.tcp_address
    async with running_nsqd(tmp_path / "one") as again:
        url = f"http://{again.http_address}/stats?format=json"
        answer = await get(url, request_timeout_s=LIMIT_S)
        [topic] = json.loads(answer.body)["topics"]
        [channel] = topic["channels"]
        assert topic["depth"] == channel["depth"] == channel["deferred_count"] == 0
