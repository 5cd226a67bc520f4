"""The store of the dead letters, as the tasks of the broker use it: in a thread, and counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from trionsq.broker.runtime import Clock
from trionsq.core.batch import ListColumn, MessageBatch
from trionsq.disk import Disk
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.letters import (
    LETTERS_FILE,
    DeadLetterStore,
    LetterError,
    LetterTally,
    StoredLetter,
)
from trionsq.wire.bodies import ListBodies

__all__ = ["Letterbox", "batch_of"]

log = logging.getLogger("trionsq")

_T = TypeVar("_T")

# What failed is tried again after this time; it is logged once in so many seconds.
_RETRY_S: Final = 1.0
_LOG_S: Final = 60.0


class Letterbox:
    """The store, which is made with the first letter.

    Attributes:
        counts: of letters since the start, by what became of them: ``kept``, ``refused`` (they
            returned to their channel), ``handed_on``, ``finished``, ``replayed``, ``discarded``.
        tallies: of the letters, as of the last change.
    """

    def __init__(
        self,
        folder: DataFolder,
        clock: Clock,
        open_store: Callable[[Disk], DeadLetterStore],
    ) -> None:
        self.counts: Counter[str] = Counter(
            dict.fromkeys(("kept", "refused", "handed_on", "finished", "replayed", "discarded"), 0)
        )
        self.tallies: list[LetterTally] = []
        self._folder = folder
        self._clock = clock
        self._open_store = open_store
        self._store: DeadLetterStore | None = None
        self._opening = trio.Lock()
        self._log_from_s = 0.0

    def __repr__(self) -> str:
        return f"<Letterbox {self.count}>"

    @property
    def count(self) -> int:
        """How many letters there are."""
        return sum(one.letters for one in self.tallies)

    @property
    def nbytes(self) -> int:
        """Bytes of the bodies of all letters."""
        return sum(one.nbytes for one in self.tallies)

    @property
    def is_there(self) -> bool:
        """Whether the data path has a store."""
        return LETTERS_FILE in self._folder.disk.names()

    def waiting(self) -> Counter[str]:
        """Return how many letters wait for their dead-letter topic to have a channel."""
        waiting: Counter[str] = Counter()
        for one in self.tallies:
            waiting[one.dead_topic] += one.unfed
        return waiting

    async def call(self, work: Callable[[DeadLetterStore], _T]) -> _T:
        """Do something with the store, in a thread.

        Raises:
            LetterError: that failed.
        """
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    self._store = await self._job(partial(self._open_store, self._folder.disk))
        return await self._job(partial(work, self._store))

    async def copier(self) -> Callable[[Disk], None]:
        """Return what copies the letters that there are then to another folder, in any thread.

        It raises as `DeadLetterStore.copy_to`.

        Raises:
            LetterError: the letters cannot be read.
        """
        if self.is_there:
            await self.call(lambda store: None)

        def copy(disk: Disk) -> None:
            if self._store is not None:
                self._store.copy_to(disk)

        return copy

    async def _job(self, work: Callable[[], _T]) -> _T:
        found: list[_T] = []
        failures: list[LetterError] = []
        ended = trio.Event()

        def job() -> None:
            try:
                found.append(work())
            except LetterError as error:
                failures.append(error)

        def done(error: Exception | None) -> None:
            if error is not None:
                failures.append(LetterError(error_text(error)))
            ended.set()

        self._folder.background.submit(job, done)
        await ended.wait()
        if failures:
            raise failures[0]
        return found[0]

    async def count_anew(self) -> None:
        """Bring `tallies` up to date.

        Raises:
            LetterError: that failed.
        """
        self.tallies = await self.call(lambda store: store.tallies())

    async def retry(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        """Do something until it succeeds."""
        while True:
            try:
                await act()
                return
            except LetterError as error:
                self.note_failure(what, error)
                await trio.sleep(_RETRY_S)

    def note_failure(self, what: str, error: Exception) -> None:
        """Log what failed, now and then."""
        now_s = self._clock.now_s()
        if now_s >= self._log_from_s:
            self._log_from_s = now_s + _LOG_S
            log.error("DEADLETTER: %s: %s", what, error)

    async def close(self) -> None:
        """Release the file."""
        if self._store is not None:
            await self._folder.background.wait_idle()
            self._store.close()


def batch_of(letters: Sequence[StoredLetter]) -> MessageBatch:
    """Return the letters as messages, with the times at which their bodies were published."""
    stored = [one.letter for one in letters]
    stamps = [one.first_ns.to_bytes(8, signed=True) for one in stored]
    return MessageBatch(
        ListBodies([one.body for one in stored]),
        ListColumn([one.id.encode() for one in stored]),
        stored[0].first_ns,
        0,
        ListColumn(stamps),
    )
