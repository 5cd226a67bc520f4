"""The flags of nsq_to_file, and what is refused before anything is done.

Spec: tools, nsq_to_file.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket

from trionsq import durations
from trionsq.options import BOOL, DURATION, INT, STRING, STRINGS, option
from trionsq.tools.common import ConsumerOptions
from trionsq.tools.nsq_to_file import names
from trionsq.tools.nsq_to_file.topic_log import Settings

__all__ = ["Options", "refusal", "settings_of"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options(ConsumerOptions):
    """All flags; durations in nanoseconds."""

    log_level: str = option("log-level", "info", STRING, "debug, info, warn, error or fatal")
    log_prefix: str = option("log-prefix", "[nsq_to_file] ", STRING, "begins each log line")

    topic: tuple[str, ...] = option("topic", (), STRINGS, "topic to write to files")
    topic_pattern: str = option(
        "topic-pattern", "", STRING, "regular expression of the topics that nsqlookupd has"
    )
    topic_refresh_ns: int = option(
        "topic-refresh", durations.MINUTE_NS, DURATION, "how often nsqlookupd is asked for topics"
    )
    channel: str = option("channel", "nsq_to_file", STRING, "channel to read from")
    http_client_connect_timeout_ns: int = option(
        "http-client-connect-timeout", 2 * durations.SECOND_NS, DURATION, "to reach nsqlookupd"
    )
    http_client_request_timeout_ns: int = option(
        "http-client-request-timeout", 5 * durations.SECOND_NS, DURATION, "for its answer"
    )

    output_dir: str = option("output-dir", "/tmp", STRING, "folder of the files")
    work_dir: str = option(
        "work-dir", "", STRING, "folder of the files in progress", note="default: the output-dir"
    )
    datetime_format: str = option(
        "datetime-format", "%Y-%m-%d_%H", STRING, "what <DATETIME> stands for, as in strftime"
    )
    filename_format: str = option(
        "filename-format",
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        STRING,
        "name, of <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV>",
    )
    host_identifier: str = option(
        "host-identifier",
        "",
        STRING,
        "what <HOST> stands for; may have <SHORT_HOST> or <HOSTNAME> in it",
        note="default: the short host name",
    )
    gzip: bool = option("gzip", False, BOOL, "compress the files")
    gzip_level: int = option("gzip-level", 6, INT, "1 (fastest) to 9 (smallest)")
    skip_empty_files: bool = option("skip-empty-files", False, BOOL, "make files only for messages")
    rotate_size: int = option(
        "rotate-size", 0, INT, "begin another file after so many bytes", note="0: never"
    )
    rotate_interval_ns: int = option(
        "rotate-interval", 0, DURATION, "begin another file after so long", note="0: never"
    )
    sync_interval_ns: int = option(
        "sync-interval", 30 * durations.SECOND_NS, DURATION, "messages are on disk after so long"
    )


def refusal(options: Options) -> str:
    """Why these options can't be used, beyond what all tools refuse; or nothing."""
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


def settings_of(options: Options, topic: str) -> Settings:
    """How the files of one topic are written.

    Raises:
        MissingRevisionError: the file name's format has no place for the revision.
    """
    settings = Settings(
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
    host = names.host_identifier(options.host_identifier, socket.gethostname())

    def name(pid: int | str) -> str:
        text, gzip = options.filename_format, options.gzip
        return names.name_format(text, topic, host, pid, gzip=gzip, needs_revision=needs_revision)

    leftovers = None
    if settings.has_work_dir:
        leftovers = names.leftover_pattern(name(names.PID), options.datetime_format)
    return dataclasses.replace(settings, name_format=name(os.getpid()), leftovers=leftovers)
