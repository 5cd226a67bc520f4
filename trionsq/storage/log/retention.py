"""How long, or how many bytes of, what all channels have finished stays in a log."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from trionsq.storage.log.rows import PutMeta
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["Holder", "Retention", "Retentions"]

_KEY: Final = "retention"
_Own = tuple[int | None, int | None]
# Segments that one snapshot of a topic leaves: a job that is before publishes removes their files.
_MAX_LEFT: Final = 32


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays, by whole segments; 0: that is no reason to keep, or to leave, any.

    With both, a segment goes when one of them allows it.

    Attributes:
        time_ns: messages are kept so long, in nanoseconds.
        nbytes: so many bytes of the log are kept.
    """

    time_ns: int = 0
    nbytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.time_ns or self.nbytes)


@dataclass(frozen=True, slots=True)
class Holder:
    """Why the oldest segment of a log is there.

    Attributes:
        kind: a channel has not finished it; or no channel has had it; or retention keeps it; or
            it is the only one.
        channel: name of the channel.
    """

    kind: Literal["channel", "topic", "retention", "none"]
    channel: str = ""


class Retentions:
    """The retention of each log of a node.

    Attributes:
        default: of topics that have none of their own.
        max_left: segments that one snapshot of a topic leaves.
    """

    def __init__(self, default: Retention | None = None) -> None:
        """``default``: None: nothing stays."""
        self.default = default or Retention()
        self.max_left = _MAX_LEFT
        self._own: dict[int, _Own] = {}

    def __repr__(self) -> str:
        return f"<Retentions {self.default} own={len(self._own)}>"

    def load(self, meta: Mapping[str, bytes], numbers: Collection[int]) -> None:
        """Take over what the state has of the logs with these numbers."""
        found = json.loads(meta.get(_KEY, b"{}"))
        self._own = {int(n): (own[0], own[1]) for n, own in found.items() if int(n) in numbers}

    def of(self, log: TopicLog) -> Retention:
        """Return what holds for a log."""
        time_ns, nbytes = self.own(log)
        default = self.default
        return Retention(
            default.time_ns if time_ns is None else time_ns,
            default.nbytes if nbytes is None else nbytes,
        )

    def own(self, log: TopicLog) -> _Own:
        """Return time and bytes that were set for a log; None: the default holds."""
        return self._own.get(log.number, (None, None))

    def change(self, log: TopicLog, own: _Own, numbers: Collection[int]) -> PutMeta:
        """Set time and bytes for a log; return what the state has to know.

        ``numbers``: of the logs that exist.
        """
        self._own[log.number] = own
        self._own = {number: one for number, one in self._own.items() if number in numbers}
        return PutMeta(_KEY, json.dumps(self._own).encode())

    def low(self, log: TopicLog, low: int) -> int:
        """Return the sequence of the first message that stays: ``low``, or one before it.

        ``low``: all channels have finished what is before.
        """
        segments, retention = log.segments, self.of(log)
        left_nbytes = log.figures.disk_nbytes(segments)
        oldest_ns = time.time_ns() - retention.time_ns
        for at in range(min(len(segments) - 1, self.max_left)):
            following = segments[at + 1]
            left_nbytes -= segments[at].end
            # What a segment has was written before the next one was made.
            is_old = retention.time_ns and following.header.created_ns <= oldest_ns
            is_over = retention.nbytes and left_nbytes >= retention.nbytes
            if following.first > low or not (is_old or is_over or not retention):
                return min(low, segments[at].first)
        return min(low, segments[min(len(segments) - 1, self.max_left)].first) if segments else low

    def holder(self, log: TopicLog) -> Holder:
        """Return why the oldest segment of a log is still there."""
        if len(log.segments) < 2:
            return Holder("none")
        behind = log.segments[1].first
        last = min(log.cursors.values(), key=lambda cursor: cursor.low, default=None)
        if last is not None and last.low < behind:
            return Holder("channel", last.name)
        return Holder("topic" if log.handed_on < behind else "retention")
