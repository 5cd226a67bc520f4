"""The commands ``trionsq topic ...``."""

from __future__ import annotations

from typing import Any, Literal

import click

from trionsq.local.operate.flags import (
    PLACE,
    TOPIC,
    TOPIC_NAME,
    YES,
    Call,
    OrDefault,
    call_of,
    example,
    for_nodes,
    for_peeking,
    peek_query,
)
from trionsq.options import DURATION, INT

__all__ = ["topic_group"]

_LOOKUPD = "--lookupd-http-address=127.0.0.1:4161"


@click.group("topic")
def topic_group() -> None:
    """List, create, change, delete and read topics."""


@topic_group.command("list", epilog=example(f"trionsq topic list {_LOOKUPD}"))
@for_nodes
def list_(**flags: Any) -> int:
    """List the topics, with sums over all nodes.

    A topic on no node is registered at an nsqlookupd only.
    """
    from trionsq.local.operate.reports import topics
    from trionsq.local.operate.session import run

    return run(call_of(flags), topics)


@topic_group.command("create", epilog=example(f"trionsq topic create orders {_LOOKUPD}"))
@TOPIC
@click.option(
    "--storage",
    type=click.Choice(["default", "log"]),
    help="Where nsqd keeps the messages; default: its --storage.",
)
@click.option(
    "--register-only",
    is_flag=True,
    help="Register it at nsqlookupds, and create it on no nsqd.",
)
@for_nodes
def create(topic: str, storage: str | None, register_only: bool, **flags: Any) -> int:
    """Create a topic on all nodes.

    Over nsqlookupd it is registered there as well.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.changes import create as work
    from trionsq.local.operate.session import run

    call = call_of(flags)
    if register_only and (storage or not call.options.lookupd_http_address):
        raise click.UsageError("--register-only is for --lookupd-http-address, without --storage")
    query = {"storage": storage} if storage else {}
    subject = Subject(topic)
    return run(call, lambda each: work(each, subject, query, register_only=register_only))


@topic_group.command("pause", epilog=example(f"trionsq topic pause orders {_LOOKUPD}"))
@TOPIC
@for_nodes
def pause(topic: str, **flags: Any) -> int:
    """Pause a topic: its messages wait, and no channel gets them."""
    return _change(call_of(flags), topic, "pause")


@topic_group.command("unpause", epilog=example(f"trionsq topic unpause orders {_LOOKUPD}"))
@TOPIC
@for_nodes
def unpause(topic: str, **flags: Any) -> int:
    """Let the channels of a paused topic get its messages again."""
    return _change(call_of(flags), topic, "unpause")


def _change(call: Call, topic: str, verb: Literal["pause", "unpause"]) -> int:
    from trionsq.local.operate.changes import Subject, change
    from trionsq.local.operate.session import run

    return run(call, lambda each: change(each, Subject(topic), verb))


@topic_group.command("empty", epilog=example(f"trionsq topic empty orders --yes {_LOOKUPD}"))
@TOPIC
@YES
@for_nodes
def empty(topic: str, yes: bool, **flags: Any) -> int:
    """Discard the messages that no channel of a topic has got yet.

    The command shows what it is about to discard, and asks. Without a terminal it needs --yes.
    """
    return _destroy(call_of(flags), topic, "empty", yes)


@topic_group.command("delete", epilog=example(f"trionsq topic delete orders {_LOOKUPD}"))
@TOPIC
@YES
@for_nodes
def delete(topic: str, yes: bool, **flags: Any) -> int:
    """Delete a topic with its channels and messages; its consumers are disconnected.

    The command shows what it is about to delete, and asks. Without a terminal it needs --yes.

    Over nsqlookupd the topic is deleted there first, then on each nsqd. With both kinds of address
    it is deleted on these nsqds alone, and nsqlookupds hide them from its consumers before that.
    """
    return _destroy(call_of(flags, both=True), topic, "delete", yes)


def _destroy(call: Call, topic: str, verb: Literal["empty", "delete"], yes: bool) -> int:
    from trionsq.local.operate.changes import Subject, destroy
    from trionsq.local.operate.session import run

    return run(call, lambda each: destroy(each, Subject(topic), verb, yes=yes))


@topic_group.command("move", epilog=example(f"trionsq topic move orders {_LOOKUPD}"))
@TOPIC
@for_nodes
def move(topic: str, **flags: Any) -> int:
    """Give a topic a log, while clients use it."""
    from trionsq.local.operate.changes import Subject, post
    from trionsq.local.operate.session import run

    return run(call_of(flags), lambda each: post(each, Subject(topic), "move", storage="log"))


@topic_group.command(
    "settings",
    epilog=example(
        f"trionsq topic settings {_LOOKUPD}",
        f"trionsq topic settings orders --durability=always --retain=168h {_LOOKUPD}",
    ),
)
@click.argument("topic", type=TOPIC_NAME, required=False)
@click.option(
    "--durability",
    type=click.Choice(["interval", "always"]),
    help="Change it: OK after an fsync (always), or before it.",
)
@click.option(
    "--retain",
    type=OrDefault(DURATION),
    help="Keep finished messages so long; default: nsqd's --retain.",
)
@click.option(
    "--retain-bytes",
    type=OrDefault(INT),
    help="Keep so many bytes of finished messages; default: nsqd's --retain-bytes.",
)
@for_nodes
def settings(topic: str | None, **flags: Any) -> int:
    """Show or change the settings of a topic; without a name, show those of all.

    A topic needs a log for changes. The settings of one topic show what its log has, and why its
    oldest segment is there.
    """
    from trionsq.local.operate.changes import Subject, post
    from trionsq.local.operate.reports import settings as show
    from trionsq.local.operate.session import run

    call = call_of(flags)
    changes = {name: value for name, value in flags.items() if value is not None}
    if not changes:
        return run(call, lambda each: show(each, topic or ""))
    if topic is None:
        raise click.UsageError("a change needs the name of a topic")
    return run(call, lambda each: post(each, Subject(topic), "settings", **changes))


@topic_group.command("peek", epilog=example(f"trionsq topic peek orders --limit=3 {_LOOKUPD}"))
@TOPIC
@for_peeking
@for_nodes
def peek(topic: str, **flags: Any) -> int:
    """Show the next messages of a topic on each node; they stay where they are.

    The bodies are cut to the width of the table; --json prints them whole.
    """
    from trionsq.local.operate.changes import Subject
    from trionsq.local.operate.reports import peek as show
    from trionsq.local.operate.session import run

    query = peek_query(flags)
    return run(call_of(flags), lambda each: show(each, Subject(topic), **query))


@topic_group.command(
    "tail",
    epilog=example(
        f"trionsq topic tail orders -n 10 {_LOOKUPD}",
        f"trionsq topic tail orders --from=2026-11-23T06:00:00Z --to=end {_LOOKUPD}",
    ),
)
@TOPIC
@click.option("--channel", default="", help="Read from this channel; default: a new ephemeral one.")
@click.option("-n", "count", type=click.IntRange(min=0), default=0, help="End after N messages.")
@click.option(
    "--from",
    "begin",
    type=PLACE,
    help="Read the topic's log, without a channel: beginning, end, a time or a sequence.",
)
@click.option("--to", type=PLACE, help="With --from: where to end; as --from.")
@for_nodes
def tail(
    topic: str, channel: str, count: int, begin: str | None, to: str | None, **flags: Any
) -> int:
    """Print messages from now on, a line each, until Ctrl-C; see nsq_tail for more.

    With --channel the messages are taken from the other consumers of that channel. With --from
    nothing is taken from anybody.
    """
    from trionsq.local.operate.reports import tcp_addresses
    from trionsq.local.operate.session import run
    from trionsq.tools import nsq_tail

    call = call_of(flags)
    if call.as_json:
        raise click.UsageError("tail prints the bodies as they are, without --json")
    words = [f"--topic={topic}", f"--channel={channel}", f"-n={count}"]
    words += [f"--lookupd-http-address={each}" for each in call.options.lookupd_http_address]
    if (channel and begin) or (to and not begin):
        raise click.UsageError("--from is without --channel, and --to needs it")
    if begin:
        words += [f"--from={begin}", *([f"--to={to}"] if to else [])]
        words += [f"--nsqd-http-address={each}" for each in call.options.nsqd_http_address]
        return nsq_tail.main(words)
    if call.options.nsqd_http_address:
        found: list[str] = []
        code = run(call, lambda each: tcp_addresses(each, found))
        if not found:
            return code
        words += [f"--nsqd-tcp-address={each}" for each in found]
    return nsq_tail.main(words)
