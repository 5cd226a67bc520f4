"""What all tools share: flags, addresses, client options, log lines, signals.

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
    "exit_with_usage",
    "on_signal",
    "one_kind_of_address",
    "read_options",
    "run_tool",
]

T = TypeVar("T")

# The second part of the user agent. Operators' scripts find the clients of a tool by the whole.
_LIBRARY: Final = "go-nsq/1.1.0"
_LEVELS: Final = {
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
}

log = logging.getLogger("trionsq.tools")


class ToolError(Exception):
    """An error that ends a tool with one log line and exit code 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The flags of every tool that consumes messages."""

    version: bool = option("version", False, BOOL, "print the version and exit")
    nsqd_tcp_address: tuple[str, ...] = option(
        "nsqd-tcp-address", (), STRINGS, "host:port of an nsqd"
    )
    lookupd_http_address: tuple[str, ...] = option(
        "lookupd-http-address", (), STRINGS, "host:port of an nsqlookupd"
    )
    consumer_opt: tuple[str, ...] = option(
        "consumer-opt", (), STRINGS, "option of the client library: name,value"
    )
    max_in_flight: int = option(
        "max-in-flight", 200, INT, "maximum messages in flight, for each topic"
    )


# From the command line


def read_options(options: type[T], tool: str, words: Sequence[str]) -> tuple[T, tuple[str, ...]]:
    """Read *words* by the options table of the dataclass *options* (see `trionsq.options`).

    Returns the options, and the words after the flags.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error.
    """
    try:
        line = flags.parse(options, words)
    except flags.HelpRequested:
        sys.stdout.write(flags.usage(options, tool))
        raise SystemExit(0) from None
    except flags.UsageError as error:
        exit_with_usage(options, tool, str(error))
    if line.values.get("version"):
        print(f"{tool} v{NSQ_VERSION}")
        raise SystemExit(0)
    values: dict[str, Any] = dict(line.values)
    return options(**values), line.rest


def exit_with_usage(options: type, tool: str, text: str) -> NoReturn:
    """Write *text* and the usage to stderr, and exit with 2."""
    sys.stderr.write(f"{text}\n{flags.usage(options, tool)}")
    raise SystemExit(2)


def die(text: str) -> NoReturn:
    """Write one log line to stderr, and exit with 1."""
    sys.stderr.write(f"{datetime.now():%Y/%m/%d %H:%M:%S} {text}\n")
    raise SystemExit(1)


def one_kind_of_address(
    nsqds: Sequence[str], lookupds: Sequence[str], nsqd_flag: str = "--nsqd-tcp-address"
) -> None:
    """Exit with 1 unless one of the two lists has addresses and the other has none."""
    if not nsqds and not lookupds:
        die(f"{nsqd_flag} or --lookupd-http-address required")
    if nsqds and lookupds:
        die(f"use {nsqd_flag} or --lookupd-http-address not both")


def client_config(
    options: type, tool: str, flag: str, assignments: Sequence[str], **fixed: Any
) -> Config:
    """The client library's options, from a repeated flag such as --consumer-opt.

    Args:
        options: the tool's options, for the usage.
        tool: its name, for the user agent.
        flag: the name of the flag.
        assignments: its values, ``name,value`` each.
        fixed: fields of `Config` that the tool's own flags set.

    Raises:
        SystemExit: 2 after a bad assignment, or one that names a bad file.
    """
    try:
        config = Config().parse(*assignments)
        config = dataclasses.replace(config, user_agent=f"{tool}/{NSQ_VERSION} {_LIBRARY}", **fixed)
        config.check_files()
    except ConfigError as error:
        exit_with_usage(options, tool, f"invalid value for flag -{flag.lstrip('-')}: {error}")
    return config


C = TypeVar("C", bound=ConsumerOptions)


def checked_options(
    options: type[C],
    tool: str,
    argv: Sequence[str] | None,
    early_refusal: Callable[[C], str],
    refusal: Callable[[C], str],
    has_addresses: Callable[[C], bool] = lambda options: False,
) -> C:
    """Read and check the options of a tool that consumes messages.

    Args:
        options: its class of options.
        tool: its name.
        argv: its flags; None: the process's.
        early_refusal: returns why the options are refused, or ""; checked before the addresses,
            because the original reports errors in this order.
        refusal: the same, checked after the addresses.
        has_addresses: checks addresses of another kind, and returns whether these count.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    checked, _ = read_options(options, tool, sys.argv[1:] if argv is None else argv)
    if reason := early_refusal(checked):
        die(reason)
    if not has_addresses(checked):
        one_kind_of_address(checked.nsqd_tcp_address, checked.lookupd_http_address)
    if reason := refusal(checked):
        die(reason)
    return checked


def consumer_config(options: ConsumerOptions, tool: str, max_in_flight: int = 0) -> Config:
    """The client library's options of a tool that consumes messages.

    max_attempts is 0 unless --consumer-opt sets it: otherwise the client library would finish a
    message after five attempts, although the tool never succeeded with it. ``max_in_flight``
    overrides --max-in-flight.

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
    """``2026/11/21 13:51:49 WRN text``. An INFO line of the tool itself has no level."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line for *record*, without its traceback."""
        moment = datetime.fromtimestamp(record.created)
        level = f"{_LEVELS.get(record.levelno, record.levelname)} "
        if record.levelno == logging.INFO and record.name == log.name:
            level = ""
        return f"{moment:%Y/%m/%d %H:%M:%S} {level}{record.message}"


def configure_log(level: int = logging.INFO) -> logging.Logger:
    """Send the log of the tool and of the client library to stderr. Return the tool's logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    logger = logging.getLogger("trionsq")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    return log


# Running


def run_tool(work: Callable[..., Awaitable[int]], *arguments: object) -> int:
    """Run *work* on trio and return its exit code.

    After a ToolError, ClientError or ProtocolError, alone or in a group, write it as one line and
    exit with 1. Any other exception is a defect and is raised. SIGINT while no `on_signal` handles
    it returns 130.
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
    """Call *action* with each signal that arrives. Start this with ``nursery.start``.

    Args:
        action: a synchronous function.
        signals: by default SIGINT and SIGTERM.
        once: return after the first signal, so that a second one has its default effect and ends
            the process. Otherwise continue until cancelled.
    """
    with trio.open_signal_receiver(*(signals or (signal.SIGINT, signal.SIGTERM))) as arrivals:
        task_status.started()
        async for signum in arrivals:
            action(signum)
            if once:
                return
