"""Reads for the topic itself what was published while it had no channel, or was paused."""

from __future__ import annotations

from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.cursorlog import CursorLog

__all__ = ["TopicReader"]


class TopicReader(Cursor):
    """Unlike a channel it hands on deferred messages.

    Attributes:
        began_at, left: `next` and `depth` when it was asked last.
    """

    def __init__(self, log: CursorLog[Cursor], next_: int, end: int) -> None:
        super().__init__(log, 0, "", next_, end)
        self.began_at = next_
        self.left = 0
        self.replay_end = 2**63
