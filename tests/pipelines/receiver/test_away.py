"""An nsqd that is away for long, while messages of it are stored and not finished: what it delivers
again is recognized, by the same process and by the next one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pipelines.receiver import Receiver
from pipelines.wal import Block, Wal, WalLimits
from pipelines.wal.folder import FolderPlace
from tests.pipelines.receiver.drive import channel_of, config, publish, stored, until
from tests.processes import free_address, running_nsqd
from tests.soak import in_soak
from trionsq.client import Config

MESSAGES = 5000
# Far below each absence
LIMITS = WalLimits(retention_s=2)
QUICK = Config(lookupd_poll_interval_s=0.1)
OPTIONS: dict[str, Any] = {
    "msg_timeout_ms": 1000,
    "segment_messages": 200,
    "max_in_flight": 500,
    "client": QUICK,
    "connect_timeout_s": 600.0,
}


class Away:
    """A log whose nsqd is killed after the third append, before any FIN, and its clock.

    The clock is the real one and ``jumped_s``, which the test adds: that nsqd is away for an hour
    is not waited for. What counts the time is the retention alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jumped_s = 0.0
        self.kill: Callable[[], None] | None = None

    def open(self) -> Wal:
        away = self

        class KillingWal(Wal):
            appends = 0

            def append(self, blocks: Sequence[Block]) -> int:
                end = super().append(blocks)
                self.appends += 1
                if self.appends == 3 and away.kill is not None:
                    away.kill()
                    away.kill = None
                return end

        place = FolderPlace.open(self.folder, create=True, take_over=False)
        return KillingWal(place, create=True, limits=LIMITS, clock=self.clock)

    def clock(self) -> float:
        return time.monotonic() + self.jumped_s

    def start(self, address: str) -> tuple[Wal, Receiver]:
        """Open the log, and start a receiver."""
        wal = self.open()
        receiver = Receiver(config(address, **OPTIONS), wal)
        receiver.start()
        return wal, receiver

    def pass_time(self, wal: Wal, seconds: float, is_real: bool) -> None:
        """Let so long pass, while Spark commits all the time."""
        until(lambda: wal._held_since_s is not None)
        for _ in range(10):
            if is_real:
                time.sleep(seconds / 10)
            else:
                self.jumped_s += seconds / 10
            wal.commit(wal.end)


@pytest.mark.parametrize(
    ("away_s", "is_real", "is_restarted"),
    [
        # Its nsqd dies within 0.2 s of the connection, before the first look at who is connected.
        pytest.param(3600, False, False),
        pytest.param(3600, False, True, marks=in_soak),
        pytest.param(300, False, True, marks=in_soak),
        pytest.param(300, False, False, marks=in_soak),
        pytest.param(15, True, True, marks=in_soak),
        pytest.param(15, True, False, marks=in_soak),
    ],
)
async def test_what_an_nsqd_delivers_again_after_its_absence_is_recognized(
    away_s: float, is_real: bool, is_restarted: bool, tmp_path: Path
) -> None:
    """Committed long ago, past the retention: no message is stored twice, and none is missing."""
    (tmp_path / "nsqd").mkdir()
    log = Away(tmp_path / "log")
    address, http_address = free_address(), free_address()
    flags = [f"--tcp-address={address}", f"--http-address={http_address}"]
    flags += ["--storage=log", "--durability=always"]

    async with running_nsqd(tmp_path / "nsqd", flags) as nsqd:
        publish(http_address, range(MESSAGES))
        log.kill = partial(os.kill, nsqd.process.pid, signal.SIGKILL)
        wal, receiver = log.start(address)
        await trio.to_thread.run_sync(until, lambda: log.kill is None, receiver)
        await nsqd.process.wait()
    stored_before = wal.end
    assert 0 < stored_before < MESSAGES
    if is_restarted:
        await trio.to_thread.run_sync(receiver.stop)
        wal.close()
        wal, receiver = log.start(address)
    await trio.to_thread.run_sync(log.pass_time, wal, away_s, is_real)
    assert wal.first == 0, "the retention did not stand still"

    def is_empty() -> bool:
        channel = channel_of(http_address)
        return not channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]

    async with running_nsqd(tmp_path / "nsqd", flags):
        await trio.to_thread.run_sync(until, lambda: wal.end >= MESSAGES, receiver)
        await trio.to_thread.run_sync(until, is_empty, receiver)
        await trio.to_thread.run_sync(receiver.stop)
    assert receiver.statistics()["duplicates_dropped"] > 0
    assert sorted(stored(wal)) == list(range(MESSAGES))
    wal.close()
