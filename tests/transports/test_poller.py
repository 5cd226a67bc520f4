"""Connections whose input one task reads, on real sockets (trionsq.transports.poller)."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Awaitable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transports.readers import LIMIT_S, READ_BYTES, Reader, have_all, opened, until
from trionsq.transports.poller import Poller


async def test_the_poller_reads_for_all(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, polled: None
) -> None:
    """Input that needs no wait costs no switch to the task of its connection."""
    readers = [opened(closing) for _ in range(10)]
    for reader in readers:
        nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    for count in range(1, 40):
        for reader in readers:
            reader.peer.send(b"x")
        await until(partial(have_all, readers, count))
    assert len(set.union(*(reader.readers for reader in readers))) == 1


async def test_a_connection_that_waits_by_itself_does_not_wait_for_what_is_expected(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While there is one the poller sleeps in trio's event loop, which serves both."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_RUN_S", LIMIT_S)
    first, lone = opened(closing), opened(closing, pair=socket.socketpair())
    for reader in first, lone:
        nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    poller.expects_until_s = float("inf")
    first.peer.send(b"x")
    lone.peer.send(b"y")
    await until(lambda: (first.received, lone.received) == (b"x", b"y"))
    assert poller.lone_count == 1
    poller.expects_until_s = 0.0
    lone.peer.close()
    await until(lambda: lone.has_ended and not poller.lone_count)


async def test_input_without_end_leaves_others_their_turn(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, polled: None
) -> None:
    """The poller does not sleep, and other tasks run now and then."""
    reader, reads, turns = opened(closing), 0, 0

    def send_more() -> None:
        nonlocal reads
        reads += 1
        if reads < 20_000:
            reader.peer.send(b"x")

    reader.on_read = send_more
    nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    reader.peer.send(b"x")
    while reads < 20_000:
        await trio.lowlevel.checkpoint()
        turns += 1
    assert turns > 4


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int, seed: int
) -> None:
    """Whatever comes when, and however long a connection waits for something else."""
    chance = random.Random(seed)

    async def pause() -> bool:
        await trio.sleep(chance.choice([0, 0, 0.001]))
        return True

    def wait_at(data: bytes) -> Awaitable[bool] | None:
        return pause() if len(data) == READ_BYTES or chance.random() < 0.3 else None

    readers = [opened(closing, wait_at) for _ in range(6)]
    sent = [b""] * len(readers)
    for reader in readers:
        nursery.start_soon(reader.serve, poller)
    for _ in range(300):
        at = chance.randrange(len(readers))
        data = chance.randbytes(chance.choice([1, 10, READ_BYTES, READ_BYTES, 2_500]))
        sent[at] += data[: readers[at].peer.send(data)]
        if chance.random() < 0.3:
            await trio.lowlevel.checkpoint()
    for reader in readers:
        reader.peer.shutdown(socket.SHUT_WR)
    await until(lambda: all(reader.has_ended for reader in readers))
    assert [reader.received for reader in readers] == sent


async def test_an_error_is_raised_in_its_own_connection(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int
) -> None:
    """A reset or a defect of one connection is no affair of the others."""
    fine, broken, strange = (opened(closing) for _ in range(3))

    def fail() -> None:
        raise KeyError("a defect")

    strange.on_read = fail
    broken.on_read = lambda: (_ for _ in ()).throw(OSError(errno.ECONNRESET, "reset"))
    for reader in (broken, strange, fine):
        nursery.start_soon(reader.serve, poller)
        await wait_all_tasks_blocked()
        reader.peer.send(b"x")
    await until(lambda: fine.received == b"x" and None not in (broken.error, strange.error))
    assert isinstance(broken.error, OSError)
    assert isinstance(strange.error, KeyError)
    assert fine.error is None


@pytest.mark.parametrize("while_reading", [False, True])
async def test_a_cancelled_connection_reads_no_more(
    poller: Poller, alone: int, while_reading: bool
) -> None:
    """Cancelled while it waits, or by what it reads itself; the next one gets its descriptor."""
    for _ in range(4):
        reader = Reader()  # each gets the descriptor of the one before
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(reader.serve, poller)
                await wait_all_tasks_blocked()
                if while_reading:
                    reader.on_read = scope.cancel
                    reader.peer.send(b"x")
                    await until(partial(have_all, [reader], 1))
                else:
                    scope.cancel()
                reader.peer.send(b"y")
        assert reader.received == (b"x" if while_reading else b"")
        reader.close()
    assert poller._watches == {}


@pytest.mark.parametrize("how", ["with a step", "with an error"])
async def test_a_connection_may_cancel_itself(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, polled: None, how: str
) -> None:
    """By what it reads, and then wait or fail; the others are served on."""
    other, scope = opened(closing), trio.CancelScope()
    went_on = False

    async def step() -> bool:
        nonlocal went_on
        await trio.lowlevel.checkpoint()
        went_on = True
        return True

    def cancel() -> None:
        scope.cancel()
        if how == "with an error":
            raise OSError(errno.ECONNRESET, "reset")

    reader = opened(closing, lambda data: step())
    reader.on_read = cancel
    nursery.start_soon(other.serve, poller)
    with scope:
        async with trio.open_nursery() as inner:
            inner.start_soon(reader.serve, poller)
            await wait_all_tasks_blocked()
            reader.peer.send(b"x")
            await trio.sleep_forever()
    assert not went_on
    assert (reader.error is not None) == (how == "with an error")
    other.peer.send(b"x")
    await until(lambda: other.received == b"x")


async def test_a_flood_holds_up_nobody(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int
) -> None:
    """A peer that sends as fast as it can leaves the others their turns."""
    flooded, quiet = opened(closing), opened(closing)
    is_over = False

    async def flood() -> None:
        while not is_over:
            with suppress(BlockingIOError):
                flooded.peer.send(bytes(64 * READ_BYTES))
            await trio.lowlevel.checkpoint()

    for reader in (flooded, quiet):
        nursery.start_soon(reader.serve, poller)
    nursery.start_soon(flood)
    await until(lambda: len(flooded.received) > 100 * READ_BYTES)
    quiet.peer.send(b"x")
    before = len(flooded.received)
    await until(lambda: quiet.received == b"x")
    assert len(flooded.received) - before < 200 * READ_BYTES
    is_over = True


async def test_much_input_is_read_in_turns(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int
) -> None:
    """Others get their turn after each part that a connection bounds."""
    reader, total = opened(closing), 40 * READ_BYTES
    assert reader.peer.send(bytes(total)) == total
    nursery.start_soon(reader.serve, poller)
    counts = [0]
    while counts[-1] < total:
        await trio.lowlevel.checkpoint()
        counts.append(len(reader.received))
    assert max(after - before for before, after in pairwise(counts)) <= 2 * READ_BYTES


async def test_input_that_has_to_wait_wakes_nobody(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, polled: None
) -> None:
    """While its connection waits for something else, the poller sleeps; then it is read."""
    go_on = trio.Event()

    async def step() -> bool:
        await go_on.wait()
        return True

    reader = opened(closing, lambda data: step() if data == b"step" else None)
    nursery.start_soon(reader.serve, poller)
    reader.peer.send(b"step")
    await until(lambda: reader.received == b"step")
    reader.peer.send(b"more")
    with trio.fail_after(LIMIT_S):
        await wait_all_tasks_blocked()
    assert reader.received == b"step"
    go_on.set()
    await until(lambda: reader.received == b"stepmore")


async def test_a_transport_may_be_replaced(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int
) -> None:
    """By what the connection waits for: from then on the new one is read."""
    other = opened(closing)

    async def replace() -> bool:
        other.transport, reader.transport = reader.transport, other.transport
        return True

    reader = opened(closing, lambda data: replace() if data == b"replace" else None)
    nursery.start_soon(reader.serve, poller)
    reader.peer.send(b"replace")
    await until(lambda: reader.received == b"replace")
    other.peer.send(b" read")
    await until(lambda: reader.received == b"replace read")
