"""A killed receiver and a restarted nsqd, in mid-stream: 0 messages lost, 0 duplicated."""

import signal
import subprocess
import sys
from pathlib import Path

import trio

from pipelines.wal import Wal, WalLimits
from tests.pipelines.receiver.drive import (
    LIMIT_S,
    channel_of,
    publish,
    reach,
    running,
    stored,
    stored_at,
    until,
)
from tests.processes import free_address, running_nsqd
from trionsq.client import Config

MESSAGES = 60_000
KILLS = 3
# What was in flight when the receiver died comes again after the time-out.
MSG_TIMEOUT_MS = 1000
# Connections that were lost are tried again at once.
QUICK = Config(lookupd_poll_interval_s=0.1)

PROGRAM = """
import os, signal, sys, time
from pipelines.wal import Wal
from tests.pipelines.receiver.drive import running

class DyingWal(Wal):
    appends = 0
    def append(self, blocks):
        end = super().append(blocks)
        self.appends += 1
        if self.appends == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        return end

with DyingWal.open(sys.argv[1]) as wal:
    with running(wal, sys.argv[2], msg_timeout_ms=int(sys.argv[3]), max_in_flight=2000) as receiver:
        while True:
            receiver.check()
            time.sleep(0.01)
"""


def receive_until_killed(log: Path, address: str, appends: int) -> None:
    """A process that receives, and is killed when a segment is durable and not yet finished."""
    command = [sys.executable, "-c", PROGRAM, str(log), address, str(MSG_TIMEOUT_MS), str(appends)]
    assert subprocess.run(command, timeout=LIMIT_S).returncode == -signal.SIGKILL


async def test_a_receiver_killed_three_times_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL in mid-stream, when messages are stored and not finished; nsqd is kept: each message
    is once in the log, and those that came again were recognized."""
    log = tmp_path / "log"

    def drill(http_address: str, tcp_address: str) -> None:
        for kill in range(KILLS):
            publish(http_address, range(kill * MESSAGES // KILLS, (kill + 1) * MESSAGES // KILLS))
            receive_until_killed(log, tcp_address, appends=3 + kill)
            found = stored_at(log)
            assert 0 < len(found) < (kill + 1) * MESSAGES // KILLS, "not in mid-stream"
            assert len(found) == len(set(found)), f"kill {kill}"
        with Wal.open(log) as wal:
            with running(wal, tcp_address, msg_timeout_ms=MSG_TIMEOUT_MS) as receiver:
                until(lambda: wal.end >= MESSAGES, receiver)
                until(lambda: channel_of(http_address)["in_flight_count"] == 0, receiver)
                assert receiver.statistics()["duplicates_dropped"] > 0
            assert channel_of(http_address)["depth"] == 0
            found = stored(wal)
        assert len(found) == MESSAGES
        assert set(found) == set(range(MESSAGES))

    async with running_nsqd(tmp_path, ["--mem-queue-size=1000000"]) as nsqd:
        await trio.to_thread.run_sync(drill, nsqd.http_address, nsqd.tcp_address)


async def test_an_nsqd_restarted_in_mid_stream_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Messages that a restarted nsqd delivers again are recognized."""
    (tmp_path / "nsqd").mkdir()
    flags = [f"--tcp-address={free_address()}", f"--http-address={free_address()}"]
    count = 30_000
    with Wal.open(tmp_path / "log", limits=WalLimits()) as wal:
        address = flags[0].partition("=")[2]
        with running(wal, address, max_in_flight=500, client=QUICK) as receiver:
            for start in range(KILLS):
                async with running_nsqd(tmp_path / "nsqd", flags) as nsqd:
                    numbers = range(start * count // KILLS, (start + 1) * count // KILLS)
                    publish(nsqd.http_address, numbers)
                    await trio.to_thread.run_sync(reach, receiver, wal.end + 2000)
            async with running_nsqd(tmp_path / "nsqd", flags) as nsqd:
                await trio.to_thread.run_sync(reach, receiver, count)
                await trio.to_thread.run_sync(
                    until, lambda: not channel_of(nsqd.http_address)["in_flight_count"], receiver
                )
                assert channel_of(nsqd.http_address)["depth"] == 0
                await trio.to_thread.run_sync(receiver.stop)
        assert sorted(stored(wal)) == list(range(count))
