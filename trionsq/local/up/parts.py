"""What a cluster consists of, in the order of its start.

A further kind of part needs an entry in `daemons` and one in `plan`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from trionsq.broker.options import default_node_id
from trionsq.hostport import format_address
from trionsq.local.up.options import UpOptions, nsqd_flags

__all__ = ["Addresses", "Known", "Part", "Ports", "plan"]

NODE_IDS: Final = 1024
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
    taken = {lookupd, lookupd + 1, options.admin_port} - {0, 1}
    port = options.port
    for _ in range(options.nsqd):
        while port and {port, port + 1} & taken:
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
