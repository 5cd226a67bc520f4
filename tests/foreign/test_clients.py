"""Existing Python clients, unmodified, against a real nsqd process.

TRIONSQ_TEST_NSQD=/path/to/nsqd runs them against that one instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from tests.golden.sockets import ProcessUnderTest
from tests.golden.transcripts import Request
from tests.processes import NsqdProcess, running_nsqd

MESSAGES = 100_000
LIMIT_S = 90.0
ROOM_FOR_ALL = f"--mem-queue-size={MESSAGES}"
"""A publisher may be far ahead of its reader: no message is to wait for, or need, a disk."""
HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.parametrize("client", ["pynsq", "gnsq", "ansq", "asyncnsq"])
async def test_every_message_is_accounted_for(client: str, tmp_path: Path) -> None:
    """A client publishes 100,000 messages by PUB and MPUB and consumes each exactly once;
    afterwards the broker holds none of them, in flight or waiting."""
    async with running_nsqd(tmp_path, [ROOM_FOR_ALL]) as nsqd:
        account = await run_program(client, nsqd)
        channel = await only_channel_stats(nsqd)
    assert account == {
        "published": MESSAGES,
        "received": MESSAGES,
        "missing": 0,
        "strange": 0,
        "again": 0,
    }
    kept = ("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count")
    assert {name: channel[name] for name in kept} == dict.fromkeys(kept, 0)
    assert channel["message_count"] == MESSAGES


async def run_program(client: str, nsqd: NsqdProcess) -> dict[str, int]:
    """Run the client's program to its end within LIMIT_S and return its account."""
    module = f"tests.foreign.{client}_program"
    command = [sys.executable, "-m", module, nsqd.tcp_address, "foreign", str(MESSAGES)]
    with trio.move_on_after(LIMIT_S) as limit:
        done = await trio.run_process(
            command, cwd=ROOT, check=False, capture_stdout=True, capture_stderr=True
        )
    assert not limit.cancelled_caught, f"not done in {LIMIT_S} s\n{nsqd.log_tail()}"
    complaints = done.stderr.decode(errors="replace")
    assert done.returncode == 0, f"{complaints[-4000:]}\n{nsqd.log_tail()}"
    account: dict[str, int] = json.loads(done.stdout)
    return account


async def only_channel_stats(nsqd: NsqdProcess) -> dict[str, int]:
    """The statistics of the one channel there is."""
    request = Request("GET", "/stats?format=json&include_mem=false", {}, b"")
    answer = await ProcessUnderTest(nsqd, {}).http(request)
    (topic,) = json.loads(answer.body)["topics"]
    (channel,) = topic["channels"]
    assert isinstance(channel, dict)
    return channel
