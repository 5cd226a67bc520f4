"""The flags of ``trionsq up``, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from trionsq.broker.options import NsqdOptions, OptionsError, validated
from trionsq.daemon import config, flags
from trionsq.local.up.errors import UpError
from trionsq.options import (
    BOOL,
    INT,
    LOG_FORMAT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    FatalValueError,
    option,
    table,
)

__all__ = ["UpOptions", "check_nsqd_options", "nsqd_flags", "read_options"]

log = logging.getLogger("trionsq")

NSQDS_MAX: Final = 64

# Flags of nsqd that differ from part to part, and what decides them.
_DECIDED: Final = {
    "config": "--nsqd-config",
    "data-path": "--data-path",
    "http-address": "--host and --port",
    "log-format": "--log-format",
    "log-level": "--log-level",
    "log-prefix": "each part's name",
    "node-id": "each nsqd's number",
    "tcp-address": "--host and --port",
    "version": "trionsq --version",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Every option of ``trionsq up``."""

    nsqd: int = option("nsqd", 1, INT, f"how many nsqd, 1..{NSQDS_MAX}")
    processes: bool = option(
        "processes",
        False,
        BOOL,
        "a process for each part, so that all cores work; one that dies is started again",
    )
    host: str = option(
        "host", "127.0.0.1", STRING, "address to listen on; 0.0.0.0: reachable from elsewhere"
    )
    port: int = option(
        "port",
        4150,
        INT,
        "of the first nsqd, its HTTP API has the next one; each further nsqd has the next two"
        " that are not the nsqlookupd's or nsqadmin's; 0: any free ones",
    )
    lookupd_port: int = option(
        "lookupd-port", 4160, INT, "of the nsqlookupd, its HTTP API has the next one; 0: any free"
    )
    admin_port: int = option(
        "admin-port", 4171, INT, "of nsqadmin, the dashboard for browsers; 0: any free one"
    )
    no_admin: bool = option("no-admin", False, BOOL, "without nsqadmin")
    data_path: str = option(
        "data-path",
        "nsq-data",
        STRING,
        "folder with one folder for each nsqd; made if it is not there",
    )
    nsqd_opt: tuple[str, ...] = option(
        "nsqd-opt", (), STRINGS, "name=value, a flag of every nsqd (nsqd --help shows them)"
    )
    nsqd_config: str = option("nsqd-config", "", STRING, "path of a config file of every nsqd")
    log_level: str = option("log-level", "info", LOG_LEVEL, "debug, info, warn, error or fatal")
    log_format: str = option(
        "log-format", "classic", LOG_FORMAT, "classic lines, or json: an object a line"
    )


def read_options(words: Sequence[str], command: str, **defaults: Any) -> UpOptions:
    """The options that *words* give; *defaults* stand for what they do not give.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error.
    """
    try:
        given = flags.parse(UpOptions, words)
    except flags.HelpRequested:
        sys.stdout.write(flags.usage(UpOptions, command))
        raise SystemExit(0) from None
    except flags.UsageError as error:
        _refuse(command, str(error))
    if given.rest:
        _refuse(command, f"not understood: {' '.join(given.rest)}")
    values: dict[str, Any] = {**defaults, **given.values}
    options = UpOptions(**values)
    if wrong := _wrong(options):
        _refuse(command, wrong)
    return options


def _refuse(command: str, text: str) -> NoReturn:
    sys.stderr.write(f"{command}: {text}\n{command} --help shows all flags\n")
    raise SystemExit(2)


def _wrong(options: UpOptions) -> str | None:
    if not 1 <= options.nsqd <= NSQDS_MAX:
        return f"--nsqd must be 1..{NSQDS_MAX}"
    # Leaves room for the further nsqds.
    ports = (options.port, options.lookupd_port, options.admin_port)
    for flag, port in zip(("port", "lookupd-port", "admin-port"), ports, strict=True):
        if not 0 <= port <= 65_000:
            return f"--{flag} must be 0..65000"
    if options.port and options.lookupd_port and abs(options.port - options.lookupd_port) < 2:
        return "--port and --lookupd-port must be 2 apart at least"
    if options.admin_port and not options.no_admin:
        for flag, port in (("port", options.port), ("lookupd-port", options.lookupd_port)):
            if port and options.admin_port - port in (0, 1):
                return f"--admin-port must be neither --{flag} nor the next one"
    for text in options.nsqd_opt:
        name = text.lstrip("-").partition("=")[0]
        if name in _DECIDED:
            return f"--nsqd-opt={name}: that is decided by {_DECIDED[name]}"
    try:
        given = flags.parse(NsqdOptions, nsqd_flags(options))
    except flags.HelpRequested:
        return "--nsqd-opt: nsqd --help shows what there is"
    except (flags.UsageError, FatalValueError) as error:
        return f"--nsqd-opt: {error}"
    return f"--nsqd-opt: {given.rest[0]} is no flag" if given.rest else None


def nsqd_flags(options: UpOptions) -> list[str]:
    """What ``--nsqd-opt`` passes on."""
    return [f"--{text.lstrip('-')}" for text in options.nsqd_opt]


def check_nsqd_options(options: UpOptions) -> None:
    """See beforehand that an nsqd can be started with ``--nsqd-opt`` and ``--nsqd-config``.

    Raises:
        UpError: no.
    """
    values: dict[str, Any] = {}
    try:
        if options.nsqd_config:
            values.update(config.load(NsqdOptions, options.nsqd_config).values)
        values.update(flags.parse(NsqdOptions, nsqd_flags(options)).values)
        validated(NsqdOptions(**values))
    except (config.ConfigError, OptionsError) as error:
        raise UpError(str(error)) from None
    for name, spec in table(NsqdOptions):
        if name in values and spec.flag in _DECIDED:
            decided = _DECIDED[spec.flag]
            log.warning("%s: %s is ignored: decided by %s", options.nsqd_config, spec.key, decided)
