"""The commands ``trionsq channel ...``."""

from __future__ import annotations

from typing import Any, Literal

import click

from trionsq.local.operate.flags import (
    CHANNEL,
    PLACE,
    TOPIC,
    YES,
    Call,
    call_of,
    example,
    for_nodes,
    for_peeking,
    peek_query,
)

__all__ = ["channel_group"]

_LOOKUPD = "--lookupd-http-address=127.0.0.1:4161"


@click.group("channel")
def channel_group() -> None:
    """List, create, change, delete and read channels."""


@channel_group.command("list", epilog=example(f"trionsq channel list orders {_LOOKUPD}"))
@TOPIC
@for_nodes
def list_(topic: str, **flags: Any) -> int:
    """List the channels of a topic, with sums over all nodes."""
    from trionsq.local.operate.reports import channels
    from trionsq.local.operate.session import run

    return run(call_of(flags), lambda each: channels(each, topic))


@channel_group.command(
    "create",
    epilog=example(
        f"trionsq channel create orders billing {_LOOKUPD}",
        f"trionsq channel create orders audit --from=beginning {_LOOKUPD}",
    ),
)
@TOPIC
@CHANNEL
@click.option(
    "--from",
    "begin",
    type=PLACE,
    help="Where it begins in the topic's log: beginning, end, a time (RFC 3339) or a sequence.",
)
@for_nodes
def create(topic: str, channel: str, begin: str | None, **flags: Any) -> int:
    """Create a channel on each node that has the topic.

    Over nsqlookupd it is registered there as well; with --from, by the nodes that made it. --from
    is for topics with a log.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.changes import create as work
    from trionsq.local.operate.session import run

    query = {"from": begin} if begin else {}
    return run(call_of(flags), lambda each: work(each, Subject(topic, channel), query))


@channel_group.command("pause", epilog=example(f"trionsq channel pause orders billing {_LOOKUPD}"))
@TOPIC
@CHANNEL
@for_nodes
def pause(topic: str, channel: str, **flags: Any) -> int:
    """Pause a channel: its messages wait, and no consumer gets them."""
    return _change(call_of(flags), topic, channel, "pause")


@channel_group.command(
    "unpause", epilog=example(f"trionsq channel unpause orders billing {_LOOKUPD}")
)
@TOPIC
@CHANNEL
@for_nodes
def unpause(topic: str, channel: str, **flags: Any) -> int:
    """Let the consumers of a paused channel get its messages again."""
    return _change(call_of(flags), topic, channel, "unpause")


def _change(call: Call, topic: str, channel: str, verb: Literal["pause", "unpause"]) -> int:
    from trionsq.local.operate.changes import Subject, change
    from trionsq.local.operate.session import run

    return run(call, lambda each: change(each, Subject(topic, channel), verb))


@channel_group.command(
    "empty", epilog=example(f"trionsq channel empty orders billing --yes {_LOOKUPD}")
)
@TOPIC
@CHANNEL
@YES
@for_nodes
def empty(topic: str, channel: str, yes: bool, **flags: Any) -> int:
    """Discard all messages of a channel: waiting, in flight and deferred.

    The command shows what it is about to discard, and asks. Without a terminal it needs --yes.
    """
    return _destroy(call_of(flags), topic, channel, "empty", yes)


@channel_group.command(
    "delete", epilog=example(f"trionsq channel delete orders billing {_LOOKUPD}")
)
@TOPIC
@CHANNEL
@YES
@for_nodes
def delete(topic: str, channel: str, yes: bool, **flags: Any) -> int:
    """Delete a channel with its messages; its consumers are disconnected.

    The command shows what it is about to delete, and asks. Without a terminal it needs --yes. Over
    nsqlookupd the channel is deleted there first, then on each nsqd.
    """
    return _destroy(call_of(flags), topic, channel, "delete", yes)


def _destroy(
    call: Call, topic: str, channel: str, verb: Literal["empty", "delete"], yes: bool
) -> int:
    from trionsq.local.operate.changes import Subject, destroy
    from trionsq.local.operate.session import run

    return run(call, lambda each: destroy(each, Subject(topic, channel), verb, yes=yes))


@channel_group.command(
    "seek",
    epilog=example(
        f"trionsq channel seek orders billing --to=2026-11-23T09:00:00Z {_LOOKUPD}",
    ),
)
@TOPIC
@CHANNEL
@click.option(
    "--to",
    "to",
    type=PLACE,
    required=True,
    help="beginning, end, a time (RFC 3339) or a sequence, which is of one node.",
)
@YES
@for_nodes
def seek(topic: str, channel: str, to: str, yes: bool, **flags: Any) -> int:
    """Move a channel to a place in the log of its topic.

    It forgets what waits, is in flight or is deferred, and goes on at that place. The command shows
    how many messages that are, and asks. Without a terminal it needs --yes.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.changes import seek as work
    from trionsq.local.operate.session import run

    return run(call_of(flags), lambda each: work(each, Subject(topic, channel), to, yes=yes))


@channel_group.command("peek", epilog=example(f"trionsq channel peek orders billing {_LOOKUPD}"))
@TOPIC
@CHANNEL
@click.option(
    "--state",
    type=click.Choice(["queued", "in_flight", "deferred"]),
    default="queued",
    show_default=True,
    help="Which messages.",
)
@for_peeking
@for_nodes
def peek(topic: str, channel: str, state: str, **flags: Any) -> int:
    """Show the next messages of a channel on each node; they stay where they are.

    The bodies are cut to the width of the table; --json prints them whole.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.reports import peek as show
    from trionsq.local.operate.session import run

    query = peek_query(flags) | {"state": state}
    return run(call_of(flags), lambda each: show(each, Subject(topic, channel), **query))


@channel_group.command(
    "deferred", epilog=example(f"trionsq channel deferred orders billing {_LOOKUPD}")
)
@TOPIC
@CHANNEL
@for_peeking
@for_nodes
def deferred(topic: str, channel: str, **flags: Any) -> int:
    """List the messages that wait for their due time, the next due of each node first.

    --json prints their bodies as well.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.deferred import show
    from trionsq.local.operate.session import run

    query = peek_query(flags)
    return run(call_of(flags), lambda each: show(each, Subject(topic, channel), **query))


@channel_group.command(
    "cancel",
    epilog=example(f"trionsq channel cancel orders billing 18a5cad184a69000 {_LOOKUPD}"),
)
@TOPIC
@CHANNEL
@click.argument("message_id", metavar="ID")
@click.option(
    "--due",
    type=click.IntRange(0),
    help="Its due time in nanoseconds, as `channel deferred` shows it.",
)
@for_nodes
def cancel(topic: str, channel: str, message_id: str, due: int | None, **flags: Any) -> int:
    """Cancel a deferred message: it does not come.

    Without --due it is looked for among the next 3,000 of each node.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.deferred import cancel as work
    from trionsq.local.operate.session import run

    return run(call_of(flags), lambda each: work(each, Subject(topic, channel), message_id, due))
