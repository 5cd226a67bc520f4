"""What happens by time: the queue scan, one coarse look at all clients, and the disk's part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from trionsq.broker.clock import Clock
from trionsq.broker.options import NsqdOptions
from trionsq.core.channel import SCAN_MAX, Channel
from trionsq.core.timerqueue import NEVER, TimerQueue
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
        self._alarms: TimerQueue[Channel] = TimerQueue()

    def __len__(self) -> int:
        """Channels that want to be scanned: each is there once."""
        return len(self._alarms)

    def set(self, channel: Channel, at_s: float) -> None:
        """Scan ``channel`` at the monotonic time ``at_s``, and not before; `NEVER` is never."""
        if at_s == NEVER:
            self._alarms.discard(channel)
        else:
            self._alarms.set(channel, at_s)

    def pop_due(self, now_s: float) -> Channel | None:
        """Take the next channel if its time has come, else None."""
        return self._alarms.pop_due(now_s)


async def run_queue_scan(queue: ScanQueue, clock: Clock, options: NsqdOptions) -> None:
    """Scan the channels that are due, for ever.

    Other tasks get their turn after --queue-scan-selection-count channels, or as many as have
    `SCAN_MAX` messages to be looked at. A channel that has more waits for its next turn.
    """
    selection = max(1, options.queue_scan_selection_count)
    while True:
        await trio.sleep(_SCAN_INTERVAL_S)
        while True:
            now_s, now_ns = clock.now_s(), clock.now_ns()
            channels = looks = 0
            while channels < selection and looks < SCAN_MAX:
                channel = queue.pop_due(now_s)
                if channel is None:
                    break
                looks += channel.scan(now_s, now_ns)
                channels += 1
            if not channels:
                break
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
        folder.sync_all()


async def run_disk_retries(folder: DataFolder) -> None:
    """Let disk queues that failed see whether they can go on, for ever."""
    while True:
        await trio.sleep(_DISK_RETRY_S)
        folder.try_again()
