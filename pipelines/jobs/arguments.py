"""The flags that jobs share, and the options of format nsq that they become.

A flag has the name that the command line tools use for the same thing.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pipelines.errors import FolderError, OptionsError, UsageError
from pipelines.options import byte_size, duration_s, log_place
from trionsq.hostport import split_address

__all__ = [
    "add_addresses",
    "add_destination",
    "add_producer",
    "add_session",
    "add_source",
    "duration",
    "listener_address",
    "local_folder",
    "pairs",
    "require_one_kind",
    "sink_options",
    "size",
    "source_options",
    "split",
    "window",
]

T = TypeVar("T")
_MAX_PORT = 65_535
_WINDOW = re.compile(r"([0-9]+)\s*(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_session(parser: argparse.ArgumentParser) -> None:
    """Spark's own flags: --master, --conf."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="default: spark-submit's, else local[*]")
    group.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="a Spark setting"
    )


def add_source(parser: argparse.ArgumentParser, channel: str, trigger: str) -> None:
    """The topics to read, the folders for the job's state, and the trigger."""
    group = parser.add_argument_group("source")
    group.add_argument(
        "--topic",
        metavar="TOPIC",
        action="append",
        default=[],
        help="one, several, or a regular expression (with --lookupd-http-address)",
    )
    group.add_argument("--channel", default=channel, help="default: %(default)s")
    add_addresses(group, "")
    group.add_argument(
        "--consumer-opt",
        metavar="NAME,VALUE",
        action="append",
        default=[],
        help="an option of the client library: tls_v1, auth_secret,...",
    )
    group.add_argument(
        "--source-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of format nsq: maxInFlight, maxMessagesPerTrigger,...; mode=log reads "
        "topics with a log from nsqd, without a receiver",
    )
    group = parser.add_argument_group("running")
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="state for the next start; one folder for each running job",
    )
    group.add_argument(
        "--wal",
        metavar="DIR",
        type=_argument(log_place),
        help="the log of received messages (default: in --checkpoint); DIR/*: the logs of "
        "receivers of their own (see receive), without --topic",
    )
    group.add_argument(
        "--trigger",
        metavar="TIME",
        type=duration(),
        default=trigger,
        help="time between microbatches, 0: none (default: %(default)s)",
    )
    group.add_argument("--once", action="store_true", help="read what is available, then exit")
    group.add_argument(
        "--metrics-address",
        metavar="HOST:PORT",
        type=_argument(listener_address),
        help="serve /metrics of the query for Prometheus there (:9404: on all addresses)",
    )


def add_destination(
    parser: argparse.ArgumentParser, *, topic_help: str, addresses_help: str
) -> None:
    """The topic and the cluster to publish to, under nsq_to_nsq's names."""
    group = parser.add_argument_group("destination")
    group.add_argument("--destination-topic", metavar="TOPIC", help=topic_help)
    add_addresses(group, "destination-", addresses_help)
    add_producer(group)


def add_producer(group: argparse._ArgumentGroup) -> None:
    """Options of publishing."""
    group.add_argument(
        "--producer-opt",
        metavar="NAME,VALUE",
        action="append",
        default=[],
        help="an option of the client library",
    )
    group.add_argument(
        "--sink-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of format nsq: batchMessages, retries,...",
    )


def add_addresses(group: argparse._ArgumentGroup, prefix: str, suffix: str = "") -> None:
    """--nsqd-tcp-address and --lookupd-http-address, with a prefix to the name."""
    for name, daemon in (("nsqd-tcp-address", "nsqd"), ("lookupd-http-address", "nsqlookupd")):
        group.add_argument(
            f"--{prefix}{name}",
            metavar="HOST:PORT",
            action="append",
            default=[],
            help=f"address of an {daemon}{suffix}; may be repeated",
        )


def require_one_kind(nsqds: Sequence[str], lookupds: Sequence[str], prefix: str = "") -> None:
    """Raise UsageError unless there are addresses of exactly one kind."""
    flags = f"--{prefix}nsqd-tcp-address", f"--{prefix}lookupd-http-address"
    if not nsqds and not lookupds:
        raise UsageError(f"{flags[0]} or {flags[1]} is required")
    if nsqds and lookupds:
        raise UsageError(f"use {flags[0]} or {flags[1]}, not both")


def split(values: Sequence[str]) -> str:
    """Repeated flags, with or without commas, as one text with commas."""
    return ",".join(part.strip() for value in values for part in value.split(","))


def pairs(flag: str, values: Sequence[str], separator: str = "=") -> dict[str, str]:
    """Each ``NAME=VALUE`` as an item. With ``,`` a name alone means true. Raises UsageError."""
    items = {}
    for text in values:
        name, sign, value = text.partition(separator)
        if not name or (not sign and separator == "="):
            raise UsageError(f"{flag}: {text!r} is not NAME{separator}VALUE")
        items[name] = value if sign else "true"
    return items


# Types of values


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse`` with its ValueError as the error that argparse shows."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def duration() -> Callable[[str], float]:
    """``1m30s`` or ``250ms``, in seconds."""
    return _argument(duration_s)


def listener_address(text: str) -> tuple[str, int]:
    """``127.0.0.1:9404``, or ``:9404`` for all addresses. Raises ValueError."""
    address = split_address(text)
    if address is None or address[1] > _MAX_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return address[0] or "0.0.0.0", address[1]


def size(minimum: int) -> Callable[[str], int]:
    """``512m`` or ``4g``, in bytes; at least ``minimum``."""

    def parse(text: str) -> int:
        value = byte_size(text)
        if value < minimum:
            raise ValueError(f"must be at least {minimum} bytes, not {value}")
        return value

    return _argument(parse)


def window() -> Callable[[str], str]:
    """``10s``, as Spark writes it: ``10 seconds``."""

    def parse(text: str) -> str:
        match = _WINDOW.fullmatch(text.strip())
        if match is None or not int(match[1]):
            raise ValueError(f"{text!r} is not a time such as 10s or 5m")
        return f"{match[1]} {_UNITS[match[2]]}"

    return _argument(parse)


def local_folder(text: str, flag: str) -> Path:
    """The folder that a flag names; it is made if necessary.

    Raises:
        FolderError: it can't be made, or the URL names an object store, which has no rename.
    """
    text = text.removeprefix("file://")
    if "://" in text:
        raise FolderError(f"{flag}: {text} is a URL; a mounted folder is needed")
    path = Path(text).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{flag}: {path} can't be made: {error.strerror}") from error
    return path


# Options of format nsq


def source_options(arguments: argparse.Namespace, checkpoint: Path) -> dict[str, str]:
    """Options of the stream. Raises UsageError."""
    from pipelines.source.options import LogsOptions, StreamOptions, logs_root
    from pipelines.topiclog.options import is_log_mode

    options = pairs("--source-option", arguments.source_option)
    if _check(lambda: is_log_mode(options)):
        return _log_options(arguments, options)
    if arguments.wal is not None and logs_root(arguments.wal) is not None:
        options["walPath"] = arguments.wal
        _check(lambda: LogsOptions.read(options))
        return options
    if not arguments.topic:
        raise UsageError("--topic is required")
    require_one_kind(arguments.nsqd_tcp_address, arguments.lookupd_http_address)
    options = {
        "topic": ",".join(arguments.topic),
        "channel": arguments.channel,
        "walPath": arguments.wal or str(checkpoint / "wal"),
        **_address_options(arguments.nsqd_tcp_address, arguments.lookupd_http_address),
        **_client_options("--consumer-opt", arguments.consumer_opt),
        **options,
    }
    _check(lambda: StreamOptions.read(options))
    return options


def _log_options(arguments: argparse.Namespace, options: Mapping[str, str]) -> dict[str, str]:
    """With ``mode=log``: no receiver, so neither its addresses nor its log."""
    from pipelines.topiclog.options import TopicLogOptions

    if not arguments.topic:
        raise UsageError("--topic is required")
    if arguments.wal is not None:
        raise UsageError("--wal is the log of a receiver: mode=log has none")
    if arguments.nsqd_tcp_address:
        raise UsageError(
            "mode=log reads by HTTP: in place of --nsqd-tcp-address give --lookupd-http-address "
            "or --source-option=nsqd.http.addresses=HOST:PORT"
        )
    given = {
        "topic": ",".join(arguments.topic),
        "channel": arguments.channel,
        "lookupd.http.addresses": split(arguments.lookupd_http_address),
    }
    found = {
        **{name: value for name, value in given.items() if value},
        **_client_options("--consumer-opt", arguments.consumer_opt),
        **options,
    }
    _check(lambda: TopicLogOptions.read_stream(found))
    return found


def sink_options(arguments: argparse.Namespace, topic: str | None) -> dict[str, str]:
    """Options of the sink at the destination, which is the source's cluster by default.

    Raises:
        UsageError: an option is invalid.
    """
    from pipelines.sink.options import SinkOptions

    nsqds = arguments.destination_nsqd_tcp_address
    lookupds = arguments.destination_lookupd_http_address
    if nsqds or lookupds:
        require_one_kind(nsqds, lookupds, "destination-")
        client = _client_options("--producer-opt", arguments.producer_opt)
    else:
        nsqds, lookupds = arguments.nsqd_tcp_address, arguments.lookupd_http_address
        values = arguments.producer_opt or getattr(arguments, "consumer_opt", [])
        client = _client_options("--producer-opt", values)
    options = {
        **({} if topic is None else {"topic": topic}),
        **_address_options(nsqds, lookupds),
        **client,
        **pairs("--sink-option", arguments.sink_option),
    }
    _check(lambda: SinkOptions.read(options))
    return options


def _address_options(nsqds: list[str], lookupds: list[str]) -> dict[str, str]:
    if nsqds:
        return {"nsqd.tcp.addresses": split(nsqds)}
    return {"lookupd.http.addresses": split(lookupds)}


def _client_options(flag: str, values: list[str]) -> dict[str, str]:
    return {f"client.{name}": value for name, value in pairs(flag, values, ",").items()}


def _check(read: Callable[[], T]) -> T:
    """What it reads. Raises UsageError with the problems of an OptionsError in one line."""
    try:
        return read()
    except OptionsError as error:
        lines = str(error).partition("\nvalid options:")[0].splitlines()
        raise UsageError("; ".join(line.strip() for line in lines[1:])) from error
