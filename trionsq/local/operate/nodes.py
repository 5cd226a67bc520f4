"""The commands ``trionsq node ...``."""

from __future__ import annotations

from typing import Any

import click

from trionsq.local.operate.flags import call_of, example, for_nodes

__all__ = ["node_group"]

_LOOKUPD = "--lookupd-http-address=127.0.0.1:4161"


@click.group("node")
def node_group() -> None:
    """List and check the nodes of a cluster."""


@node_group.command("list", epilog=example(f"trionsq node list {_LOOKUPD}"))
@for_nodes
def list_(**flags: Any) -> int:
    """List the nodes, with what each of them has."""
    from trionsq.local.operate.reports import nodes
    from trionsq.local.operate.session import run

    return run(call_of(flags), nodes)


@node_group.command("info", epilog=example("trionsq node info --nsqd-http-address=127.0.0.1:4151"))
@for_nodes
def info(**flags: Any) -> int:
    """Show versions, names and ports of the nodes."""
    from trionsq.local.operate.reports import infos
    from trionsq.local.operate.session import run

    return run(call_of(flags), infos)


@node_group.command("ready", epilog=example(f"trionsq node ready {_LOOKUPD} && echo all are ready"))
@for_nodes
def ready(**flags: Any) -> int:
    """Show which nodes take messages; the exit code is 1 if one does not."""
    from trionsq.local.operate.reports import ready as work
    from trionsq.local.operate.session import run

    return run(call_of(flags), work)
