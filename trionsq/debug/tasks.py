"""The living tree of a trio program: tasks, the nurseries they opened, and the tasks in those.

The tree is gathered a slice at a time and other tasks go on in between, so it is no snapshot:
a task may be missing that began or ended meanwhile. A task's children are where they belong
even so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Final

import trio
from trio.lowlevel import Task

from trionsq.debug.places import Place, place_of

__all__ = ["NurseryNode", "TaskNode", "TaskTree", "task_tree"]

# Tasks looked at before others get their turn: less than a millisecond.
_SLICE: Final = 50
# Order in which they began; trio has no public name for it.
_AGE: Final = attrgetter("_counter")


@dataclass(slots=True)
class TaskNode:
    """A task.

    Attributes:
        name: given when it was started; else that of the function.
        function: that it runs, with its module.
        state: running, runnable or waiting.
        cancelled: a cancellation is on its way to it, or was delivered.
        waits_for: what it called of trio: ``Event.wait``; empty if it does not wait.
        at: the innermost line outside trio; None if there is no such.
        stack: from its outermost function to the innermost; empty unless asked for.
        nurseries: that it has open.
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
        cancel_called, shield: of its cancel scope.
        deadline_s: of its cancel scope, in seconds from now; None if it has none.
        tasks: its children, in the order in which they began.
        left_out: children that are not shown.
    """

    cancel_called: bool
    shield: bool
    deadline_s: float | None
    tasks: list[TaskNode] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class TaskTree:
    """The whole: ``shown`` tasks under ``root``, of ``living`` ones."""

    root: TaskNode
    shown: int
    living: int


class _Branch:
    """The children of a nursery that are not in the tree yet."""

    def __init__(self, nursery: trio.Nursery, now_s: float) -> None:
        scope = nursery.cancel_scope
        deadline_s = None if scope.deadline == inf else scope.deadline - now_s
        self.node = NurseryNode(scope.cancel_called, scope.shield, deadline_s)
        self.tasks = deque(sorted(nursery.child_tasks, key=_AGE))


async def task_tree(*, limit: int, stacks: bool) -> TaskTree:
    """The tree from the root task down, of at most ``limit`` tasks.

    What is near the root comes first, and large nurseries take turns.
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
        for task in islice(_take(branch.tasks), min(_SLICE, limit - shown)):
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


def _take(tasks: deque[Task]) -> Iterator[Task]:
    while tasks:
        yield tasks.popleft()


def _branches(task: Task, node: TaskNode) -> Iterator[_Branch]:
    now_s = trio.current_time()
    for nursery in task.child_nurseries:
        branch = _Branch(nursery, now_s)
        node.nurseries.append(branch.node)
        yield branch


def _describe(task: Task, running: Task, stacks: bool) -> TaskNode | None:
    """None if the task has ended."""
    places = [place_of(frame, line) for frame, line in task.iter_await_frames()]
    if not places:
        return None
    own = max((i for i, place in enumerate(places) if not place.is_of_trio), default=None)
    # Neither has a public name: whether trio is about to resume it, and its cancel scopes.
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
