"""What the tools share: flags, addresses, client options, log lines, signals, progress.

Spec: tools (common part); options (command line rules).
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

import trio

from trionsq import NSQ_VERSION
from trionsq.client import ClientError, Config, ConfigError, ProtocolError
from trionsq.daemon import flags
from trionsq.logtext import first_error
from trionsq.options import BOOL, INT, STRINGS, option

__all__ = [
    "ConsumerOptions",
    "ToolError",
    "checked_options",
    "client_config",
    "configure_log",
    "consumer_config",
    "die",
    "on_signal",
    "one_kind_of_address",
    "read_options",
    "run_tool",
    "wrong_flag",
]

T = TypeVar("T")

# Operators' scripts know the clients of a tool by the whole of this.
_LIBRARY: Final = "go-nsq/1.1.0"
_LEVELS: Final = {
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
}

log = logging.getLogger("trionsq.tools")


class ToolError(Exception):
    """Ends a tool with one log line and exit code 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The flags of every tool that consumes."""

    version: bool = option("version", False, BOOL, "print the version", key=None)
    nsqd_tcp_address: tuple[str, ...] = option(
        "nsqd-tcp-address", (), STRINGS, "host:port of an nsqd", key=None
    )
    lookupd_http_address: tuple[str, ...] = option(
        "lookupd-http-address", (), STRINGS, "host:port of an nsqlookupd", key=None
    )
    consumer_opt: tuple[str, ...] = option(
        "consumer-opt", (), STRINGS, "name,value of the client library", key=None
    )
    max_in_flight: int = option(
        "max-in-flight", 200, INT, "messages in flight at most, for each topic", key=None
    )


# From the command line


def read_options(options: type[T], tool: str, words: Sequence[str]) -> tuple[T, tuple[str, ...]]:
    """Return the options that *words* give, and the words after the flags.

    *options* is a dataclass as in `trionsq.options`.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error.
    """
    try:
        given = flags.parse(options, words)
    except flags.HelpRequested:
        sys.stdout.write(flags.usage(options, tool))
        raise SystemExit(0) from None
    except flags.UsageError as error:
        wrong_flag(options, tool, str(error))
    if given.values.get("version"):
        print(f"{tool} v{NSQ_VERSION}")
        raise SystemExit(0)
    values: dict[str, Any] = dict(given.values)
    return options(**values), given.rest


def wrong_flag(options: type, tool: str, text: str) -> NoReturn:
    """Say what is wrong with a flag, show the usage, and exit with 2."""
    sys.stderr.write(f"{text}\n{flags.usage(options, tool)}")
    raise SystemExit(2)


def die(text: str) -> NoReturn:
    """Write one log line and exit with 1."""
    sys.stderr.write(f"{datetime.now():%Y/%m/%d %H:%M:%S} {text}\n")
    raise SystemExit(1)


def one_kind_of_address(
    nsqds: Sequence[str], lookupds: Sequence[str], nsqd_flag: str = "--nsqd-tcp-address"
) -> None:
    """Exit with 1 unless exactly one of the two lists has addresses."""
    if not nsqds and not lookupds:
        die(f"{nsqd_flag} or --lookupd-http-address required")
    if nsqds and lookupds:
        die(f"use {nsqd_flag} or --lookupd-http-address not both")


def client_config(
    options: type, tool: str, flag: str, assignments: Sequence[str], **fixed: Any
) -> Config:
    """The client library's options from a repeated flag such as --consumer-opt.

    Args:
        options: the tool's, for the usage.
        tool: its name, which nsqd shows with the clients.
        flag: as ``--consumer-opt``.
        assignments: ``name,value`` each.
        fixed: fields of `Config` that the tool's own flags decide.

    Raises:
        SystemExit: 2 after a bad assignment, or one that names a bad file.
    """
    try:
        config = Config().parse(*assignments)
        config = dataclasses.replace(config, user_agent=f"{tool}/{NSQ_VERSION} {_LIBRARY}", **fixed)
        config.check_files()
    except ConfigError as error:
        wrong_flag(options, tool, f"invalid value for flag -{flag.lstrip('-')}: {error}")
    return config


Consuming = TypeVar("Consuming", bound=ConsumerOptions)


def checked_options(
    options: type[Consuming],
    tool: str,
    argv: Sequence[str] | None,
    early_refusal: Callable[[Consuming], str],
    refusal: Callable[[Consuming], str],
) -> Consuming:
    """The options of a tool that consumes.

    Args:
        options: its class of options.
        tool: its name.
        argv: its flags; None: the process's.
        early_refusal: says why they can't be used, "" if they can; asked before the addresses.
        refusal: the same, asked after them.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    given, _ = read_options(options, tool, sys.argv[1:] if argv is None else argv)
    if why := early_refusal(given):
        die(why)
    one_kind_of_address(given.nsqd_tcp_address, given.lookupd_http_address)
    if why := refusal(given):
        die(why)
    return given


def consumer_config(options: ConsumerOptions, tool: str, max_in_flight: int = 0) -> Config:
    """The client library's options of a tool that consumes.

    A message that came too often would be finished though nothing was done with it: none is,
    unless --consumer-opt says so. ``max_in_flight`` stands in for --max-in-flight.

    Raises:
        SystemExit: as `client_config`.
    """
    return client_config(
        type(options),
        tool,
        "--consumer-opt",
        ("max_attempts,0", *options.consumer_opt),
        max_in_flight=max_in_flight or options.max_in_flight,
    )


# Log lines


class _Formatter(logging.Formatter):
    """``2026/11/21 13:51:49 WRN text``; INFO of a tool itself is without a level."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of *record*, without its traceback."""
        moment = datetime.fromtimestamp(record.created)
        level = f"{_LEVELS.get(record.levelno, record.levelname)} "
        if record.levelno == logging.INFO and record.name == log.name:
            level = ""
        return f"{moment:%Y/%m/%d %H:%M:%S} {level}{record.message}"


def configure_log(level: int = logging.INFO) -> logging.Logger:
    """Send the log of the tool and of the client library to stderr; return the tool's logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    logger = logging.getLogger("trionsq")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    return log


# Running


def run_tool(work: Callable[..., Awaitable[int]], *arguments: object) -> int:
    """Run *work* on trio; its exit code, or 1 after a line that says why it failed.

    ToolError, ClientError and ProtocolError are such failures, alone or in groups; anything else
    is a defect and is raised. SIGINT while no `on_signal` handles it: 130.
    """
    code = 1
    failure: BaseException | None = None
    try:
        code = trio.run(work, *arguments)
    except* (ToolError, ClientError, ProtocolError) as group:
        failure = group
    except* KeyboardInterrupt:
        code = 130
    if failure is not None:
        die(str(first_error(failure)))
    return code


async def on_signal(
    action: Callable[[int], None],
    *signals: int,
    once: bool = True,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call *action* with a signal that comes; to be started by ``nursery.start``.

    Args:
        action: a synchronous function.
        signals: by default SIGINT and SIGTERM.
        once: return after the first, so that a second one ends the process as it would have
            without us. Else go on until cancelled.
    """
    with trio.open_signal_receiver(*(signals or (signal.SIGINT, signal.SIGTERM))) as received:
        task_status.started()
        async for signum in received:
            action(signum)
            if once:
                return
