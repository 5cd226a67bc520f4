"""Keeping nsqd.dat: which topics and channels there are, and which are paused.

Spec: nsqd-internals, section 5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from trionsq.storage.folder import DataFolder
from trionsq.storage.idfloor import IdFloor
from trionsq.storage.metadata import TopicRecord, save_metadata

__all__ = ["MetadataKeeper"]

log = logging.getLogger("trionsq")

_FAULT: Final = "metadata"
# After a crash ids begin where this reserve, saved ahead, ends.
_IDS_AHEAD_NS: Final = 120 * 10**9
_IDS_SAVE_S: Final = 60.0
_RETRY_S: Final = 1.0


class MetadataKeeper:
    """Writes the metadata when told, and by itself after changes; many changes become one write."""

    def __init__(
        self,
        folder: DataFolder,
        records: Callable[[], list[TopicRecord]],
        now_ns: Callable[[], int],
    ) -> None:
        """``records`` tells what is to be written."""
        self._folder = folder
        self._records = records
        self._now_ns = now_ns
        self._ids = IdFloor(folder.disk)
        self._changed = trio.Event()
        self._saving = trio.Lock()

    def changed(self) -> None:
        """Have the metadata written soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write what changed, for ever; and again after a failure."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if not await self.save():
                self._changed.set()
                await trio.sleep(_RETRY_S)

    async def run_id_reserve(self) -> None:
        """Keep saving a time ahead of which no message id lies, for ever."""
        while True:
            await self.save_ids(self._now_ns() + _IDS_AHEAD_NS)
            await trio.sleep(_IDS_SAVE_S)

    async def save(self) -> bool:
        """Write the metadata now; whether that went well. A failure is logged."""
        async with self._saving:
            records = self._records()
            return await self._write(lambda: save_metadata(self._folder.disk, records))

    async def save_ids(self, until_ns: int) -> bool:
        """Write down that ids of times up to ``until_ns`` may have been given out."""
        return await self._write(lambda: self._ids.save(until_ns))

    async def _write(self, job: Callable[[], None]) -> bool:
        finished = trio.Event()
        errors: list[OSError] = []

        def done(error: OSError | None) -> None:
            if error is not None:
                errors.append(error)
            finished.set()

        self._folder.background.submit(job, done)
        await finished.wait()
        if not errors:
            self._folder.faults.pop(_FAULT, None)
            return True
        text = f"{errors[0].filename}: {errors[0].strerror}"
        if self._folder.faults.get(_FAULT) != text:
            log.error("NSQ: failed to persist metadata - %s", text)
        self._folder.faults[_FAULT] = text
        return False
