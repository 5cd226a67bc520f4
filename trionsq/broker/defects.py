"""Defects: unexpected exceptions. They stop one part of nsqd, are counted, and never end nsqd.

A part is a task, or a step of a task for one object (a channel's scan, a client's heartbeat). Each
defect is counted by its part. The log has the traceback of the first one and then one a minute, so
that a failure at every tick does not fill the disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from trionsq.logtext import printable

__all__ = ["PARTS", "Defects"]

log = logging.getLogger("trionsq")

PARTS: Final = (
    "channel",
    "check",
    "chore",
    "client",
    "disk_retry",
    "dead_letter",
    "disk_sync",
    "heartbeat",
    "id_reserve",
    "keys",
    "log",
    "lookup",
    "loop_lag",
    "metadata",
    "poller",
    "scan",
    "statsd",
    "topic",
)
"""All parts, as /metrics names them."""

# Between two tracebacks of one part.
_LOG_INTERVAL_S: Final = 60.0
# A failed task is restarted after a pause, which doubles from the first to the last.
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 30.0
# After this time without a failure, the next pause is the shortest again.
_SOUND_S: Final = 60.0


class Defects:
    """The defects of one broker since its start.

    Attributes:
        counts: by part; each of `PARTS` has an entry.
        last: the last failure of each part.
        stopped: the topics and channels whose task waits for its restart, with the reason. They
            keep their messages and deliver nothing.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
        self.last: dict[str, str] = {}
        self.stopped: dict[str, str] = {}
        self._log_from_s: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Defects {self.counts.total()} stopped={list(self.stopped)}>"

    def note(self, part: str, what: str, error: Exception) -> None:
        """Count a defect, and log it unless one of its part was logged less than a minute ago.

        Args:
            part: one of `PARTS`.
            what: the object that it affected, such as ``CHANNEL(t:c)``.
            error: the unexpected exception.
        """
        self.counts[part] += 1
        self.last[part] = f"{what}: {_shown(error)}"
        now_s = trio.current_time()
        if now_s < self._log_from_s.get(part, now_s):
            self._unlogged[part] += 1
            return
        self._log_from_s[part] = now_s + _LOG_INTERVAL_S
        unlogged = self._unlogged.pop(part, 0)
        more = (
            f" ({unlogged} more defects of this part since its last traceback)" if unlogged else ""
        )
        log.error("%s - failed by a defect of nsqd%s", what, more, exc_info=error)

    @contextmanager
    def fence(self, part: str, what: str) -> Iterator[None]:
        """`note` an exception of the body, and do not raise it."""
        try:
            yield
        except Exception as error:
            self.note(part, what, error)

    async def keep_running(
        self,
        part: str,
        what: str,
        task: Callable[[], Awaitable[None]],
        *,
        stops_messages: bool = False,
    ) -> None:
        """Run ``task`` until it returns, and restart it whenever a defect ends it.

        There is a pause before each restart, which grows while the restarts fail. A cancellation
        ends the task.

        Args:
            part, what: see `note`.
            task: the function to run.
            stops_messages: messages wait while the task does not run, so `stopped` names it.
        """
        pause_s = _PAUSE_MIN_S
        try:
            while True:
                began_s = trio.current_time()
                try:
                    await task()
                    return
                except Exception as error:
                    self.note(part, what, error)
                    if stops_messages:
                        self.stopped[what] = _shown(error)
                if trio.current_time() - began_s >= _SOUND_S:
                    pause_s = _PAUSE_MIN_S
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            self.stopped.pop(what, None)

    def runs(self, what: str) -> None:
        """The task of ``what`` has done all of its work: it is not stopped any more."""
        self.stopped.pop(what, None)


def _shown(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")
