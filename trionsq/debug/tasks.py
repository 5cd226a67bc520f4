"""The tree of a running trio program: tasks, their nurseries, and the tasks in those.

The tree is gathered in slices, and other tasks run in between, so it is not a snapshot: a task that
began or ended meanwhile may be missing. Every task that is there is below its own parent.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Final

import trio
from trio.lowlevel import Task

from trionsq.debug.steps import Place, place_of

__all__ = ["NurseryNode", "TaskNode", "TaskTree", "json_pieces", "task_tree", "text_pieces"]

# Tasks that are described before others run: less than a millisecond.
_SLICE: Final = 50
# The order in which tasks began; trio has no public attribute for it.
_AGE: Final = attrgetter("_counter")
_INDENT: Final = "  "
# What trio calls the wait at the end of a nursery's block.
_NURSERY_EXIT: Final = "NurseryManager.__aexit__"
# What trio calls the wait until somebody reschedules the task.
_PARKED: Final = "wait_task_rescheduled"


@dataclass(slots=True)
class TaskNode:
    """A task.

    Attributes:
        name: set by whoever started the task; by default that of its function.
        function: what the task runs, with its module.
        state: running, runnable or waiting.
        cancelled: a cancellation was delivered, or is pending.
        waits_for: the function of trio in which it waits: ``Event.wait``; empty if it does not.
        at: the innermost line outside trio; None if there is none.
        stack: from the outermost function to the innermost; empty unless requested.
        nurseries: its open nurseries.
    """

    name: str
    function: str
    state: str
    cancelled: bool
    waits_for: str
    at: Place | None
    stack: tuple[Place, ...]
    nurseries: list[NurseryNode] = field(default_factory=list)


@dataclass(slots=True)
class NurseryNode:
    """An open nursery.

    Attributes:
        cancel_called: its cancel scope was cancelled.
        shield: its cancel scope is shielded.
        deadline_s: of its cancel scope, in seconds from now; None if there is none.
        tasks: its children, in the order in which they began.
        left_out: number of children that are not in the tree.
    """

    cancel_called: bool
    shield: bool
    deadline_s: float | None
    tasks: list[TaskNode] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class TaskTree:
    """The whole tree: ``shown`` tasks below ``root``, of ``living`` tasks."""

    root: TaskNode
    shown: int
    living: int


class _Branch:
    """A nursery whose children are not all in the tree yet."""

    def __init__(self, nursery: trio.Nursery, now_s: float) -> None:
        scope = nursery.cancel_scope
        deadline_s = None if scope.deadline == inf else scope.deadline - now_s
        self.node = NurseryNode(scope.cancel_called, scope.shield, deadline_s)
        self.tasks = deque(sorted(nursery.child_tasks, key=_AGE))


async def task_tree(*, limit: int, stacks: bool) -> TaskTree:
    """Return the tree from the root task down, with at most ``limit`` tasks.

    Tasks near the root come first, and large nurseries share what is left evenly.
    """
    running = trio.lowlevel.current_task()
    root_task = trio.lowlevel.current_root_task()
    assert root_task is not None, "a task is running"
    root = _describe(root_task, running, stacks)
    assert root is not None, "the root task lives as long as any"
    root.name = "trio"
    pending = deque(_branches(root_task, root))
    shown = 1
    while pending and shown < limit:
        branch = pending.popleft()
        for task in islice(_pop_tasks(branch.tasks), min(_SLICE, limit - shown)):
            node = _describe(task, running, stacks)
            if node is not None:
                branch.node.tasks.append(node)
                pending.extend(_branches(task, node))
                shown += 1
        if branch.tasks:
            pending.append(branch)
        await trio.lowlevel.checkpoint()
    for branch in pending:
        branch.node.left_out = len(branch.tasks)
    return TaskTree(root, shown, trio.lowlevel.current_statistics().tasks_living)


def _pop_tasks(tasks: deque[Task]) -> Iterator[Task]:
    while tasks:
        yield tasks.popleft()


def _branches(task: Task, node: TaskNode) -> Iterator[_Branch]:
    now_s = trio.current_time()
    for nursery in task.child_nurseries:
        branch = _Branch(nursery, now_s)
        node.nurseries.append(branch.node)
        yield branch


def _describe(task: Task, running: Task, stacks: bool) -> TaskNode | None:
    """Describe a task; None if it has ended."""
    places = [place_of(frame, line) for frame, line in task.iter_await_frames()]
    if not places:
        return None
    own = max((i for i, place in enumerate(places) if not place.is_of_trio), default=None)
    if own and places[own + 1 :] and places[own + 1].function == _PARKED:
        own -= 1  # what parks the task itself is as good as a function of trio
    # Neither is public: whether trio is about to resume the task, and its cancel scopes.
    state = "running" if task is running else "runnable" if task._next_send_fn else "waiting"
    inner = places[min((own or 0) + 1, len(places) - 1)]
    return TaskNode(
        name=task.name,
        function=f"{places[0].module}.{places[0].function}",
        state=state,
        cancelled=task._cancel_status.effectively_cancelled,
        waits_for=inner.function if state == "waiting" else "",
        at=None if own is None else places[own],
        stack=tuple(places) if stacks else (),
    )


# The tree as text and as JSON, piece by piece: it may be large


def text_pieces(tree: TaskTree) -> Iterator[str]:
    """Yield the tree as text: a line for each task and nursery."""
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
    """Yield the tree as JSON: ``{"living", "shown", "left_out", "root": task}``.

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
