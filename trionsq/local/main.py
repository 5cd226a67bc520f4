"""The command ``trionsq`` for the project's own programs: ``trionsq up``, a local cluster."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from trionsq import NSQ_VERSION, __version__
from trionsq.daemon import log
from trionsq.daemon.command import raise_open_files_limit
from trionsq.local.nsqd_daemon import tune_interpreter
from trionsq.local.up.cluster import Cluster, run_cluster
from trionsq.local.up.daemons import host_inside
from trionsq.local.up.options import UpError, UpOptions, check_nsqd_options, plan, read_options
from trionsq.local.up.processes import host_process

__all__ = ["main", "run", "table", "up"]

PREFIX = "[trionsq] "

_USAGE: Final = """\
Usage: trionsq COMMAND [FLAGS]
  up    a local cluster: nsqlookupd, any number of nsqd, and their dashboard
trionsq COMMAND --help shows its flags.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    first = words[0] if words else ""
    if first == "up":
        return up(words[1:])
    if first in ("-h", "-help", "--help", "help"):
        sys.stdout.write(_USAGE)
        return 0
    if first in ("-version", "--version"):
        print(f"trionsq v{__version__} (NSQ v{NSQ_VERSION})")
        return 0
    sys.stderr.write(f"trionsq: no such command: {first}\n" if first else "")
    sys.stderr.write(_USAGE)
    return 2


def up(argv: Sequence[str]) -> int:
    """Run the command with *argv*, what follows ``up``, and return its exit code.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error.
    """
    options = read_options(argv, "trionsq up")
    return run(options, lambda cluster: _show(options, cluster))


def run(options: UpOptions, body: Callable[[Cluster], Awaitable[object]]) -> int:
    """Run a cluster by its options and *body* beside it, as `run_cluster`; the exit code."""
    logger = log.configure(PREFIX, options.log_level, form=options.log_format)
    try:
        check_nsqd_options(options)
    except UpError as error:
        logger.critical("%s", error)
        return 1
    raise_open_files_limit()
    tune_interpreter()
    hosting = host_process if options.processes else host_inside
    return trio.run(run_cluster, plan(options), hosting, body)


async def _show(options: UpOptions, cluster: Cluster) -> None:
    print(table(cluster, pids=options.processes), flush=True)
    await trio.sleep_forever()


def table(cluster: Cluster, *, pids: bool) -> str:
    """The addresses, data folders and processes of the parts, for the user."""
    rows = [("", "TCP", "HTTP", "data", "pid")]
    for member in cluster.members:
        name, reachable = member.part.name, member.part.addresses(member.ports)
        rows.append((name, reachable.tcp, reachable.http, member.part.data_path, str(member.pid)))
    columns = list(zip(*rows, strict=True))
    if not pids:
        columns.pop()
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    addresses = cluster.addresses
    if "nsqadmin" in addresses:
        lines.append(f"Dashboard: http://{addresses['nsqadmin'].http}")
    lookupd = addresses["nsqlookupd"].http
    lines.append(f"Consumers find every nsqd by lookupd-http-address {lookupd}.")
    return "\n".join(["The cluster is up. Ctrl-C stops it.", *lines])


if __name__ == "__main__":
    raise SystemExit(main())
