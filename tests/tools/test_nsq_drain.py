"""nsq-drain against real nsqds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import trio

from tests.processes import NsqdProcess, free_address, running_nsqd
from trionsq.httpget import post
from trionsq.tools.nsq_drain import message_counts


async def drain(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "trionsq.tools.nsq_drain", *words]
    return await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)


async def ask(nsqd: NsqdProcess, target: str, body: bytes = b"") -> int:
    """The status of a POST."""
    url = f"http://{nsqd.http_address}{target}"
    return (await post(url, body, request_timeout_s=60.0)).status


async def test_at_the_limit_it_names_what_is_left(tmp_path: Path) -> None:
    """And exits with 1; with --stay nsqd serves on, refuses publishes, and --cancel ends that."""
    async with running_nsqd(tmp_path) as nsqd:
        url = f"http://{nsqd.http_address}"
        await ask(nsqd, "/topic/create?topic=t")
        await ask(nsqd, "/channel/create?topic=t&channel=c")
        await ask(nsqd, "/pub?topic=t", b"one")
        await ask(nsqd, "/pub?topic=t&defer=600000", b"two")
        done = await drain("--limit=1.5", "--stay", url)
        assert (done.returncode, done.stderr) == (1, b"t/c: 1 waiting, 1 deferred\n")
        assert await ask(nsqd, "/pub?topic=t", b"three") == 503
        cancelled = await drain("--cancel", url)
        assert (cancelled.returncode, cancelled.stderr) == (0, b"")
        assert await ask(nsqd, "/pub?topic=t", b"three") == 200
        watched = await drain("--watch", "--limit=0.1", url)
        assert (watched.returncode, watched.stderr) == (1, b"t/c: 2 waiting, 1 deferred\n")
        await ask(nsqd, "/channel/empty?topic=t&channel=c")
        assert (await drain("--watch", url)).returncode == 0
        assert (await drain(url)).returncode == 0
        assert await nsqd.process.wait() == 0


async def test_a_node_that_does_not_answer_is_not_drained() -> None:
    """Exit code 1, and a line."""
    done = await drain(f"http://{free_address()}")
    assert done.returncode == 1
    assert done.stderr


def test_it_knows_what_is_in_flight() -> None:
    """A message in flight counts as remaining; an nsqd without topics has none."""
    channel = {"channel_name": "c", "depth": 0, "in_flight_count": 2, "deferred_count": 0}
    stats = {"topics": [{"topic_name": "t", "depth": 3, "channels": [channel]}]}
    assert message_counts(stats) == ["t: 3 messages", "t/c: 2 in flight"]
    assert message_counts({"topics": None}) == []
