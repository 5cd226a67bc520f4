"""Log lines: the form that operators' tools and clients' test suites read."""

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookupd.cli import main as nsqlookupd
from trionsq.daemon import log
from trionsq.local.nsqd import main as nsqd


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


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """The objects of a log, one a line."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_tells_time_level_daemon_and_message() -> None:
    """The time is RFC 3339 in UTC with microseconds; the daemon is the prefix without brackets."""
    record = logging.LogRecord("trionsq", logging.WARNING, "", 0, "TCP: %s", ("ready",), None)
    record.created = datetime(2026, 11, 21, 13, 51, 49, 123456, UTC).timestamp()
    assert json.loads(log.JsonFormatter("[nsqd] ").format(record)) == {
        "time": "2026-11-21T13:51:49.123456Z",
        "level": "warn",
        "daemon": "nsqd",
        "logger": "trionsq",
        "message": "TCP: ready",
    }


def test_json_levels_are_those_of_the_option() -> None:
    """What --log-level takes is what the lines say."""
    stream = io.StringIO()
    logger = log.configure("", "debug", stream, "json")
    for level in ("debug", "info", "warn", "error", "fatal"):
        logger.log(log.level_of(level), level)
    assert [line["level"] for line in json_lines(stream)] == [
        line["message"] for line in json_lines(stream)
    ]


def test_a_traceback_stays_in_its_json_line() -> None:
    """It is a member of the object, so a reader of lines never sees half of one."""
    stream = io.StringIO()
    logger = log.configure("[nsqd] ", "info", stream, "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    (line,) = json_lines(stream)
    assert line["message"] == "failed"
    assert "ValueError: two\nlines" in line["exception"]


@given(st.text(st.characters()))
def test_any_text_is_one_json_line(text: str) -> None:
    """Line ends of every kind, NULs, lone surrogates: one ASCII line; the text comes back."""
    record = logging.LogRecord("trionsq", logging.INFO, "", 0, "%s", (text,), None)
    line = log.JsonFormatter("[nsqd] ").format(record)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == text


def test_the_task_s_prefix_is_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    """Where several daemons share a process, lines tell whose they are."""
    record = logging.LogRecord("trionsq", logging.INFO, "", 0, "text", (), None)
    token = log._task_prefix.set("[nsqd-2] ")
    try:
        assert json.loads(log.JsonFormatter("[trionsq] ").format(record))["daemon"] == "nsqd-2"
    finally:
        log._task_prefix.reset(token)


@pytest.mark.parametrize(
    ("main", "flag", "daemon", "text"),
    [
        (nsqd, "--sync-timeout=0s", "nsqd", "--sync-timeout must be > 0"),
        (nsqd, "--tcp-address=a:99999", "nsqd", "listen (a:99999) failed"),
        (nsqd, "--config=/nowhere/at/all", "nsqd", "/nowhere/at/all"),
        (nsqlookupd, "--http-address=a:99999", "nsqlookupd", "listen (a:99999) failed"),
    ],
)
def test_why_it_can_t_start_is_a_json_line_too(
    capsys: pytest.CaptureFixture[str], main: Any, flag: str, daemon: str, text: str, tmp_path: Any
) -> None:
    """--log-format=json holds from the first line to the last."""
    more = [f"--data-path={tmp_path}"] if main is nsqd else ["--tcp-address=127.0.0.1:0"]
    with pytest.raises(SystemExit) as ended:
        main(["--log-format=json", flag, *more])
    assert ended.value.code == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1]["level"] == "fatal"
    assert lines[-1]["daemon"] == daemon
    assert text in lines[-1]["message"]
