"""Failures of a query after which a job starts it again, with a bound."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["KILLED", "RestartBound", "was_receiver_killed"]

KILLED: Final = (
    "the receiver's process was killed, most likely because the machine or the container ran out "
    "of memory"
)
# Spark's own text for this is "(no cause message)".
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
