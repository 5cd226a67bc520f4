"""A small file of the data path that is replaced as a whole, in the background."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from trionsq.storage.folder import DataFolder, Job, error_text

__all__ = ["ReplacedFile"]

log = logging.getLogger("trionsq")


class _Write:
    """One write, for which several tasks may wait.

    Attributes:
        ended: is set at the end.
        succeeded: None if the write never began: the task that was to do it was cancelled.
    """

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.succeeded: bool | None = None


class ReplacedFile:
    """A file that is replaced in the background, one write at a time and in order.

    That holds also after a cancellation: an older content must not come last. All tasks that ask
    during a write share the next one.
    """

    def __init__(self, folder: DataFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._under_way: _Write | None = None
        self._next: _Write | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the last write failed."""
        return self._name in self._folder.faults

    async def write(self, job: Callable[[], Awaitable[Job]]) -> bool:
        """Run the job that ``job`` returns when it is its turn; return whether it succeeded."""
        while self._next is not None:
            shared = self._next
            await shared.ended.wait()
            if shared.succeeded is not None:
                return shared.succeeded
        write = self._next = _Write()
        try:
            while self._under_way is not None:
                await self._under_way.ended.wait()
            # Later requests may follow a change that this write lacks: they get the next one.
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
        assert write.succeeded is not None
        return write.succeeded

    def _ended(self, write: _Write, error: Exception | None) -> None:
        self._under_way = None
        write.succeeded = error is None
        write.ended.set()
        self._note_result(error)

    def _note_result(self, error: Exception | None) -> None:
        faults = self._folder.faults
        if error is None:
            faults.pop(self._name, None)
            return
        # Without the draft's name, which differs each time: equal faults have equal texts.
        reason = error.strerror if isinstance(error, OSError) else error_text(error)
        text = f"{self._folder.disk.path}/{self._name}: {reason}"
        if faults.get(self._name) != text:
            log.error("NSQ: failed to persist metadata - %s", text)
        faults[self._name] = text
