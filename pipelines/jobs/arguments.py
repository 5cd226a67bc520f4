"""The flags that jobs share. Names are those of the tools, where these have them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from pipelines.options import duration_s, folder
from pipelines.options import nbytes as _nbytes

__all__ = [
    "UsageError",
    "add_addresses",
    "add_destination",
    "add_producer",
    "add_session",
    "add_source",
    "duration",
    "only_one",
    "pairs",
    "size",
    "split",
    "window",
]

T = TypeVar("T")
_WINDOW = re.compile(r"([0-9]+)\s*(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class UsageError(Exception):
    """Flags that do not go together. Ends a job with the usage and exit code 2."""


def add_session(parser: argparse.ArgumentParser) -> None:
    """Spark's own: --master, --conf."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="default: spark-submit's, else local[*]")
    group.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="a setting of Spark's"
    )


def add_source(parser: argparse.ArgumentParser, channel: str, trigger: str) -> None:
    """What a stream is read from, where it keeps its state, and how it runs."""
    group = parser.add_argument_group("source")
    group.add_argument(
        "--topic",
        metavar="TOPIC",
        action="append",
        required=True,
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
        help="an option of format nsq: maxInFlight, maxMessagesPerTrigger,...",
    )
    group = parser.add_argument_group("running")
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="where to go on after a restart; one folder for each running job",
    )
    group.add_argument(
        "--wal",
        metavar="DIR",
        type=_read(folder),
        help="the log of received messages; in --checkpoint",
    )
    group.add_argument(
        "--trigger",
        metavar="TIME",
        type=duration(),
        default=trigger,
        help="between batches, 0: none (default: %(default)s)",
    )
    group.add_argument("--once", action="store_true", help="take what there is, then end")


def add_destination(
    parser: argparse.ArgumentParser, *, topic_help: str, addresses_help: str
) -> None:
    """Where messages are published, under the names of nsq_to_nsq."""
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


def add_addresses(group: argparse._ArgumentGroup, prefix: str, more: str = "") -> None:
    """--nsqd-tcp-address and --lookupd-http-address, with a prefix."""
    for name, what in (("nsqd-tcp-address", "nsqd"), ("lookupd-http-address", "nsqlookupd")):
        group.add_argument(
            f"--{prefix}{name}",
            metavar="HOST:PORT",
            action="append",
            default=[],
            help=f"of an {what}{more}; may be given several times",
        )


def only_one(first: Sequence[str], second: Sequence[str], prefix: str = "") -> None:
    """Raise UsageError unless exactly one kind of address is given."""
    flags = f"--{prefix}nsqd-tcp-address", f"--{prefix}lookupd-http-address"
    if not first and not second:
        raise UsageError(f"{flags[0]} or {flags[1]} is required")
    if first and second:
        raise UsageError(f"use {flags[0]} or {flags[1]}, not both")


def split(given: Sequence[str]) -> str:
    """Repeated flags, with or without commas, as one text with commas."""
    return ",".join(part.strip() for one in given for part in one.split(","))


def pairs(flag: str, given: Sequence[str], separator: str = "=") -> dict[str, str]:
    """``NAME=VALUE`` each. With ``,`` a lone name means true. Raises UsageError."""
    found = {}
    for one in given:
        name, sign, value = one.partition(separator)
        if not name or (not sign and separator == "="):
            raise UsageError(f"{flag}: {one!r} is not NAME{separator}VALUE")
        found[name] = value if sign else "true"
    return found


# Types of values


def _read(parse: Callable[[str], T]) -> Callable[[str], T]:
    def read(told: str) -> T:
        try:
            return parse(told)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def duration() -> Callable[[str], float]:
    """Seconds of ``1m30s``, ``250ms``."""
    return _read(duration_s)


def size(least: int) -> Callable[[str], int]:
    """Bytes of ``512m``, ``4g``; at least so many."""

    def parse(told: str) -> int:
        found = _nbytes(told)
        if found < least:
            raise ValueError(f"must be at least {least} bytes, not {found}")
        return found

    return _read(parse)


def window() -> Callable[[str], str]:
    """``10s`` in Spark's words: ``10 seconds``."""

    def parse(told: str) -> str:
        found = _WINDOW.fullmatch(told.strip())
        if found is None or not int(found[1]):
            raise ValueError(f"{told!r} is no time such as 10s or 5m")
        return f"{found[1]} {_UNITS[found[2]]}"

    return _read(parse)
