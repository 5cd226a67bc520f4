"""What ``trionsq channel deferred`` and ``trionsq channel cancel`` do."""

from __future__ import annotations

from typing import Any, Final

from admin.cluster.steps import Step
from trionsq.local.operate.changes import Subject
from trionsq.local.operate.output import Report, counted, table_lines
from trionsq.local.operate.session import CommandError, Session

__all__ = ["cancel", "show"]

_LIMIT: Final = 1000
# Messages of a node among which an id is looked for: nsqd skips no more than 2,000.
_OFFSETS: Final = (0, 1000, 2000)
_COLUMNS: Final = ("id", "due", "due_in_seconds", "attempts", "body_size")


async def show(session: Session, target: Subject, **query: str) -> Report:
    """List messages that wait for their due time, the next due of each node first."""
    rows = []
    pages = await _pages(session, target, **query)
    for node, page in pages.items():
        if page.get("trouble"):
            session.failures[node] = str(page["trouble"])
        # As text: a time that is to be typed has no commas.
        rows += [(node, *(str(one.get(key, "?")) for key in _COLUMNS)) for one in _messages(page)]
    lines = table_lines(("node", "id", "due (ns)", "in seconds", "attempts", "size"), rows)
    document = {**target.names, "nodes": [{"node": node, **page} for node, page in pages.items()]}
    return Report(document, lines)


async def _pages(session: Session, target: Subject, **query: str) -> dict[str, dict[str, Any]]:
    nodes = list(await session.topic_stats(target.topic))
    query = {**target.names, "state": "deferred", **query}
    return await session.get(nodes, "/channel/peek", **query)


def _messages(page: dict[str, Any]) -> list[dict[str, Any]]:
    found = page.get("messages")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


async def cancel(session: Session, target: Subject, id_: str, due: int | None) -> Report:
    """Cancel a message on the nodes that have it.

    Raises:
        CommandError: no node has it; without its due time only the next ones are looked at.
    """
    nodes = list(await session.topic_stats(target.topic))
    if due is None:
        nodes, due = await _find(session, target, id_)
    query = {**target.names, "id": id_, "due": str(due)}
    step = Step(nodes, "/channel/deferred/cancel", query, if_there=True)
    done = list(await session.take(step))
    if not done and not session.failures:
        raise CommandError(f"{target}: no node has deferred the message {id_}")
    line = f"message {id_} of {target}: cancelled on {counted(len(done), 'node')}"
    return Report({"action": "channel cancel", **target.names, "id": id_, "nodes": done}, [line])


async def _find(session: Session, target: Subject, id_: str) -> tuple[list[str], int]:
    for offset in _OFFSETS:
        pages = await _pages(session, target, limit=str(_LIMIT), offset=str(offset))
        for node, page in pages.items():
            for message in _messages(page):
                if message.get("id") == id_ and isinstance(message.get("due"), int):
                    return [node], message["due"]
        if not any(page.get("more") for page in pages.values()):
            break
    text = f"{target}: the message {id_} is not among the next that are due; give its time by --due"
    raise CommandError(text)
