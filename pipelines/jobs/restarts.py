"""When a query that failed is started again: a full disk, a store or nsqd away, a killed receiver.

Nothing is lost meanwhile: messages wait at nsqd and in the log, and Spark repeats the microbatch.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pipelines.errors import ReceiverKilledError, StoreError
from pipelines.jobs.terminal import one_line, print_line

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["MAX_RESTARTS", "RestartBound", "Restarts", "was_receiver_killed"]

MAX_RESTARTS: Final = 8
"""In a row, without a finished microbatch between them. The pauses are 3 minutes together."""

_MAX_PAUSE_S: Final = 60.0
_POLL_S: Final = 1.0
# So much is free again on a disk with room.
_ROOM_BYTES: Final = 8 << 20
_ROOM_PART: Final = 20
_NO_ROOM: Final = re.compile("No space left on device|Disk quota exceeded", re.IGNORECASE)
# The last: Spark's limit of 10 s for a Python process to start, which a busy machine exceeds.
_PASSING: Final = re.compile(
    r"\bpipelines\.errors\.(?:StoreError|NsqdAwayError): |Python worker failed to connect back"
)


# Spark's own text for a killed receiver is "(no cause message)".
_CONNECTION_LOST: Final = ("java.io.EOFException", "java.net.SocketException")
_RUNNER: Final = "PythonStreamingSourceRunner"


def was_receiver_killed(query: StreamingQuery) -> bool:
    """Whether a query failed because the process of its source, with the receiver, is gone."""
    failure: Any = query._jsq.exception()
    cause = failure.get().getCause() if failure.isDefined() else None
    if cause is None or cause.getClass().getName() not in _CONNECTION_LOST:
        return False
    return any(_RUNNER in frame.getClassName() for frame in cause.getStackTrace())


class RestartBound:
    """Allows ``most`` restarts within any ``period_s``."""

    def __init__(
        self,
        most: int = 5,
        period_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self.period_s = period_s
        self._clock = clock
        self._times: deque[float] = deque()

    def allows_one(self) -> bool:
        """Count a restart, if it is within the bound."""
        now_s = self._clock()
        while self._times and now_s - self._times[0] >= self.period_s:
            self._times.popleft()
        if len(self._times) >= self.most:
            return False
        self._times.append(now_s)
        return True


class Restarts:
    """Decides after each failure, waits, and tells why."""

    def __init__(self, name: str, folders: Mapping[str, str], stopping: threading.Event) -> None:
        """
        Args:
            name: of the job.
            folders: that a query writes to, by the flag that named them.
            stopping: ends a wait.
        """
        self._name = name
        self._folders = folders
        self._stopping = stopping
        self._restarts = 0
        self._batches = 0
        self._kills = RestartBound()

    def wait(self, failure: Exception, batches: int) -> None:
        """Return when the query may be started again.

        Args:
            failure: of the query.
            batches: microbatches that have finished since the job began.

        Raises the failure: a restart does not help, or several did not.
        """
        if isinstance(failure, ReceiverKilledError):
            if not self._kills.allows_one():
                raise ReceiverKilledError(
                    f"{failure}, {self._kills.most + 1} times within "
                    f"{self._kills.period_s / 60:.0f} minutes"
                )
            print_line(self._name, f"{failure}; the query starts again")
            return
        text = str(failure)
        is_full = _NO_ROOM.search(text) is not None
        if not (is_full or _PASSING.search(text) or isinstance(failure, StoreError)):
            raise failure
        if batches > self._batches:
            self._restarts = 0
        self._batches = batches
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise failure
        if is_full:
            self._wait_for_room()
        else:
            print_line(self._name, f"{one_line(failure)}; the query starts again soon")
        pause_s = min(_MAX_PAUSE_S, 2.0 ** (self._restarts - 1))
        self._stopping.wait(pause_s)

    def _wait_for_room(self) -> None:
        full = self._full_folders()
        if full:
            where = f"{', '.join(full)}; the query waits for room"
        else:
            where = f"{', '.join(self._folders.values())} have room again; the query starts again"
        print_line(self._name, f"no space left on device: {where}")
        while self._full_folders() and not self._stopping.wait(_POLL_S):
            pass
        if full and not self._stopping.is_set():
            print_line(self._name, "there is room again, the query goes on")

    def _full_folders(self) -> list[str]:
        """The folders without room, with their flags."""
        return [f"{path} ({flag})" for flag, path in self._folders.items() if _is_full(path)]


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    room = min(_ROOM_BYTES, disk.f_blocks * disk.f_frsize // _ROOM_PART)
    return disk.f_bavail * disk.f_frsize < room
