"""The commands ``trionsq deadletter ...``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from trionsq.local.operate.flags import CHANNEL, TOPIC, YES, call_of, example, for_nodes

__all__ = ["dead_letter_group"]

F = TypeVar("F", bound=Callable[..., Any])

_LOOKUPD: Final = "--lookupd-http-address=127.0.0.1:4161"
_MAX_RATE: Final = 10_000


@click.group("deadletter")
def dead_letter_group() -> None:
    """List, replay and discard the messages that channels gave up."""


def _filters(function: F) -> F:
    """Flags that select letters; `_query` reads them."""
    for flag, text in (
        ("--older-than", "Only letters that were given up so long ago, such as 24h."),
        ("--reason", "Only letters with this reason: requeued, timed_out, disconnected, ..."),
        ("--id", "Only the letter with this id."),
    ):
        function = click.option(flag, metavar="TEXT", help=text)(function)
    return function


def _query(flags: dict[str, Any]) -> dict[str, str]:
    values = {name: flags.pop(name) for name in ("older_than", "reason", "id")}
    return {name: value for name, value in values.items() if value is not None}


def _count(text: str) -> Callable[[F], F]:
    return click.option("--count", type=click.IntRange(1), help=text)


@dead_letter_group.command(
    "list",
    epilog=example(
        f"trionsq deadletter list orders billing {_LOOKUPD}",
        f"trionsq deadletter list orders billing --older-than=24h --json {_LOOKUPD}",
    ),
)
@TOPIC
@CHANNEL
@_filters
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Maximum letters of a node.",
)
@for_nodes
def list_(topic: str, channel: str, limit: int, **flags: Any) -> int:
    """List the messages that a channel gave up, the oldest of each node first."""
    from trionsq.local.operate.letters import show
    from trionsq.local.operate.session import run

    query = {"topic": topic, "channel": channel, "limit": str(limit), **_query(flags)}
    return run(call_of(flags), lambda each: show(each, query))


@dead_letter_group.command(
    "replay", epilog=example(f"trionsq deadletter replay orders billing --count=10 {_LOOKUPD}")
)
@TOPIC
@CHANNEL
@_filters
@_count("Maximum letters of a node.")
@click.option(
    "--rate",
    type=click.IntRange(1, _MAX_RATE),
    default=100,
    show_default=True,
    help="Letters a second of a node.",
)
@for_nodes
def replay(topic: str, channel: str, count: int | None, rate: int, **flags: Any) -> int:
    """Send letters back to the channel that gave them up, and to no other."""
    from trionsq.local.operate.letters import change
    from trionsq.local.operate.session import run

    query = {"topic": topic, "channel": channel, "rate": str(rate), **_query(flags)}
    query |= {"count": str(count)} if count else {}
    return run(call_of(flags), lambda each: change(each, "replay", query))


@dead_letter_group.command(
    "discard", epilog=example(f"trionsq deadletter discard orders billing --yes {_LOOKUPD}")
)
@TOPIC
@CHANNEL
@_filters
@_count("Maximum letters of a node.")
@YES
@for_nodes
def discard(topic: str, channel: str, count: int | None, yes: bool, **flags: Any) -> int:
    """Remove letters for good.

    The command shows how many there are, and asks. Without a terminal it needs --yes.
    """
    from trionsq.local.operate.letters import discard as work
    from trionsq.local.operate.session import run

    query = {"topic": topic, "channel": channel, **_query(flags)}
    return run(call_of(flags), lambda each: work(each, query, count, is_sure=yes))
