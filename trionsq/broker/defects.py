"""What nobody expected: exceptions that cost one part of nsqd, are counted, and never end it.

A part is a task, or one step of a task for one thing (a channel's scan, a client's heartbeat). Each
defect is counted by its part. The log has the trace of the first, and of one a minute afterwards:
what fails at every tick must not fill the disk with its traces.
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
    "disk_sync",
    "heartbeat",
    "id_reserve",
    "lookup",
    "loop_lag",
    "metadata",
    "scan",
    "statsd",
    "topic",
)
"""All parts, as /metrics names them."""

# Between two traces of one part.
_LOG_INTERVAL_S: Final = 60.0
# What failed is started again after the first pause, which doubles up to the last.
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 30.0
# Whatever has run for so long has got over its defect: the next pause is the shortest again.
_SOUND_S: Final = 60.0


class Defects:
    """The defects of one broker since its start.

    Attributes:
        counts: by part; each of `PARTS` is there.
        last: what failed last, and how, by part.
        stopped: the topics and channels whose task waits for its next try, with the reason.
            Messages are kept and nothing is delivered.
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
        """Count a defect, and log it unless one of this part was logged within a minute.

        Args:
            part: one of `PARTS`.
            what: it happened to, as ``CHANNEL(t:c)``.
            error: the exception that nobody expected.
        """
        self.counts[part] += 1
        self.last[part] = f"{what}: {_shown(error)}"
        now_s = trio.current_time()
        if now_s < self._log_from_s.get(part, now_s):
            self._unlogged[part] += 1
            return
        self._log_from_s[part] = now_s + _LOG_INTERVAL_S
        unlogged = self._unlogged.pop(part, 0)
        more = f" ({unlogged} more defects of this part since its last trace)" if unlogged else ""
        log.error("%s - failed by a defect of nsqd%s", what, more, exc_info=error)

    @contextmanager
    def fence(self, part: str, what: str) -> Iterator[None]:
        """Keep a defect of the body inside, and `note` it."""
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
        """Run ``task``, and run it again whenever a defect ends it, until it ends by itself.

        Before each new try is a pause, which grows while the tries fail. A cancellation ends all.

        Args:
            part, what: as of `note`.
            stops_messages: while it does not run, messages wait: `stopped` tells so.
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
        """The task of ``what`` has got through all that it had to do: nothing is stopped there."""
        self.stopped.pop(what, None)


def _shown(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")
