"""The tree of tasks, gathered from a program that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import trio

from trionsq.debug.tasks import NurseryNode, TaskNode, json_pieces, task_tree, text_pieces


def all_tasks(task: TaskNode) -> Iterator[TaskNode]:
    """The task and all below it."""
    yield task
    for nursery in task.nurseries:
        for child in nursery.tasks:
            yield from all_tasks(child)


def own_nurseries(task: TaskNode) -> list[NurseryNode]:
    """The nurseries that the test's function has open."""
    [found] = [each for each in all_tasks(task) if each.state == "running"]
    return found.nurseries


async def sleeper() -> None:
    """A task that waits."""
    await trio.sleep_forever()


async def test_a_task_is_found_under_its_nursery_with_what_it_waits_for() -> None:
    """Name, state, the call of trio that it waits in, and the line of its own code."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper, name="dreamer")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(sleeper)
        tree = await task_tree(limit=1000, stacks=True)
        nursery.cancel_scope.cancel()
    node = own_nurseries(tree.root)[-1]
    first, second = node.tasks
    assert (first.name, first.state, first.waits_for) == ("dreamer", "waiting", "sleep_forever")
    assert first.function == f"{__name__}.sleeper"
    assert first.at is not None
    assert (first.at.function, first.at.is_of_trio) == ("sleeper", False)
    assert [place.function for place in first.stack][:2] == ["sleeper", "sleep_forever"]
    assert second.state in ("runnable", "waiting")  # it may have had a turn meanwhile
    assert tree.shown == len(list(all_tasks(tree.root))) == tree.living


async def parked() -> None:
    """Waits until somebody reschedules its task."""
    await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)


async def waiting_for_another() -> None:
    """Calls a function of its own that parks the task."""
    await parked()


async def test_a_function_that_parks_its_task_is_what_the_task_waits_in() -> None:
    """As if trio had it: trio's name for it says nothing."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting_for_another)
        nursery.start_soon(parked)
        await trio.testing.wait_all_tasks_blocked()
        tree = await task_tree(limit=1000, stacks=False)
        nursery.cancel_scope.cancel()
    nodes = {node.function.rpartition(".")[2]: node for node in own_nurseries(tree.root)[-1].tasks}
    caller, alone = nodes["waiting_for_another"], nodes["parked"]
    assert caller.at is not None
    assert (caller.waits_for, caller.at.function) == ("parked", "waiting_for_another")
    assert alone.at is not None
    assert (alone.waits_for, alone.at.function) == ("wait_task_rescheduled", "parked")


async def test_what_is_cancelled_shows() -> None:
    """A task that lingers after its cancellation, and its nursery's scope, are told."""

    async def lingering() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    async def in_shield() -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60) as scope:
            async with trio.open_nursery() as inner:
                inner.cancel_scope.shield = True
                inner.cancel_scope.deadline = trio.current_time() + 5
                inner.start_soon(trio.sleep_forever)
                await release.wait()
                scope.cancel()
                inner.cancel_scope.cancel()

    release = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_shield)
        await trio.testing.wait_all_tasks_blocked()
        tree = await task_tree(limit=1000, stacks=False)
        release.set()
    node = own_nurseries(tree.root)[-1]
    [inner] = node.tasks[0].nurseries
    assert inner.shield
    assert inner.deadline_s is not None
    assert 0 < inner.deadline_s <= 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            tree = await task_tree(limit=1000, stacks=False)
    node = own_nurseries(tree.root)[-1]
    assert node.cancel_called
    assert all(each.cancelled for each in node.tasks)


async def test_large_trees_are_bounded_and_let_others_run() -> None:
    """Of 10,000 tasks as many are shown as asked for, the rest is counted, and others go on."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as small, trio.open_nursery() as large:
        for _ in range(10_000):
            large.start_soon(sleeper)
        for _ in range(40):
            small.start_soon(sleeper)
        await trio.testing.wait_all_tasks_blocked()
        small.start_soon(other)
        tree = await task_tree(limit=1000, stacks=False)
        small.cancel_scope.cancel()
        large.cancel_scope.cancel()
    assert tree.shown == 1000
    assert tree.shown == len(list(all_tasks(tree.root)))
    assert tree.living > 10_000
    first, second = own_nurseries(tree.root)[-2:]
    assert (len(first.tasks), first.left_out) == (41, 0)  # the small one is not crowded out
    assert len(second.tasks) + second.left_out == 10_000
    assert turns >= 1000 // 50
    assert f"... {second.left_out} more" in "".join(text_pieces(tree))


async def test_a_task_that_ended_meanwhile_is_no_trouble() -> None:
    """The tree is gathered while tasks come and go."""

    async def short_lived(nursery: trio.Nursery) -> None:
        await trio.lowlevel.checkpoint()
        if not nursery.cancel_scope.cancel_called:
            nursery.start_soon(short_lived, nursery)

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(short_lived, nursery)
        for _ in range(5):
            tree = await task_tree(limit=100_000, stacks=True)
            assert tree.shown == len(list(all_tasks(tree.root)))
        nursery.cancel_scope.cancel()


async def test_text_and_json_tell_the_same() -> None:
    """A line, or an object, for each task."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper, name='the "sleeper"')
        await trio.testing.wait_all_tasks_blocked()
        tree = await task_tree(limit=1000, stacks=True)
        nursery.cancel_scope.cancel()
    text = "".join(text_pieces(tree))
    document = json.loads("".join(json_pieces(tree)))
    assert text.startswith(f"{tree.living} tasks, {tree.shown} shown\n")
    assert (document["living"], document["left_out"]) == (tree.living, 0)
    for task in all_tasks(tree.root):
        assert f"{task.name}  [" in text
        assert json.dumps(task.name) in "".join(json_pieces(tree))
    assert "waiting in sleep_forever, tests.debug.test_tasks:" in text or "test_tasks:" in text
