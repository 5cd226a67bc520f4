"""The flags of nsq_to_file, and the file names and settings that follow from them.

Pure functions, except that the defaults ask for the host's name and the process id.

Spec: tools, nsq_to_file (datetime-format, filename-format, host-identifier).
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from datetime import datetime
from typing import Final

from trionsq import durations
from trionsq.options import BOOL, DURATION, INT, STRING, STRINGS, option
from trionsq.tools.fromlog import FromLogOptions

__all__ = ["DATETIME", "REV", "LogSettings", "MissingRevisionError", "NsqToFileOptions"]
__all__ += ["format_datetime", "host_identifier", "name_format", "path_of", "unfinished_pattern"]
__all__ += ["refusal", "settings_of", "with_revision"]

DATETIME: Final = "<DATETIME>"
REV: Final = "<REV>"
PID: Final = "<PID>"

_DIRECTIVES: Final = re.compile(r"%([BbmAadHIMSYypZz%])")
_DIGITS: Final = "mdHIMSYy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqToFileOptions(FromLogOptions):
    """The flags; durations in nanoseconds."""

    log_level: str = option("log-level", "info", STRING, "debug, info, warn, error or fatal")
    log_prefix: str = option("log-prefix", "[nsq_to_file] ", STRING, "prefix of each log line")

    topic: tuple[str, ...] = option("topic", (), STRINGS, "topic to write to files")
    topic_pattern: str = option(
        "topic-pattern", "", STRING, "regular expression of topics to find at nsqlookupd"
    )
    topic_refresh_ns: int = option(
        "topic-refresh", durations.MINUTE_NS, DURATION, "how often to ask nsqlookupd for topics"
    )
    channel: str = option("channel", "nsq_to_file", STRING, "channel to read from")
    http_client_connect_timeout_ns: int = option(
        "http-client-connect-timeout",
        2 * durations.SECOND_NS,
        DURATION,
        "time limit to connect to nsqlookupd",
    )
    http_client_request_timeout_ns: int = option(
        "http-client-request-timeout",
        5 * durations.SECOND_NS,
        DURATION,
        "time limit of a request to nsqlookupd",
    )

    output_dir: str = option("output-dir", "/tmp", STRING, "folder of finished files")
    work_dir: str = option(
        "work-dir", "", STRING, "folder of files in progress", note="default: the output-dir"
    )
    datetime_format: str = option(
        "datetime-format", "%Y-%m-%d_%H", STRING, "format of <DATETIME>, as for strftime"
    )
    filename_format: str = option(
        "filename-format",
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        STRING,
        "file name, with <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV>",
    )
    host_identifier: str = option(
        "host-identifier",
        "",
        STRING,
        "value of <HOST>; it may contain <SHORT_HOST> or <HOSTNAME>",
        note="default: the short host name",
    )
    gzip: bool = option("gzip", False, BOOL, "compress the files")
    gzip_level: int = option("gzip-level", 6, INT, "1 (fastest) to 9 (smallest)")
    skip_empty_files: bool = option(
        "skip-empty-files", False, BOOL, "create files only for messages"
    )
    rotate_size: int = option(
        "rotate-size", 0, INT, "start a new file after this many bytes", note="0: never"
    )
    rotate_interval_ns: int = option(
        "rotate-interval", 0, DURATION, "start a new file after this time", note="0: never"
    )
    sync_interval_ns: int = option(
        "sync-interval", 30 * durations.SECOND_NS, DURATION, "time between fsyncs of the messages"
    )


def refusal(options: NsqToFileOptions) -> str:
    """Why the options are refused, or ""; besides the checks of all tools."""
    if not options.channel:
        return "--channel is required"
    for flag, value in (
        ("http-client-connect-timeout", options.http_client_connect_timeout_ns),
        ("http-client-request-timeout", options.http_client_request_timeout_ns),
        ("topic-refresh", options.topic_refresh_ns),
        ("sync-interval", options.sync_interval_ns),
        ("max-in-flight", options.max_in_flight),
    ):
        if value <= 0:
            return f"--{flag} should be positive"
    if not 1 <= options.gzip_level <= 9:
        return f"invalid --gzip-level value ({options.gzip_level}), should be 1-9"
    if not options.topic and not options.topic_pattern:
        return "--topic or --topic-pattern required"
    if not options.topic and not options.lookupd_http_address:
        return "--lookupd-http-address must be specified when no --topic specified"
    try:
        re.compile(options.topic_pattern)
    except re.error as error:
        return f"--topic-pattern is invalid - {error}"
    return ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Where the files of one topic are, and when the next one starts.

    Attributes:
        name_format: the result of the function `name_format`.
        datetime_format: see `format_datetime`.
        output_dir, work_dir: folders of finished files and of files in progress; may be the same.
        gzip_level: 1 to 9; None: plain files.
        rotate_size: maximum size of a file in bytes, before compression; 0: unlimited.
        rotate_interval_s: maximum age of a file; 0: unlimited.
        skip_empty_files: create files only for messages, not merely because time passes.
        unfinished: matches names in the work dir that a crashed process may have left; None: leave
            such files where they are.
    """

    name_format: str
    datetime_format: str
    output_dir: str
    work_dir: str
    gzip_level: int | None = None
    rotate_size: int = 0
    rotate_interval_s: float = 0.0
    skip_empty_files: bool = False
    unfinished: re.Pattern[str] | None = None

    @property
    def has_work_dir(self) -> bool:
        """Whether finished files are moved."""
        return os.path.normpath(self.work_dir) != os.path.normpath(self.output_dir)

    @property
    def is_exclusive(self) -> bool:
        """Whether files must be new; otherwise an existing file is continued."""
        return self.gzip_level is not None or self.rotate_interval_s > 0


def settings_of(options: NsqToFileOptions, topic: str) -> LogSettings:
    """The settings for the files of one topic.

    Raises:
        MissingRevisionError: --filename-format has no ``<REV>``, but needs it.
    """
    settings = LogSettings(
        name_format="",
        datetime_format=options.datetime_format,
        output_dir=options.output_dir,
        work_dir=options.work_dir or options.output_dir,
        gzip_level=options.gzip_level if options.gzip else None,
        rotate_size=options.rotate_size,
        rotate_interval_s=options.rotate_interval_ns / durations.SECOND_NS,
        skip_empty_files=options.skip_empty_files,
    )
    needs_revision = settings.is_exclusive or settings.rotate_size > 0 or settings.has_work_dir
    host = host_identifier(options.host_identifier, socket.gethostname())

    def name(pid: int | str) -> str:
        text, gzip = options.filename_format, options.gzip
        return name_format(text, topic, host, pid, gzip=gzip, needs_revision=needs_revision)

    unfinished = None
    if settings.has_work_dir:
        unfinished = unfinished_pattern(name(PID), options.datetime_format)
    return dataclasses.replace(settings, name_format=name(os.getpid()), unfinished=unfinished)


class MissingRevisionError(ValueError):
    """The format needs ``<REV>`` to tell one file from the next, but does not have it."""


def format_datetime(text: str, now: datetime) -> str:
    """Fill in the directives of the format. Any other character stands for itself."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        # strftime does not write four digits of a year on every platform.
        return f"{now.year:04d}" if match[1] == "Y" else now.strftime(match[0])

    return _DIRECTIVES.sub(replace, text)


def _datetime_pattern(text: str) -> str:
    parts = _DIRECTIVES.split(text)
    parts[::2] = map(re.escape, parts[::2])
    for index in range(1, len(parts), 2):
        directive = parts[index]
        other = "%" if directive == "%" else "[^/]*?"
        parts[index] = r"\d+" if directive in _DIGITS else other
    return "".join(parts)


def host_identifier(text: str, hostname: str) -> str:
    """The value of ``<HOST>``; an empty text means the short host name."""
    short = hostname.partition(".")[0]
    return text.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) if text else short


def name_format(
    text: str, topic: str, host: str, pid: int | str, *, gzip: bool, needs_revision: bool
) -> str:
    """Fill in the format, except ``<DATETIME>`` and, if it is needed, ``<REV>``.

    Raises:
        MissingRevisionError: ``<REV>`` is needed, but missing.
    """
    if not needs_revision:
        text = text.replace(REV, "")
    elif REV not in text:
        raise MissingRevisionError(
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        )
    name = text.replace("<TOPIC>", topic).replace("<HOST>", host).replace(PID, str(pid))
    return f"{name}.gz" if gzip and not name.endswith(".gz") else name


def with_revision(name: str, revision: int) -> str:
    """The name with a revision filled in: ``-000001`` for 1."""
    return name.replace(REV, f"-{revision:06d}")


def path_of(folder: str, name: str) -> str:
    """The path of a name below a folder. The name may contain folders itself."""
    return os.path.normpath(os.path.join(folder, name.lstrip("/")))


def unfinished_pattern(name: str, datetime_format: str) -> re.Pattern[str]:
    """A pattern for the names of all times, revisions and processes, relative to their folder.

    Args:
        name: the result of `name_format` for the process `PID`, with ``<REV>``.
        datetime_format: see `format_datetime`.
    """
    parts = re.split(f"({DATETIME}|{REV}|{PID})", os.path.normpath(name.lstrip("/")))
    has_revision = False
    for index, part in enumerate(parts):
        if part == REV:
            parts[index] = "(?P=rev)" if has_revision else r"(?P<rev>-\d{6,})"
            has_revision = True
        elif part == DATETIME:
            parts[index] = _datetime_pattern(datetime_format)
        else:
            parts[index] = r"\d+" if part == PID else re.escape(part)
    return re.compile("".join(parts))
