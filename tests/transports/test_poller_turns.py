"""A look at the input that takes too long for one turn (trionsq.transports.poller)."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transports.readers import have_all, opened, until
from trionsq.transports.poller import Poller


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One socket in each turn."""
    for limit in ("_MAX_TURN_S", "_MAX_UNWRITTEN_S", "_MAX_RUN_S"):
        monkeypatch.setattr(f"trionsq.transports.poller.{limit}", -1.0)


async def test_what_is_too_much_for_one_turn_comes_in_the_next_ones(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, short_turns: None
) -> None:
    """Each socket has its turn before the first one has another, and other tasks run meanwhile."""
    readers = [opened(closing) for _ in range(20)]
    for reader in readers:
        nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    order: list[int] = []
    for number, reader in enumerate(readers):
        reader.on_read = partial(order.append, number)
        reader.peer.send(b"x")
    turns = 0
    while len(order) < 25:
        readers[0].peer.send(b"y")
        await trio.lowlevel.checkpoint()
        turns += 1
        assert turns < 50
    assert turns >= 24
    assert sorted(order[:20]) == list(range(20))
    assert len(set.union(*(reader.readers for reader in readers))) == 1


async def test_a_connection_that_ends_before_its_turn_is_left_out(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, short_turns: None
) -> None:
    """Nothing happens to the others, nor to a new one with its descriptor."""
    readers = [opened(closing) for _ in range(5)]
    scope = trio.CancelScope()

    async def serve_last() -> None:
        with scope:
            await readers[-1].serve(poller)

    for reader in readers[:-1]:
        nursery.start_soon(reader.serve, poller)
    nursery.start_soon(serve_last)
    await wait_all_tasks_blocked()
    for reader in readers:
        reader.peer.send(b"x")
    scope.cancel()
    await until(lambda: have_all(readers[:-1], 1))
    late = opened(closing)
    nursery.start_soon(late.serve, poller)
    late.peer.send(b"late")
    await until(lambda: late.received == b"late")


async def test_what_is_too_much_for_one_turn_is_left_to_the_connections(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, short_turns: None
) -> None:
    """If some wait by themselves: each socket gets its turn at once, as those do."""
    poller.lone_count = 1
    readers = [opened(closing) for _ in range(20)]
    for reader in readers:
        nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    for count in range(1, 4):
        for reader in readers:
            reader.peer.send(b"x")
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        assert have_all(readers, count)
    # The poller reads for the first one of a look.
    assert len(set.union(*(reader.readers for reader in readers))) == len(readers)
