"""What happens by time: the queue scan, one coarse look at all clients, and the disk's part."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

import trio

from trionsq.broker.clock import Clock
from trionsq.broker.options import NsqdOptions
from trionsq.core.channel import Channel
from trionsq.storage.folder import DataFolder

if TYPE_CHECKING:
    from trionsq.broker.client import Client

__all__ = [
    "ScanQueue",
    "run_disk_retries",
    "run_disk_syncs",
    "run_heartbeats",
    "run_queue_scan",
]

# The original's period, there not an option either.
_SCAN_INTERVAL_S: Final = 0.1
# Heartbeats come every second at most (the least interval that IDENTIFY takes).
_HEARTBEAT_LOOK_S: Final = 0.25
# A disk queue that failed is tried again that often.
_DISK_RETRY_S: Final = 1.0


class ScanQueue:
    """Which channel wants to be scanned when. Idle channels cost nothing."""

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, Channel]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._alarms)

    def add(self, at_s: float, channel: Channel) -> None:
        """Scan ``channel`` at the monotonic time ``at_s``."""
        heappush(self._alarms, (at_s, next(self._order), channel))

    def due(self, now_s: float, count_max: int) -> list[Channel]:
        """Take up to ``count_max`` channels whose time has come."""
        channels: list[Channel] = []
        alarms = self._alarms
        while alarms and alarms[0][0] <= now_s and len(channels) < count_max:
            at_s, _, channel = heappop(alarms)
            # An earlier alarm takes the place of a later one, which then rings in vain.
            if at_s == channel.alarm_s:
                channels.append(channel)
        return channels


async def run_queue_scan(queue: ScanQueue, clock: Clock, options: NsqdOptions) -> None:
    """Scan the channels that are due, for ever.

    --queue-scan-selection-count channels at a time; then other tasks get their turn.
    """
    selection = max(1, options.queue_scan_selection_count)
    while True:
        await trio.sleep(_SCAN_INTERVAL_S)
        while channels := queue.due(clock.now_s(), selection):
            now_s, now_ns = clock.now_s(), clock.now_ns()
            for channel in channels:
                channel.scan(now_s, now_ns)
            await trio.lowlevel.checkpoint()


async def run_heartbeats(clients: Mapping[Client, None], clock: Clock) -> None:
    """Look after heartbeats and stalled connections, for ever."""
    while True:
        await trio.sleep(_HEARTBEAT_LOOK_S)
        now_s = clock.now_s()
        for client in [client for client in clients if client.heartbeats.next_look_s <= now_s]:
            client.look_after(now_s)


async def run_disk_syncs(folder: DataFolder, timeout_s: float) -> None:
    """Make durable what was written or read, every --sync-timeout, for ever."""
    while True:
        await trio.sleep(timeout_s)
        for _ in folder.sync_in_steps():
            await trio.lowlevel.checkpoint()


async def run_disk_retries(folder: DataFolder) -> None:
    """Let disk queues that failed see whether they can go on, for ever."""
    while True:
        await trio.sleep(_DISK_RETRY_S)
        for _ in folder.try_again_in_steps():
            await trio.lowlevel.checkpoint()
