"""Running the client programs as processes, and what nsqd shows of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tests.golden.sockets import ProcessUnderTest
from tests.golden.transcripts import Request
from tests.processes import NsqdProcess

__all__ = ["channel_stats", "complete", "run_program"]

LIMIT_S = 300.0
ROOT = Path(__file__).parent.parent.parent


async def run_program(
    client: str, nsqd: NsqdProcess, count: int, folder: Path, options: Sequence[str] = ()
) -> tuple[int, str, str, dict[str, Any]]:
    """Run the client's program to its end, within LIMIT_S; the topic has the client's name.

    Returns its exit code, stdout, stderr, and what /stats showed of its reader before it was let
    publish; empty if it ended before.
    """
    module = f"tests.foreign.{client}_program"
    command = [sys.executable, "-m", module, nsqd.tcp_address, client, str(count), *options]
    out, err = folder / f"{client}.stdout", folder / f"{client}.stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr
        )
        try:
            with trio.move_on_after(LIMIT_S) as limit:
                shown = await _reader(process, nsqd, client)
                assert process.stdin is not None
                if shown:
                    await process.stdin.send_all(b"\n")
                await process.wait()
            assert not limit.cancelled_caught, f"not done in {LIMIT_S} s\n{nsqd.log_tail()}"
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
    assert process.returncode is not None
    return process.returncode, out.read_text(), err.read_text(), shown


def complete(count: int) -> dict[str, int]:
    """The account of a program that lost nothing."""
    return {"published": count, "received": count, "missing": 0, "strange": 0, "again": 0}


async def channel_stats(nsqd: NsqdProcess, client: str) -> dict[str, Any]:
    """The statistics of the client's one channel; empty if there is none yet."""
    path = f"/stats?format=json&include_mem=false&topic={client}"
    request = Request("GET", path, {}, b"")
    answer = await ProcessUnderTest(nsqd, {}).http(request)
    topics = json.loads(answer.body)["topics"] or ()
    channels = [found for topic in topics for found in topic["channels"]]
    assert len(channels) <= 1
    return dict(channels[0]) if channels else {}


async def _reader(process: trio.Process, nsqd: NsqdProcess, client: str) -> dict[str, Any]:
    """The reader's entry, once it is there."""
    while process.poll() is None:
        for reader in (await channel_stats(nsqd, client)).get("clients", ()):
            if reader["ready_count"]:
                return dict(reader)
        await trio.sleep(0.02)
    return {}
