"""Saving nsqd.dat (topics and channels, and which are paused) and trionsq.dat (message ids in use).

Spec: nsqd-internals, section 5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from trionsq.broker.logs import LogTopics
from trionsq.broker.registry import TopicRegistry
from trionsq.broker.replaced_file import ReplacedFile
from trionsq.storage.folder import DataFolder, Job
from trionsq.storage.metadata import (
    ID_RESERVE_FILE,
    METADATA_FILE,
    ChannelRecord,
    IdReserve,
    TopicRecord,
)

__all__ = ["MetadataKeeper"]

log = logging.getLogger("trionsq")

# After a crash new message ids begin at the end of this reserve, which is saved ahead.
_IDS_AHEAD_NS: Final = 120 * 10**9
# If ids are ahead of the clock, the reserve lasts for a hundred million messages.
_IDS_MORE_NS: Final = 30 * 10**9
_IDS_SAVE_S: Final = 60.0
_RETRY_S: Final = 1.0
# Topics and channels handled in one turn of the event loop, in about 0.2 ms.
_ENTRIES_PER_TURN: Final = 100


class MetadataKeeper:
    """Saves the metadata on request, and soon after changes; many changes make one write."""

    def __init__(
        self,
        folder: DataFolder,
        registry: TopicRegistry,
        logs: LogTopics,
        now_ns: Callable[[], int],
    ) -> None:
        self._disk = folder.disk
        self._registry = registry
        self._topics = registry.topics
        self._logs = logs
        self._now_ns = now_ns
        self._ids = IdReserve(folder.disk)
        self._metadata_file = ReplacedFile(folder, METADATA_FILE)
        self._ids_file = ReplacedFile(folder, ID_RESERVE_FILE)
        self._changed = trio.Event()

    def changed(self) -> None:
        """Save the metadata soon."""
        self._changed.set()

    async def run(self) -> None:
        """Save changes until cancelled; repeats a failed write."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                saved = await self.save()
            except BaseException:
                self._changed.set()  # the change is still to be saved
                raise
            if not saved:
                await trio.sleep(_RETRY_S)

    async def run_id_reserve(self) -> None:
        """Save ahead, until cancelled, the time before which all message ids lie."""
        while True:
            # The write at the start may have failed.
            await trio.sleep(_RETRY_S if self._ids_file.has_failed else _IDS_SAVE_S)
            await self.reserve_ids()

    async def save(self) -> bool:
        """Save the metadata now; return whether that succeeded. If not, `run` tries again.

        All changes before the call are saved. A change during the call may be saved for some topics
        only: `changed` lets `run` save it whole.
        """

        async def job() -> Job:
            return partial(self._logs.save_metadata, await self._records())

        saved = await self._metadata_file.write(job)
        if not saved:
            self._changed.set()
        return saved

    async def _records(self) -> list[TopicRecord]:
        """Return all topics and channels that are not ephemeral."""
        records: list[TopicRecord] = []
        count = 0
        for topic in list(self._topics.values()):
            if topic.is_ephemeral:
                continue
            channels: list[ChannelRecord] = []
            for channel in list(topic.channels.values()):
                if not channel.is_ephemeral:
                    channels.append(ChannelRecord(channel.name, channel.core.paused))
                count += 1
                if count % _ENTRIES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
            records.append(TopicRecord(topic.name, topic.core.paused, tuple(channels)))
            count += 1
            if count % _ENTRIES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        return records

    async def reserve_ids(self) -> bool:
        """Save a time before which all ids of the next minute lie; return whether it succeeded."""

        async def job() -> Job:
            until_ns = await self._ids_until_ns() + _IDS_MORE_NS
            return partial(self._ids.save, max(self._now_ns() + _IDS_AHEAD_NS, until_ns))

        return await self._ids_file.write(job)

    async def save_ids(self) -> bool:
        """Save the time before which all ids lie, at the stop; return whether it succeeded."""

        async def job() -> Job:
            return partial(self._ids.save, await self._ids_until_ns())

        return await self._ids_file.write(job)

    async def _ids_until_ns(self) -> int:
        """Return the time up to which message ids may be in use."""
        until_ns = 0
        for count, topic in enumerate(list(self._topics.values()), 1):
            until_ns = max(until_ns, topic.core.ids.until_ns)
            if count % _ENTRIES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        # Only now: a topic may have been deleted meanwhile.
        return max(until_ns, self._registry.ids_after_ns)
