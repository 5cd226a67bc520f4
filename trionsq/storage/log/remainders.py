"""Old segments of which little is needed give way to small ones that have only that.

Else one message that is deferred for a week, or in flight for hours, would keep 128 MiB. What all
channels have behind them is copied with its sequences to a *remainder*: a segment with the place,
and the name, of those that it was made of. It gets the name when it is durable, so each crash
leaves the one or the other. Only what a durable state does not need is left out.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from trionsq.core.round import Round
from trionsq.storage.folder import error_text
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.replacement import Replacement, ReplacementLimits
from trionsq.storage.log.segmentfile import SegmentFile
from trionsq.storage.log.segmentlist import replace_segments
from trionsq.storage.log.snapshot import Snapshots
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["Remainders"]

log = logging.getLogger("trionsq")

# A segment gives way if no more of it is needed, and if it is no small file anyway. A remainder
# takes up the one before it as long as it is no larger than this share of a segment.
_SHARE: Final = 0.05
_MIN_BYTES: Final = 64 * 1024
# Ticks until a log is looked at again that has no new segment, or after an error of the disk.
_PATIENCE: Final = 60
_LOGS_PER_TICK: Final = 500


class Remainders:
    """Makes remainders, one at a time, of the logs of a node. For the event loop's thread."""

    def __init__(
        self,
        node: LogNode,
        *,
        share: float = _SHARE,
        min_bytes: int = _MIN_BYTES,
        patience: int = _PATIENCE,
    ) -> None:
        """All but ``node`` is for tests with small segments."""
        self._node = node
        self._share = share
        self._min_bytes = min_bytes
        self._patience = patience
        self._task: Replacement | None = None
        self._is_working = False
        self._is_closed = False
        self._ticks = 0
        self._idle_until = 0
        self._to_look: deque[TopicLog] = deque()
        # By the number of a log: at which tick it was looked at, and the newest segment that was.
        self._looked: dict[int, tuple[int, SegmentFile]] = {}

    def __repr__(self) -> str:
        return f"<Remainders {self._task}>"

    def tick(self, snapshots: Snapshots) -> None:
        """Go on, or look for a log to begin with. To be called when a tick's snapshots are taken,
        and what they changed is being committed."""
        self._ticks += 1
        if self._task is not None:
            self._go_on(self._task)
        elif not self._node.holds and self._ticks >= self._idle_until:
            task = self._task = self._next_task(snapshots)
            if task is None:
                return
            committed = self._node.committed()
            if committed is None:
                self._begin(task, None)
            else:
                self._is_working = True
                committed.when_done(lambda: self._begin(task, committed.error))

    def close(self) -> None:
        """Give up what is under way."""
        self._is_closed = True
        if self._task is not None:
            self._go_on(self._task)

    def _next_task(self, snapshots: Snapshots) -> Replacement | None:
        if not self._to_look:
            logs = self._node.logs
            self._to_look.extend(logs.values())
            self._looked = {one: seen for one, seen in self._looked.items() if one in logs}
        for _ in range(min(_LOGS_PER_TICK, len(self._to_look))):
            log_ = self._to_look.popleft()
            if len(log_.segments) > 1 and log_.cursors and not log_.is_deleted:
                task = self._task_for(log_, snapshots)
                if task is not None:
                    return task
        return None

    def _task_for(self, log_: TopicLog, snapshots: Snapshots) -> Replacement | None:
        if snapshots.retentions.of(log_):
            return None  # what is finished is to be read again
        needed = snapshots.needed(log_)
        if needed is None:
            return None
        limit = min([log_.handed_on, *(one.next for one in needed)])
        segments = log_.segments
        count = 0
        # The last one that has messages stays: its ids are the highest.
        limit = min(limit, log_.safe_end - 1)
        while count + 1 < len(segments) and segments[count + 1].first <= limit:
            count += 1
        if not count:
            return None
        at, newest = self._looked.get(log_.number, (0, None))
        if newest is segments[count - 1] and self._ticks < at + self._patience:
            return None
        self._looked[log_.number] = self._ticks, segments[count - 1]
        max_bytes = int(self._share * self._node.segment_bytes)
        limits = ReplacementLimits(self._share, self._min_bytes, max_bytes)
        return Replacement(log_, self._node.disk, segments[: count + 1], needed, limits)

    def _begin(self, task: Replacement, error: str | None) -> None:
        self._is_working = False
        if error is not None or self._node.holds or self._is_closed:
            self._task = None
            return
        self._node.hold_files()
        self._go_on(task)

    def _go_on(self, task: Replacement) -> None:
        if self._is_working:
            return
        self._is_working = True
        must_end = task.is_over or task.log.is_deleted or self._is_closed
        step = task.give_up if must_end else task.step
        self._node.submit_job(step, lambda error: self._have_stepped(task, error))

    def _have_stepped(self, task: Replacement, error: Exception | None) -> None:
        self._is_working = False
        if error is None and not task.is_over:
            is_new = not task.has_begun
            if is_new and task.old:
                task.is_over = not self._keep_out(task)
            if is_new or self._is_closed:
                self._go_on(task)
            return
        self._task = None
        try:
            if error is not None:
                self._idle_until = self._ticks + self._patience
                text = error_text(error)
                log.warning("LOG(%s): old segments stay: %s", task.log.name, text)
            self._replace(task)
        finally:
            self._node.release_files()

    @staticmethod
    def _keep_out(task: Replacement) -> bool:
        """Have no channel go back to what is left out; False if one has, or may have."""
        log_, end = task.log, task.end
        for number, cursor in log_.cursors.items():
            if task.generations.get(number) != cursor.generation:
                return False
        task.whole_before = log_.whole_from
        log_.whole_from = max(log_.whole_from, end)
        return True

    def _replace(self, task: Replacement) -> None:
        log_, new = task.log, task.new
        if new is None and task.whole_before is not None:
            log_.whole_from = task.whole_before
        if new is None:
            return
        if replace_segments(log_.segments, task.old, new):
            log_.figures.forget_sizes()
        if log_.is_deleted:
            return
        # The next segment before those that were looked at may be worth it as well.
        self._looked.pop(log_.number, None)
        self._to_look.append(log_)
        old_bytes = sum(segment.end for segment in task.old)
        log.info(
            "LOG(%s): %s keeps %d messages: %d bytes of %d",
            log_.name, new.name, new.kept, new.end, old_bytes,
        )  # fmt: skip
        names = [segment.name for segment in task.old[:-1]]
        if names and task.is_durable:
            durable = Round()
            durable.finish()
            self._node.remove_after(durable, lambda: names, lambda: None)
