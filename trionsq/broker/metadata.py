"""Keeping nsqd.dat: which topics and channels there are, and which are paused.

Spec: nsqd-internals, section 5.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from trionsq.broker.topic import Topic
from trionsq.storage.background import Job
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.idfloor import FILE_NAME as IDS_NAME
from trionsq.storage.idfloor import IdFloor
from trionsq.storage.metadata import FILE_NAME as METADATA_NAME
from trionsq.storage.metadata import ChannelRecord, TopicRecord, save_metadata

__all__ = ["MetadataKeeper"]

log = logging.getLogger("trionsq")

# After a crash ids begin where this reserve, saved ahead, ends.
_IDS_AHEAD_NS: Final = 120 * 10**9
# Ids that are ahead of the clock run on slowly: this reserve is for a hundred million messages.
_IDS_MORE_NS: Final = 30 * 10**9
_IDS_SAVE_S: Final = 60.0
_RETRY_S: Final = 1.0
# Topics and channels that are looked at before other tasks get their turn: some 0.2 ms.
_TURN_ENTRIES: Final = 100


class MetadataKeeper:
    """Writes the metadata when told, and by itself after changes; many changes become one write."""

    def __init__(
        self,
        folder: DataFolder,
        topics: Mapping[str, Topic],
        ids_after_ns: Callable[[], int],
        now_ns: Callable[[], int],
    ) -> None:
        """``ids_after_ns``: before this time are the ids of former topics."""
        self._disk = folder.disk
        self._topics = topics
        self._ids_after_ns = ids_after_ns
        self._now_ns = now_ns
        self._ids = IdFloor(folder.disk)
        self._metadata_file = _File(folder, METADATA_NAME)
        self._ids_file = _File(folder, IDS_NAME)
        self._changed = trio.Event()

    def changed(self) -> None:
        """Have the metadata written soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write what changed, for ever; and again after a failure."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                saved = await self.save()
            except BaseException:
                self._changed.set()  # what was to be written still is
                raise
            if not saved:
                await trio.sleep(_RETRY_S)

    async def run_id_reserve(self) -> None:
        """Keep saving a time ahead of which no message id lies, for ever."""
        while True:
            # It may have failed before this began, at the start.
            await trio.sleep(_RETRY_S if self._ids_file.has_failed else _IDS_SAVE_S)
            await self.reserve_ids()

    async def save(self) -> bool:
        """Write the metadata now; whether that went well. If not, `run` tries again.

        What is written has all changes that were made before the call. Of a change made during it,
        which `changed` tells of and has written later, one topic may be in it and another not.
        """

        async def job() -> Job:
            return partial(save_metadata, self._disk, await self._records())

        saved = await self._metadata_file.write(job)
        if not saved:
            self._changed.set()
        return saved

    async def _records(self) -> list[TopicRecord]:
        """All topics and channels that are not ephemeral."""
        records: list[TopicRecord] = []
        looked_at = 0
        for topic in list(self._topics.values()):
            if topic.is_ephemeral:
                continue
            channels: list[ChannelRecord] = []
            for channel in list(topic.channels.values()):
                if not channel.is_ephemeral:
                    channels.append(ChannelRecord(channel.name, channel.core.paused))
                looked_at += 1
                if looked_at % _TURN_ENTRIES == 0:
                    await trio.lowlevel.checkpoint()
            records.append(TopicRecord(topic.name, topic.core.paused, tuple(channels)))
            looked_at += 1
            if looked_at % _TURN_ENTRIES == 0:
                await trio.lowlevel.checkpoint()
        return records

    async def reserve_ids(self) -> bool:
        """Write down a time that the ids of the next minute do not reach."""

        async def job() -> Job:
            until_ns = await self._ids_until_ns() + _IDS_MORE_NS
            return partial(self._ids.save, max(self._now_ns() + _IDS_AHEAD_NS, until_ns))

        return await self._ids_file.write(job)

    async def save_ids(self) -> bool:
        """Write down which ids were given out: no more will be."""

        async def job() -> Job:
            return partial(self._ids.save, await self._ids_until_ns())

        return await self._ids_file.write(job)

    async def _ids_until_ns(self) -> int:
        """The time whose message ids, and those before, may have been given out."""
        until_ns = 0
        for looked_at, topic in enumerate(list(self._topics.values()), 1):
            until_ns = max(until_ns, topic.core.ids.until_ns)
            if looked_at % _TURN_ENTRIES == 0:
                await trio.lowlevel.checkpoint()
        # Last, for a topic may have been deleted meanwhile.
        return max(until_ns, self._ids_after_ns())


class _Write:
    """One write, for which several may wait.

    Attributes:
        ended: is set when it has.
        went_well: None if it was never begun: whoever was to do it was cancelled.
    """

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.went_well: bool | None = None


class _File:
    """A file that is written anew in the background, one write at a time.

    Also after whoever waited for a write was cancelled: an old content must not come last. All who
    ask during a write share the next one.
    """

    def __init__(self, folder: DataFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._under_way: _Write | None = None
        self._next: _Write | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the last write did not go well."""
        return self._name in self._folder.faults

    async def write(self, job: Callable[[], Awaitable[Job]]) -> bool:
        """Run what ``job`` gives when it is its turn; whether that went well."""
        while self._next is not None:
            shared = self._next
            await shared.ended.wait()
            if shared.went_well is not None:
                return shared.went_well
        write = self._next = _Write()
        try:
            while self._under_way is not None:
                await self._under_way.ended.wait()
            # Who asks from now on may know of a change that this one does not have.
            self._next, self._under_way = None, write
            ready = await job()
        except BaseException:
            if self._next is write:
                self._next = None
            if self._under_way is write:
                self._under_way = None
            write.ended.set()
            raise
        self._folder.submit(self, ready, partial(self._ended, write))
        await write.ended.wait()
        assert write.went_well is not None
        return write.went_well

    def _ended(self, write: _Write, error: Exception | None) -> None:
        self._under_way = None
        write.went_well = error is None
        write.ended.set()
        self._note(error)

    def _note(self, error: Exception | None) -> None:
        faults = self._folder.faults
        if error is None:
            faults.pop(self._name, None)
            return
        # Not the draft's name, which is another one each time.
        reason = error.strerror if isinstance(error, OSError) else error_text(error)
        text = f"{self._folder.disk.path}/{self._name}: {reason}"
        if faults.get(self._name) != text:
            log.error("NSQ: failed to persist metadata - %s", text)
        faults[self._name] = text
