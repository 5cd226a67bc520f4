"""Work by time: the queue scan, heartbeats, syncs and retries of disk queues, keys that expire."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol, TypeVar

import trio

from trionsq.broker.defects import Defects
from trionsq.broker.heartbeats import CHECK_INTERVAL_S, TimingWheel
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import Clock
from trionsq.core.channel import MAX_SCAN, ChannelState
from trionsq.core.containers import NEVER, TimerQueue
from trionsq.core.keys import KeyWindow
from trionsq.storage.folder import DataFolder

__all__ = [
    "ScanQueue",
    "run_disk_retries",
    "run_disk_syncs",
    "run_heartbeats",
    "run_key_window",
    "run_queue_scan",
]

_Looked = TypeVar("_Looked", bound="Looked")

# The original's period, there not an option either; a read that has ended is not made to wait.
_SCAN_INTERVAL_S: Final = 0.1
# A channel whose scan failed is scanned again after this time.
_SCAN_RETRY_S: Final = 1.0
# Smaller jumps of the wall clock make no deferred message late that was not.
_JUMP_NS: Final = 100_000_000
# Clients looked at before other tasks get their turn. If a heartbeat is due for each, that takes
# about a millisecond, nearly all of it in system calls.
_MAX_LOOKS: Final = 64
# Time between two tries of a disk queue that failed.
_DISK_RETRY_S: Final = 1.0
# Keys of idempotent publishes may stay in memory for so much longer than they count.
_KEYS_S: Final = 1.0


class ScanQueue:
    """When to scan which channel. Idle channels are not in it."""

    def __init__(self) -> None:
        self._times: TimerQueue[ChannelState] = TimerQueue()
        self._asked = trio.Event()

    def __len__(self) -> int:
        """Channels to be scanned; each is in the queue once."""
        return len(self._times)

    def set_time(self, channel: ChannelState, at_s: float) -> None:
        """Scan ``channel`` at the monotonic time ``at_s``, and not before.

        `NEVER` is never. 0.0 is at once: something has come that messages waited for.
        """
        if at_s == NEVER:
            self._times.discard(channel)
        else:
            self._times.set(channel, at_s)
            if not at_s:
                self._asked.set()

    async def wait(self, longest_s: float) -> None:
        """Wait so long, or until a channel is to be scanned at once."""
        with trio.move_on_after(longest_s):
            await self._asked.wait()
        if self._asked.is_set():
            self._asked = trio.Event()

    def hurry(self, now_s: float) -> None:
        """Scan all channels in the queue now: the time of deferred messages has jumped."""
        self._times.set_all(now_s)

    def pop_due_channel(self, now_s: float) -> ChannelState | None:
        """Remove and return the next channel if its time has come, else return None."""
        return self._times.pop_due(now_s)


async def run_queue_scan(
    queue: ScanQueue, clock: Clock, options: NsqdOptions, defects: Defects
) -> None:
    """Scan the channels that are due, forever.

    Other tasks get their turn after --queue-scan-selection-count channels, or after `MAX_SCAN`
    messages. A channel with more messages waits for its next turn. A channel whose scan fails is
    scanned again a second later.
    """
    selection = max(1, options.queue_scan_selection_count)
    while True:
        await queue.wait(_SCAN_INTERVAL_S)
        if clock.follow_wall() > _JUMP_NS:
            queue.hurry(clock.now_s())
        while True:
            now_s = clock.now_s()
            now_ns = clock.deferral_ns(now_s)
            channels = looks = 0
            while channels < selection and looks < MAX_SCAN:
                channel = queue.pop_due_channel(now_s)
                if channel is None:
                    break
                try:
                    looks += channel.scan(now_s, now_ns)
                except Exception as error:
                    defects.note("scan", f"CHANNEL({channel.name}): scan", error)
                    channel.wake_at_s = now_s + _SCAN_RETRY_S
                    queue.set_time(channel, channel.wake_at_s)
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
    """Send heartbeats and close stalled connections, forever.

    A client whose check fails is closed, because it would not be checked again.
    """
    while True:
        now_s = clock.now_s()
        while clients := looks.pop_due(now_s, _MAX_LOOKS):
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
    """Sync all disk queues every --sync-timeout, forever."""
    while True:
        await trio.sleep(timeout_s)
        for _ in folder.sync_in_steps():
            await trio.lowlevel.checkpoint()


async def run_disk_retries(folder: DataFolder) -> None:
    """Let disk queues that failed try again, forever."""
    while True:
        await trio.sleep(_DISK_RETRY_S)
        for _ in folder.retry_in_steps():
            await trio.lowlevel.checkpoint()


async def run_key_window(keys: KeyWindow, clock: Clock) -> None:
    """Forget the keys that are older than the window, for ever."""
    while True:
        await trio.sleep(_KEYS_S)
        keys.settle()
        while not keys.forget_old(clock.now_s()):
            await trio.lowlevel.checkpoint()
