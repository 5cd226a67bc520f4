"""The flags of ``trionsq up``, their checks, and the parts of the cluster that they define."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from trionsq.broker.options import NsqdOptions, OptionsError, default_node_id, validated
from trionsq.daemon import flags
from trionsq.daemon.command import ConfigFileError, load_config_file
from trionsq.hostport import format_address
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

__all__ = [
    "Addresses",
    "Known",
    "Part",
    "Ports",
    "UpError",
    "UpOptions",
    "check_nsqd_options",
    "nsqd_flags",
    "plan",
    "read_options",
]

log = logging.getLogger("trionsq")

MAX_NSQDS: Final = 64

# Flags of nsqd that differ from part to part, and what sets them.
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


class UpError(Exception):
    """The cluster can't start or go on; ``str()`` says why in one line."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Every option of ``trionsq up``."""

    nsqd: int = option("nsqd", 1, INT, f"number of nsqd, 1..{MAX_NSQDS}")
    processes: bool = option(
        "processes",
        False,
        BOOL,
        "run each part in its own process, to use all cores; a part that dies is restarted",
    )
    host: str = option("host", "127.0.0.1", STRING, "address to listen on (0.0.0.0: all addresses)")
    port: int = option(
        "port",
        4150,
        INT,
        "TCP port of the first nsqd; its HTTP port is the next one, and each further nsqd has"
        " the next pair that is not nsqlookupd's or nsqadmin's (0: any free ports)",
    )
    lookupd_port: int = option(
        "lookupd-port", 4160, INT, "TCP port of nsqlookupd; HTTP is the next one (0: any free)"
    )
    admin_port: int = option(
        "admin-port", 4171, INT, "HTTP port of nsqadmin, the dashboard (0: any free port)"
    )
    no_admin: bool = option("no-admin", False, BOOL, "do not run nsqadmin")
    data_path: str = option(
        "data-path",
        "nsq-data",
        STRING,
        "folder with one folder for each nsqd; created if it is missing",
    )
    nsqd_opt: tuple[str, ...] = option(
        "nsqd-opt", (), STRINGS, "name=value, a flag for every nsqd (see nsqd --help)"
    )
    nsqd_config: str = option("nsqd-config", "", STRING, "config file for every nsqd")
    log_level: str = option("log-level", "info", LOG_LEVEL, "debug, info, warn, error or fatal")
    log_format: str = option(
        "log-format", "classic", LOG_FORMAT, "classic lines, or json: one object per line"
    )


def read_options(words: Sequence[str], command: str, **defaults: Any) -> UpOptions:
    """The options that *words* give; *defaults* stand for what they do not give.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error.
    """
    try:
        arguments = flags.parse(UpOptions, words)
    except flags.HelpRequested:
        sys.stdout.write(flags.usage(UpOptions, command))
        raise SystemExit(0) from None
    except flags.UsageError as error:
        _refuse(command, str(error))
    if arguments.rest:
        _refuse(command, f"unexpected argument: {' '.join(arguments.rest)}")
    values: dict[str, Any] = {**defaults, **arguments.values}
    options = UpOptions(**values)
    if wrong := _wrong(options):
        _refuse(command, wrong)
    return options


def _refuse(command: str, text: str) -> NoReturn:
    sys.stderr.write(f"{command}: {text}\n{command} --help shows all flags\n")
    raise SystemExit(2)


def _wrong(options: UpOptions) -> str | None:
    if not 1 <= options.nsqd <= MAX_NSQDS:
        return f"--nsqd must be 1..{MAX_NSQDS}"
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
            return f"--nsqd-opt={name}: set by {_DECIDED[name]}"
    try:
        arguments = flags.parse(NsqdOptions, nsqd_flags(options))
    except flags.HelpRequested:
        return "--nsqd-opt: see nsqd --help for its flags"
    except (flags.UsageError, FatalValueError) as error:
        return f"--nsqd-opt: {error}"
    return f"--nsqd-opt: {arguments.rest[0]} is not a flag" if arguments.rest else None


def nsqd_flags(options: UpOptions) -> list[str]:
    """The flags of ``--nsqd-opt``, for each nsqd."""
    return [f"--{text.lstrip('-')}" for text in options.nsqd_opt]


def check_nsqd_options(options: UpOptions) -> None:
    """Check ``--nsqd-opt`` and ``--nsqd-config`` before the start.

    Raises:
        UpError: they are not valid.
    """
    values: dict[str, Any] = {}
    try:
        if options.nsqd_config:
            values.update(load_config_file(NsqdOptions, options.nsqd_config).values)
        values.update(flags.parse(NsqdOptions, nsqd_flags(options)).values)
        validated(NsqdOptions(**values))
    except (ConfigFileError, OptionsError) as error:
        raise UpError(str(error)) from None
    for name, spec in table(NsqdOptions):
        if name in values and spec.flag in _DECIDED:
            decided = _DECIDED[spec.flag]
            log.warning(
                "%s: %s is ignored, it is set by %s", options.nsqd_config, spec.key, decided
            )


NODE_IDS: Final = 1024
# An nsqd refuses publishes before the disk of this machine is full.
_MIN_FREE_DISK: Final = 1 << 30
_ANYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """Where a part listens; 0: on any free port; once it is up, 0 is not at all."""

    tcp: int
    http: int


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """How other programs on this machine reach a part, as ``host:port``; "": they do not."""

    tcp: str
    http: str


Known = Mapping[str, Addresses]
"""The parts that are up, by name."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One daemon of the cluster.

    Attributes:
        name: shown to the user, and the beginning of its log lines.
        kind: as in `daemons.KINDS`; parts of a kind are stopped together.
        host: what it listens on.
        ports: those asked for.
        data_path: its folder, if it has one.
        flags: the command line for the ports that it gets, when others are up already.
    """

    name: str
    kind: str
    host: str
    ports: Ports
    data_path: str
    flags: Callable[[Ports, Known], list[str]]

    def addresses(self, ports: Ports) -> Addresses:
        """How to reach it on these ports."""
        host = _ANYWHERE.get(self.host, self.host)
        tcp = format_address(host, ports.tcp) if ports.tcp else ""
        return Addresses(tcp, format_address(host, ports.http))


def plan(options: UpOptions) -> list[Part]:
    """The parts of a cluster, those first that others need."""
    lookupd_port = options.lookupd_port
    lookupd_ports = Ports(lookupd_port, lookupd_port and lookupd_port + 1)
    flags = partial(_lookupd_flags, options)
    parts = [Part("nsqlookupd", "nsqlookupd", options.host, lookupd_ports, "", flags)]
    for number, ports in enumerate(_nsqd_ports(options), start=1):
        name = f"nsqd-{number}"
        data_path = str(Path(options.data_path) / name)
        flags = partial(_nsqd_flags, options, number, data_path)
        parts.append(Part(name, "nsqd", options.host, ports, data_path, flags))
    if not options.no_admin:
        flags = partial(_admin_flags, options)
        ports = Ports(0, options.admin_port)
        parts.append(Part("nsqadmin", "nsqadmin", options.host, ports, "", flags))
    return parts


def _nsqd_ports(options: UpOptions) -> Iterator[Ports]:
    lookupd = options.lookupd_port
    # nsqadmin's also if it is not started: who is where does not depend on that.
    used = {lookupd, lookupd + 1, options.admin_port} - {0, 1}
    port = options.port
    for _ in range(options.nsqd):
        while port and {port, port + 1} & used:
            port += 2
        yield Ports(port, port and port + 1)
        port = port and port + 2


def _lookupd_flags(options: UpOptions, ports: Ports, known: Known) -> list[str]:
    return _common_flags(options, ports)


def _admin_flags(options: UpOptions, ports: Ports, known: Known) -> list[str]:
    return [
        f"--http-address={format_address(options.host, ports.http)}",
        *_log_flags(options),
        f"--lookupd-http-address={known['nsqlookupd'].http}",
    ]


def _nsqd_flags(
    options: UpOptions, number: int, data_path: str, ports: Ports, known: Known
) -> list[str]:
    flags = [
        *_common_flags(options, ports),
        f"--data-path={data_path}",
        f"--min-free-disk={_MIN_FREE_DISK}",
        # Message ids of nsqds on one host would otherwise not differ.
        f"--node-id={(default_node_id() + number - 1) % NODE_IDS}",
        *nsqd_flags(options),
        f"--lookupd-tcp-address={known['nsqlookupd'].tcp}",
    ]
    return [f"--config={options.nsqd_config}", *flags] if options.nsqd_config else flags


def _common_flags(options: UpOptions, ports: Ports) -> list[str]:
    flags = [
        f"--tcp-address={format_address(options.host, ports.tcp)}",
        f"--http-address={format_address(options.host, ports.http)}",
        *_log_flags(options),
    ]
    if options.host not in _ANYWHERE:
        flags.append(f"--broadcast-address={options.host}")
    return flags


def _log_flags(options: UpOptions) -> list[str]:
    return [f"--log-level={options.log_level}", f"--log-format={options.log_format}"]
