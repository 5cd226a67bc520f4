"""The tree of tasks as text and as JSON, made piece by piece: it may be large."""

from __future__ import annotations

import json
from collections.abc import Iterator

from trionsq.debug.tasks import NurseryNode, TaskNode, TaskTree

__all__ = ["json_pieces", "text_pieces"]

_INDENT = "  "
# What trio calls the wait at the end of a nursery's block.
_NURSERY_EXIT = "NurseryManager.__aexit__"


def text_pieces(tree: TaskTree) -> Iterator[str]:
    """The tree for people: a line for each task and nursery."""
    left_out = tree.living - tree.shown
    more = f", {left_out} left out (?limit=)" if left_out > 0 else ""
    yield f"{tree.living} tasks, {tree.shown} shown{more}\n\n"
    yield from _task_text(tree.root, "")


def _task_text(task: TaskNode, indent: str) -> Iterator[str]:
    yield f"{indent}{task.name}  [{_doing(task)}]\n"
    for place in task.stack:
        yield f"{indent}    | {place}\n"
    for nursery in task.nurseries:
        yield f"{indent}{_INDENT}nursery: {_nursery_line(nursery)}\n"
        for child in nursery.tasks:
            yield from _task_text(child, indent + _INDENT * 2)
        if nursery.left_out:
            yield f"{indent}{_INDENT * 2}... {nursery.left_out} more\n"


def _doing(task: TaskNode) -> str:
    cancelled = "cancelled, " if task.cancelled else ""
    if task.waits_for == _NURSERY_EXIT and task.nurseries:
        return f"{cancelled}waiting for its nursery, {task.at}"
    waiting = f" in {task.waits_for}" if task.waits_for else ""
    at = f", {task.at}" if task.at else ""
    return f"{cancelled}{task.state}{waiting}{at}"


def _nursery_line(nursery: NurseryNode) -> str:
    count = len(nursery.tasks) + nursery.left_out
    parts = [f"{count} task{'' if count == 1 else 's'}"]
    if nursery.cancel_called:
        parts.append("cancelled")
    if nursery.shield:
        parts.append("shielded")
    if nursery.deadline_s is not None:
        parts.append(f"deadline in {nursery.deadline_s:.3f} s")
    return ", ".join(parts)


def json_pieces(tree: TaskTree) -> Iterator[str]:
    """The tree for programs: ``{"living", "shown", "left_out", "root": task}``.

    A task has ``nurseries``, a nursery has ``tasks``.
    """
    left_out = max(0, tree.living - tree.shown)
    yield f'{{"living":{tree.living},"shown":{tree.shown},"left_out":{left_out},"root":'
    yield from _task_json(tree.root)
    yield "}"


def _task_json(task: TaskNode) -> Iterator[str]:
    document: dict[str, object] = {
        "name": task.name,
        "function": task.function,
        "state": task.state,
        "cancelled": task.cancelled,
        "waits_for": task.waits_for,
        "at": None if task.at is None else task.at._asdict(),
    }
    if task.stack:
        document["stack"] = [place._asdict() for place in task.stack]
    yield f'{_dumps(document)[:-1]},"nurseries":['
    for number, nursery in enumerate(task.nurseries):
        yield "," if number else ""
        yield from _nursery_json(nursery)
    yield "]}"


def _nursery_json(nursery: NurseryNode) -> Iterator[str]:
    document = {
        "cancel_called": nursery.cancel_called,
        "shield": nursery.shield,
        "deadline_s": nursery.deadline_s,
        "left_out": nursery.left_out,
    }
    yield f'{_dumps(document)[:-1]},"tasks":['
    for number, task in enumerate(nursery.tasks):
        yield "," if number else ""
        yield from _task_json(task)
    yield "]}"


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
