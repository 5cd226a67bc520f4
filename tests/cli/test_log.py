"""Log lines: the form that operators' tools and clients' test suites read."""

import io
import logging
import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from trionsq.cli import log


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    logger = logging.getLogger(log.LOGGER)
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_a_line_is_prefix_time_level_text() -> None:
    """The line is exactly the classic one, in local time with microseconds."""
    record = logging.LogRecord("trionsq", logging.INFO, "", 0, "TCP: %s", ("ready",), None)
    record.created = datetime(2026, 11, 21, 13, 51, 49, 123456).timestamp()
    line = log.ClassicFormatter("[nsqd] ").format(record)
    assert line == "[nsqd] 2026/11/21 13:51:49.123456 INFO: TCP: ready"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]),
        ("info", ["INFO", "WARNING", "ERROR", "FATAL"]),
        ("warn", ["WARNING", "ERROR", "FATAL"]),
        ("error", ["ERROR", "FATAL"]),
        ("fatal", ["FATAL"]),
    ],
)
def test_a_level_hides_what_is_below(level: str, shown: list[str]) -> None:
    """Each level of NSQ shows itself and what is graver, under NSQ's names."""
    stream = io.StringIO()
    logger = log.configure("", level, stream)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(number, "text")
    assert re.findall(r"([A-Z]+): text", stream.getvalue()) == shown


def test_configuring_again_does_not_repeat_lines() -> None:
    """A second configuration replaces the first; modules' loggers report through it."""
    first, second = io.StringIO(), io.StringIO()
    log.configure("a ", "info", first)
    log.configure("b ", "info", second)
    logging.getLogger("trionsq.broker.topic").info("text")
    assert first.getvalue() == ""
    assert re.fullmatch(r"b [\d/]{10} [\d:.]{15} INFO: text\n", second.getvalue())
