"""Commands that change topics and channels on the nodes that have them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import click

from admin.cluster.shapes import ChannelStats, TopicStats
from admin.cluster.steps import (
    Step,
    change_steps,
    creation_steps,
    deletion_steps,
    tombstone_steps,
)
from trionsq.hostport import format_address
from trionsq.local.operate.output import Report, counted, table_lines
from trionsq.local.operate.session import CommandError, Session

__all__ = ["Subject", "change", "create", "destroy", "post", "seek"]

_DONE: Final = {
    "create": "created",
    "delete": "deleted",
    "empty": "emptied",
    "move": "moved to the log",
    "pause": "paused",
    "seek": "moved",
    "settings": "set",
    "unpause": "unpaused",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A topic, or a channel of it."""

    topic: str
    channel: str = ""

    def __str__(self) -> str:
        if self.channel:
            return f"channel {self.channel} of topic {self.topic}"
        return f"topic {self.topic}"

    @property
    def kind(self) -> str:
        """``topic`` or ``channel``, as in paths."""
        return "channel" if self.channel else "topic"

    @property
    def names(self) -> dict[str, str]:
        """As parameters of a request, and in documents."""
        return {"topic": self.topic} | ({"channel": self.channel} if self.channel else {})


async def change(session: Session, target: Subject, verb: Literal["pause", "unpause"]) -> Report:
    """Pause or unpause.

    Raises:
        CommandError: no node has the target.
    """
    nodes = list(await _existing(session, target))
    steps = change_steps(verb, nodes, target.topic, target.channel)
    return await _report(session, target, verb, steps)


async def post(session: Session, target: Subject, action: str, **query: str) -> Report:
    """Send another POST to each node that has the target. Raises as `change`."""
    nodes = list(await _existing(session, target))
    step = Step(nodes, f"/{target.kind}/{action}", target.names | query)
    return await _report(session, target, action, [step])


async def destroy(
    session: Session, target: Subject, verb: Literal["empty", "delete"], *, yes: bool
) -> Report:
    """Empty or delete, after a question.

    Raises:
        CommandError: no node has the target, or nobody is there to answer.
        click.Abort: the answer is no.
    """
    _require_terminal(target, verb, yes=yes)
    existing = await _find(session, target)
    # In a cluster, a name may be registered without a node that has it.
    is_registered = verb == "delete" and await session.is_registered(target.topic, target.channel)
    if not existing and not is_registered:
        raise _not_found(session, target)
    if not yes:
        click.confirm(_question(session, target, verb, existing), abort=True, err=True)
    nodes = list(existing)
    if verb == "empty":
        steps = change_steps("empty", nodes, target.topic, target.channel)
    elif session.is_direct and session.lookupds:
        steps = await _removal(session, nodes, target.topic)
    else:
        # An nsqlookupd may know fewer names than another one.
        hide, delete = deletion_steps(session.lookupds, nodes, target.topic, target.channel)
        steps = [replace(hide, if_there=True), delete]
    return await _report(session, target, verb, steps)


async def seek(session: Session, target: Subject, place: str, *, yes: bool) -> Report:
    """Move a channel to a place in the log of its topic, after a question. Raises as `destroy`."""
    _require_terminal(target, "seek", yes=yes)
    existing = await _existing(session, target)
    nodes = list(existing)
    _refuse_sequence(place, nodes, target.kind)
    if not yes:
        click.confirm(_question(session, target, "seek", existing, place), abort=True, err=True)
    step = Step(nodes, "/channel/seek", target.names | {"to": place})
    return await _report(session, target, "seek", [step], with_places=True)


def _require_terminal(target: Subject, verb: str, *, yes: bool) -> None:
    """Somebody has to answer the question, if there is one."""
    if not yes and not sys.stdin.isatty():
        raise CommandError(f"to {verb} a {target.kind} without a terminal, add --yes", 2)


async def create(
    session: Session, target: Subject, query: Mapping[str, str], *, register_only: bool = False
) -> Report:
    """Create a topic on all nodes, or a channel on those that have its topic.

    Args:
        session: reaches the nodes.
        target: what to create.
        query: further parameters for nsqds. With ``from`` they may refuse, so nsqlookupds hear of
            the channel by the nsqds that made it.
        register_only: tell nsqlookupds only: an nsqd creates the channels of a topic with it.

    Raises:
        CommandError: nobody can be told.
    """
    steps = creation_steps(session.lookupds, target.topic, target.channel)
    steps = [] if session.is_direct or "from" in query else steps
    if not register_only:
        if target.channel:
            nodes = list(await session.topic_stats(target.topic))
            if not nodes and not steps:
                raise _not_found(session, Subject(target.topic))
        else:
            nodes = await session.nodes()
        _refuse_sequence(query.get("from", ""), nodes, "topic")
        steps.append(Step(nodes, f"/{target.kind}/create", target.names | dict(query)))
    return await _report(session, target, "create", steps, with_places="from" in query)


def _refuse_sequence(place: str, nodes: Sequence[str], kind: str) -> None:
    """Nodes number their messages by themselves."""
    if place.isdecimal() and len(nodes) > 1:
        raise CommandError(
            f"a sequence number is of one node, and {len(nodes)} nodes have the {kind}:"
            " name one by --nsqd-http-address",
            2,
        )


async def _report(
    session: Session,
    target: Subject,
    verb: str,
    steps: Sequence[Step],
    *,
    with_places: bool = False,
) -> Report:
    """Take the steps, and say which nodes did all that concerns them.

    ``with_places``: the last step is answered with places in logs, which are reported.
    """
    nodes = list(dict.fromkeys(each for step in steps for each in step.addresses))
    answers: dict[str, bytes] = {}
    for step in steps:
        answers = await session.take(step)
    done = [node for node in nodes if node not in session.failures]
    lookupds = [node for node in done if node in session.lookupds]
    nsqds = [node for node in done if node not in session.lookupds]
    document: dict[str, Any] = {"action": f"{target.kind} {verb}", **target.names}
    failed = len(session.failures)
    text = f"{target}: {_DONE[verb]} on {counted(len(nsqds), 'node')}"
    if lookupds and verb in ("create", "delete"):
        text += f" and at {counted(len(lookupds), 'nsqlookupd')}"
    text += f", {failed} failed" if failed else ""
    lines = [text]
    if with_places:
        places = [{"node": node, **_place(answer)} for node, answer in answers.items()]
        document["places"] = places
        lines += table_lines(
            ("node", "sequence", "time"),
            [(one["node"], one["sequence"], one["time"] or "(end)") for one in places],
        )
    return Report({**document, "nodes": nsqds, "lookupds": lookupds}, lines)


def _place(answer: bytes) -> dict[str, Any]:
    """Where a channel begins, as nsqd says it."""
    try:
        place = json.loads(answer)
        return {"sequence": int(place["sequence"]), "time": place["time"]}
    except (KeyError, TypeError, ValueError):
        return {"sequence": "?", "time": "?"}


async def _existing(session: Session, target: Subject) -> dict[str, TopicStats | ChannelStats]:
    existing = await _find(session, target)
    if not existing:
        raise _not_found(session, target)
    return existing


async def _find(session: Session, target: Subject) -> dict[str, TopicStats | ChannelStats]:
    """The statistics of the target on each node that has it."""
    topics = await session.topic_stats(target.topic)
    if not target.channel:
        return dict(topics)
    return {
        node: channel
        for node, topic in topics.items()
        for channel in topic.channels or ()
        if channel.channel_name == target.channel
    }


def _not_found(session: Session, target: Subject) -> CommandError:
    where = "no node that answered" if session.failures else "no node"
    return CommandError(f"{target}: {where} has it")


async def _removal(session: Session, nodes: Sequence[str], topic: str) -> list[Step]:
    """Hide nodes from the lookups of a topic, by the names that nsqlookupds have, and delete it."""
    names = {}
    for node, info in (await session.get(nodes, "/info")).items():
        address, port = info.get("broadcast_address"), info.get("http_port")
        if isinstance(address, str) and isinstance(port, int):
            names[node] = format_address(address, port)
        else:
            session.failures[node] = "/info has no address; the topic is still there"
    *hide, _ = tombstone_steps(session.lookupds, names.values(), topic)
    *_, delete = tombstone_steps((), names, topic)
    return [*hide, delete]


def _question(
    session: Session,
    target: Subject,
    verb: str,
    existing: dict[str, TopicStats | ChannelStats],
    place: str = "",
) -> str:
    channels: list[ChannelStats] = []
    messages = 0
    for one in existing.values():
        if isinstance(one, ChannelStats):
            channels.append(one)
        else:
            messages += one.depth
            channels += (one.channels or ()) if verb == "delete" else ()
    messages += sum(one.depth + one.in_flight_count + one.deferred_count for one in channels)
    parts = [counted(len(existing), "node")]
    if verb == "delete" and not target.channel:
        parts.append(counted(len({one.channel_name for one in channels}), "channel"))
    # After a seek, messages that are forgotten may come again.
    parts.append(f"{counted(messages, 'message')}{' to forget' if place else ''}")
    to = f" to {place}" if place else ""
    text = f"{verb.title()} {target}{to}: {', '.join(parts)}"
    if session.failures:
        text += f"; {counted(len(session.failures), 'node')} did not answer"
    return f"{text}. Go on?"
