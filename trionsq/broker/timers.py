"""What happens by time: the queue scan, one coarse look at all clients, and the disk's part."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol, TypeVar

import trio

from trionsq.broker.clock import Clock
from trionsq.broker.defects import Defects
from trionsq.broker.heartbeats import CHECK_INTERVAL_S, TimingWheel
from trionsq.broker.options import NsqdOptions
from trionsq.core.channel import MAX_SCAN, ChannelState
from trionsq.core.containers import NEVER, TimerQueue
from trionsq.storage.folder import DataFolder

__all__ = [
    "ScanQueue",
    "run_disk_retries",
    "run_disk_syncs",
    "run_heartbeats",
    "run_queue_scan",
]

_Looked = TypeVar("_Looked", bound="Looked")

# The original's period, there not an option either.
_SCAN_INTERVAL_S: Final = 0.1
# A channel whose scan failed is scanned again after this time.
_SCAN_RETRY_S: Final = 1.0
# Clients that are looked at before other tasks get their turn. If a heartbeat is due for each, that
# is about a millisecond, nearly all of it system calls.
_LOOKS_MAX: Final = 64
# A disk queue that failed is tried again that often.
_DISK_RETRY_S: Final = 1.0


class ScanQueue:
    """Which channel wants to be scanned when. Idle channels cost nothing."""

    def __init__(self) -> None:
        self._alarms: TimerQueue[ChannelState] = TimerQueue()

    def __len__(self) -> int:
        """Channels that want to be scanned: each is there once."""
        return len(self._alarms)

    def set(self, channel: ChannelState, at_s: float) -> None:
        """Scan ``channel`` at the monotonic time ``at_s``, and not before; `NEVER` is never."""
        if at_s == NEVER:
            self._alarms.discard(channel)
        else:
            self._alarms.set(channel, at_s)

    def pop_due(self, now_s: float) -> ChannelState | None:
        """Take the next channel if its time has come, else None."""
        return self._alarms.pop_due(now_s)


async def run_queue_scan(
    queue: ScanQueue, clock: Clock, options: NsqdOptions, defects: Defects
) -> None:
    """Scan the channels that are due, for ever.

    Other tasks get their turn after --queue-scan-selection-count channels, or as many as have
    `MAX_SCAN` messages to be looked at. A channel that has more waits for its next turn. A channel
    whose scan fails is scanned again a second later.
    """
    selection = max(1, options.queue_scan_selection_count)
    while True:
        await trio.sleep(_SCAN_INTERVAL_S)
        while True:
            now_s, now_ns = clock.now_s(), clock.now_ns()
            channels = looks = 0
            while channels < selection and looks < MAX_SCAN:
                channel = queue.pop_due(now_s)
                if channel is None:
                    break
                try:
                    looks += channel.scan(now_s, now_ns)
                except Exception as error:
                    defects.note("scan", f"CHANNEL({channel.name}): scan", error)
                    channel.wake_at_s = now_s + _SCAN_RETRY_S
                    queue.set(channel, channel.wake_at_s)
                channels += 1
            if not channels:
                break
            await trio.lowlevel.checkpoint()


class Looked(Hashable, Protocol):
    """A client connection, as `run_heartbeats` sees it."""

    peer: str

    def check_heartbeat(self, now_s: float) -> None: ...
    def close(self) -> None: ...


async def run_heartbeats(looks: TimingWheel[_Looked], clock: Clock, defects: Defects) -> None:
    """Look after heartbeats and stalled connections, for ever.

    A client whose look fails is closed: nobody would look after it any more.
    """
    while True:
        now_s = clock.now_s()
        while clients := looks.pop_due(now_s, _LOOKS_MAX):
            for client in clients:
                try:
                    client.check_heartbeat(now_s)
                except Exception as error:
                    defects.note("heartbeat", f"client({client.peer}): heartbeat", error)
                    client.close()
            await trio.lowlevel.checkpoint()
            now_s = clock.now_s()
        # Whatever is scheduled meanwhile is due in CHECK_INTERVAL_S at the earliest.
        await trio.sleep_until(min(looks.next_s, now_s + CHECK_INTERVAL_S))


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
        for _ in folder.retry_in_steps():
            await trio.lowlevel.checkpoint()
