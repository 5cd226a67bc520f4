"""What ``trionsq deadletter`` does."""

from __future__ import annotations

import json
import sys
from typing import Any, Final, Literal

import click

from admin.cluster.steps import Step
from trionsq.local.operate.output import Report, counted, table_lines
from trionsq.local.operate.session import CommandError, Session

__all__ = ["change", "discard", "show"]

_DONE: Final = {"replay": "on their way back to the channel", "discard": "discarded"}
_PATH: Final = "/deadletter"


async def show(session: Session, query: dict[str, str]) -> Report:
    """List letters."""
    answers = await session.get(await session.nodes(), _PATH, **query)
    letters: list[dict[str, Any]] = []
    total = 0
    for node, answer in answers.items():
        total += _number(answer, "count")
        letters += [{"at": node, **one} for one in answer.get("deadletters", ())]
    lines = table_lines(
        ("id", "given up", "reason", "attempts", "state", "body"),
        [[one.get(key, "?") for key in _COLUMNS] for one in letters],
    )
    more = "" if total == len(letters) else f" of {total:,}"
    lines = [*(lines if letters else ()), f"{counted(len(letters), 'dead letter')}{more}"]
    return Report({"count": total, "deadletters": letters}, lines)


_COLUMNS: Final = ("id", "last_time", "reason", "attempts", "state", "body")


async def change(
    session: Session, verb: Literal["replay", "discard"], query: dict[str, str]
) -> Report:
    """Replay or discard letters on all nodes that have some."""
    step = Step(await session.nodes(), f"{_PATH}/{verb}", query, if_there=True)
    answers = await session.take(step)
    counts = {node: _number(json.loads(answer), "count") for node, answer in answers.items()}
    total = sum(counts.values())
    lines = [f"{counted(total, 'dead letter')} {_DONE[verb]}, on {counted(len(counts), 'node')}"]
    return Report({"action": f"deadletter {verb}", "count": total, "nodes": counts}, lines)


async def discard(
    session: Session, query: dict[str, str], count: int | None, *, is_sure: bool
) -> Report:
    """Discard letters, after a question.

    Raises:
        CommandError: nobody is there to answer.
        click.Abort: the answer is no.
    """
    if not is_sure:
        if not sys.stdin.isatty():
            raise CommandError("discarding dead letters needs --yes, or a terminal", 2)
        found = await session.get(await session.nodes(), _PATH, **query, limit="1")
        letters = sum(_number(answer, "count") for answer in found.values())
        most = "" if count is None else f", at most {count:,} of a node"
        text = f"Discard {counted(letters, 'dead letter')}{most} for good. Go on?"
        click.confirm(text, abort=True, err=True)
    return await change(session, "discard", query | ({"count": str(count)} if count else {}))


def _number(document: dict[str, Any], key: str) -> int:
    value = document.get(key)
    return value if isinstance(value, int) else 0
