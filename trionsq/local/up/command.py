"""The command ``trionsq up``: a local cluster in the foreground."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from trionsq.daemon import log
from trionsq.daemon.command import prepare_process
from trionsq.local.nsqd_daemon import tune_interpreter
from trionsq.local.up.cluster import Cluster, run_cluster
from trionsq.local.up.daemons import host_inside
from trionsq.local.up.options import UpError, UpOptions, check_nsqd_options, plan, read_options
from trionsq.local.up.processes import host_process

__all__ = ["PREFIX", "run", "table", "up"]

PREFIX = "[trionsq] "


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
    prepare_process()
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
