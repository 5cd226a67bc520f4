"""Keeping nsqd.dat: which topics and channels there are, and which are paused.

Spec: nsqd-internals, section 5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from trionsq.storage.folder import DataFolder
from trionsq.storage.idfloor import FILE_NAME as IDS_NAME
from trionsq.storage.idfloor import IdFloor
from trionsq.storage.metadata import FILE_NAME as METADATA_NAME
from trionsq.storage.metadata import TopicRecord, save_metadata

__all__ = ["MetadataKeeper"]

log = logging.getLogger("trionsq")

# After a crash ids begin where this reserve, saved ahead, ends.
_IDS_AHEAD_NS: Final = 120 * 10**9
# Ids that are ahead of the clock run on slowly: this reserve is for a hundred million messages.
_IDS_MORE_NS: Final = 30 * 10**9
_IDS_SAVE_S: Final = 60.0
_RETRY_S: Final = 1.0


class MetadataKeeper:
    """Writes the metadata when told, and by itself after changes; many changes become one write."""

    def __init__(
        self,
        folder: DataFolder,
        records: Callable[[], list[TopicRecord]],
        ids_until_ns: Callable[[], int],
        now_ns: Callable[[], int],
    ) -> None:
        """``records`` tells what is to be written, ``ids_until_ns`` which ids were given out."""
        self._disk = folder.disk
        self._records = records
        self._ids_until_ns = ids_until_ns
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
        """Write the metadata now; whether that went well. If not, `run` tries again."""

        def job() -> Callable[[], None]:
            records = self._records()
            return lambda: save_metadata(self._disk, records)

        saved = await self._metadata_file.write(job)
        if not saved:
            self._changed.set()
        return saved

    async def reserve_ids(self) -> bool:
        """Write down a time that the ids of the next minute do not reach."""
        ahead_ns = self._now_ns() + _IDS_AHEAD_NS
        return await self._save_ids(lambda: max(ahead_ns, self._ids_until_ns() + _IDS_MORE_NS))

    async def save_ids(self) -> bool:
        """Write down which ids were given out: no more will be."""
        return await self._save_ids(self._ids_until_ns)

    async def _save_ids(self, until_ns: Callable[[], int]) -> bool:
        def job() -> Callable[[], None]:
            return partial(self._ids.save, until_ns())

        return await self._ids_file.write(job)


class _File:
    """A file that is written anew in the background, one write at a time.

    Also after whoever waited for a write was cancelled: an old content must not come last.
    """

    def __init__(self, folder: DataFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._under_way: trio.Event | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the last write did not go well."""
        return self._name in self._folder.faults

    async def write(self, job: Callable[[], Callable[[], None]]) -> bool:
        """Run what ``job`` gives when it is its turn; whether that went well."""
        while self._under_way is not None:
            await self._under_way.wait()
        # First: if that fails, nothing is under way.
        work = job()
        finished = self._under_way = trio.Event()
        errors: list[OSError] = []

        def done(error: OSError | None) -> None:
            self._under_way = None
            finished.set()
            if error is not None:
                errors.append(error)
            self._note(error)

        self._folder.background.submit(work, done)
        await finished.wait()
        return not errors

    def _note(self, error: OSError | None) -> None:
        faults = self._folder.faults
        if error is None:
            faults.pop(self._name, None)
            return
        # Not the draft's name, which is another one each time.
        text = f"{self._folder.disk.path}/{self._name}: {error.strerror}"
        if faults.get(self._name) != text:
            log.error("NSQ: failed to persist metadata - %s", text)
        faults[self._name] = text
