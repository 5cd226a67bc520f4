"""--min-free-disk: publishes are refused before the disk of the data path is full.

Consumers go on: what they finish makes room. A full disk would take neither.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol

import trio

from trionsq.broker.drain import Drain
from trionsq.storage.folder import DataFolder, error_text
from trionsq.wire.errors import DRAINING

__all__ = ["DiskGuard"]

log = logging.getLogger("trionsq")

# Time between two looks at the disk: less than one that is fast needs for the last GiB.
_LOOK_S: Final = 0.5
# Without --min-free-disk the figure is only shown.
_SHOWN_S: Final = 30.0
# So much more has to be free before publishes are taken again: a twentieth.
_MORE: Final = 20


class GuardedTopic(Protocol):
    """A topic, as the guard sees it."""

    refusal: str


class DiskGuard:
    """Watches how much of the disk is free.

    Attributes:
        free_bytes: at the last look; None before the first.
        is_low: whether publishes are refused.
    """

    def __init__(
        self,
        folder: DataFolder,
        topics: Mapping[str, GuardedTopic],
        drain: Drain,
        min_free_bytes: int,
    ) -> None:
        self.free_bytes: int | None = None
        self.is_low = False
        self._folder = folder
        self._topics = topics
        self._drain = drain
        self._min_free_bytes = min_free_bytes
        self._text = f"the disk has less than {min_free_bytes} bytes free"

    def __repr__(self) -> str:
        return f"<DiskGuard free={self.free_bytes} is_low={self.is_low}>"

    @property
    def reason(self) -> str | None:
        """Why publishes are refused; None if they are not."""
        return self._text if self.is_low else None

    async def run(self) -> None:
        """Look at the disk, for ever."""
        while True:
            await self.look()
            await trio.sleep(_LOOK_S if self._min_free_bytes else _SHOWN_S)

    async def look(self) -> None:
        """Look at the disk in the background, and refuse or take publishes from then on."""
        found: list[int] = []
        looked = trio.Event()

        def job() -> None:
            found.append(self._folder.disk.free_bytes())

        def done(error: Exception | None) -> None:
            if error is not None:
                log.error("NSQ: the free space of the disk is not known: %s", error_text(error))
            looked.set()

        self._folder.submit(self, job, done)
        await looked.wait()
        if found:
            self._note_free(found[0])

    def _note_free(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        least = self._min_free_bytes
        if not self.is_low and free_bytes < least:
            self.is_low = True
            for topic in self._topics.values():
                topic.refusal = topic.refusal or self._text
            log.error(
                "NSQ: the disk has %d bytes free; publishes are refused until it has %d",
                free_bytes,
                least + least // _MORE,
            )
        elif self.is_low and free_bytes >= least + least // _MORE:
            self.is_low = False
            for topic in self._topics.values():
                if topic.refusal == self._text:
                    topic.refusal = DRAINING if self._drain.is_on else ""
            log.info("NSQ: the disk has %d bytes free; publishes are taken again", free_bytes)

    def add_topic(self, topic: GuardedTopic) -> None:
        """Let a new topic refuse publishes as well."""
        if self.is_low:
            topic.refusal = topic.refusal or self._text
