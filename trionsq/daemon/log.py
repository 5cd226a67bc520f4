"""NSQ's classic log lines on stderr, which operators' tools and clients' test suites read; or JSON.

``[nsqd] 2026/11/21 13:51:49.123456 INFO: TCP: listening on 127.0.0.1:4150``, in local time. The
project logs through the standard library, under the logger ``trionsq``. With --log-format=json
each line is an object instead; docs/logs.md tells its members.
"""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

LOGGER = "trionsq"

_task_prefix: ContextVar[str | None] = ContextVar("task_prefix", default=None)

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


def set_task_prefix(prefix: str) -> None:
    """Set the prefix of log lines of this task and of tasks that it starts later.

    It distinguishes several daemons in one process.
    """
    _task_prefix.set(prefix)


def task_prefix(default: str) -> str:
    """The prefix of this task or of a task above it, else *default*."""
    prefix = _task_prefix.get()
    return default if prefix is None else prefix


class ClassicFormatter(logging.Formatter):
    """Formats a record as *prefix* (or the task's), date, time with microseconds, level, text.

    A traceback, if there is one, follows on lines of its own.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of *record*, without its traceback."""
        moment = datetime.fromtimestamp(record.created)
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        return f"{task_prefix(self._prefix)}{moment:%Y/%m/%d %H:%M:%S.%f} {level}: {record.message}"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, whatever its text and traceback contain.

    Members: time (RFC 3339, UTC, microseconds), level (as in --log-level), daemon (the prefix, or
    the task's, without brackets), logger, message, and exception if there is a traceback.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*."""
        moment = datetime.fromtimestamp(record.created, UTC)
        document = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": _shown_level(record.levelno),
            "daemon": task_prefix(self._prefix).strip().removeprefix("[").removesuffix("]"),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            document["exception"] = self.formatException(record.exc_info)
        # ASCII: no text can break the line, and any stream can encode it.
        return json.dumps(document)


def _shown_level(number: int) -> str:
    """Return the highest NSQ level that is not above the standard library's *number*."""
    return next((name for name, least in reversed(_LEVELS.items()) if number >= least), "debug")


_FORMATTERS: dict[str, type[ClassicFormatter | JsonFormatter]] = {
    "classic": ClassicFormatter,
    "json": JsonFormatter,
}


def level_of(name: str) -> int:
    """Return the standard library's level for one of NSQ's; raises KeyError on another name."""
    return _LEVELS[name]


def configure(
    prefix: str, level: str, stream: TextIO | None = None, form: str = "classic"
) -> logging.Logger:
    """Send the project's log to *stream* (default: stderr) from *level* on, and return its logger.

    *level* is debug, info, warn, error or fatal; *form* classic or json. A second call replaces
    the first.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_FORMATTERS[form](prefix))
    logger = logging.getLogger(LOGGER)
    for earlier in list(logger.handlers):
        logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(level_of(level))
    logger.propagate = False
    return logger


def set_level(level: str) -> None:
    """Change the minimum level to *level*, as for `configure`."""
    logging.getLogger(LOGGER).setLevel(level_of(level))
