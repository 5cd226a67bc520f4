"""Fewer lines in the log of a receiver: each connection repeats what all of them meet."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

__all__ = ["RepeatFilter", "limit_repeated_lines"]

_LOGGERS: Final = ("trionsq.client", "pipelines.receiver", "pipelines.wal")
_PERIOD_S: Final = 60.0
_MAX_TEXTS: Final = 1000
# The id of a message, and the client library's name of a channel
_VARIABLE: Final = re.compile(r"\b[0-9a-f]{16}\b|^[\w.#-]+:[\w.#-]+: (?=\S+:\d+: )")


class RepeatFilter(logging.Filter):
    """Lets a line through once a minute; the next one says how many there were meanwhile.

    Lines that differ only in the id of a message are the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # When a text was let through, and how often it has come since
        self._texts: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line."""
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        text = _VARIABLE.sub("", record.getMessage())
        now_s = self._clock()
        since_s, count = self._texts.get(text, (-_PERIOD_S, 0))
        if now_s - since_s < _PERIOD_S:
            self._texts[text] = since_s, count + 1
            return False
        if len(self._texts) >= _MAX_TEXTS:
            self._texts.clear()
        self._texts[text] = now_s, 0
        if count:
            record.msg, record.args = f"{record.getMessage()} ({count} times more before)", ()
        return True


_FILTER: Final = RepeatFilter()


def limit_repeated_lines() -> None:
    """Limit the lines of this process, which is a receiver's. A second call does nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
