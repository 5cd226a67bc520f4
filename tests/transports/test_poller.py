"""Connections whose input one task reads, on real sockets (trionsq.transports.poller)."""

from __future__ import annotations

import errno
import random
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trionsq.transports.poller import Input, Poller, Step, last_turn
from trionsq.transports.transport import SocketTransport, Transport

LIMIT_S = 60.0
READ_BYTES = 1_000


@pytest.fixture(params=[0, 2], ids=["all", "but-two"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many connections wait by themselves."""
    count: int = request.param
    monkeypatch.setattr("trionsq.transports.poller._MAX_ALONE", count)
    return count


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection waits by itself."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_ALONE", 0)


@pytest.fixture
async def poller(nursery: trio.Nursery) -> Poller:
    made = Poller()
    nursery.start_soon(made.run)
    await wait_all_tasks_blocked()
    return made


class Reader:
    """A connection that notes what comes; ``wait_at`` says after which reads it has to wait."""

    def __init__(self, wait_at: Callable[[bytes], Awaitable[bool] | None] = lambda data: None):
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.transport: Transport = SocketTransport(ours)
        self.received = b""
        self.readers: set[trio.lowlevel.Task] = set()
        self.has_ended = False
        self.error: Exception | None = None
        self.on_read: Callable[[], None] = lambda: None
        self._wait_at = wait_at

    def advance(self) -> Step:
        data = self.transport.receive_nowait(READ_BYTES)
        if data is None:
            return Input.NOTHING
        self.readers.add(trio.lowlevel.current_task())
        self.on_read()
        if not data:
            self.has_ended = True
            return last_turn()
        self.received += data
        if (step := self._wait_at(data)) is not None:
            return step
        return Input.HANDLED if len(data) < READ_BYTES else _again()

    async def serve(self, poller: Poller) -> None:
        try:
            await poller.serve(self)
        except Exception as error:
            self.error = error

    def close(self) -> None:
        self.peer.close()
        self.transport.close()


async def _again() -> bool:
    await trio.lowlevel.checkpoint()
    return True


@pytest.fixture
async def closing() -> AsyncIterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(closing: ExitStack, *arguments: Callable[[bytes], Awaitable[bool] | None]) -> Reader:
    reader = Reader(*arguments)
    closing.callback(reader.close)
    return reader


def have_all(readers: list[Reader], count: int) -> bool:
    return all(len(reader.received) == count for reader in readers)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not condition():
            await trio.lowlevel.checkpoint()


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


async def test_an_end_that_came_with_the_last_bytes_is_noticed(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int
) -> None:
    """Before the connection was served, and while it waited."""
    early, late = opened(closing), opened(closing)
    for reader in (early, late):
        if reader is late:
            nursery.start_soon(reader.serve, poller)
            await wait_all_tasks_blocked()
        reader.peer.send(b"the last")
        reader.peer.shutdown(socket.SHUT_WR)
        if reader is early:
            nursery.start_soon(reader.serve, poller)
    await until(lambda: early.has_ended and late.has_ended)
    assert early.received == late.received == b"the last"


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
    assert poller._alone == set()


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


async def test_a_poller_that_begins_again_serves_the_same_sockets(
    nursery: trio.Nursery, closing: ExitStack, polled: None
) -> None:
    """What came in between is read."""
    poller = Poller()
    with trio.CancelScope() as first:
        async with trio.open_nursery() as inner:
            inner.start_soon(poller.run)
            await wait_all_tasks_blocked()
            reader = opened(closing)
            nursery.start_soon(reader.serve, poller)
            await wait_all_tasks_blocked()
            first.cancel()
    reader.peer.send(b"x")
    await wait_all_tasks_blocked()
    assert reader.received == b""
    nursery.start_soon(poller.run)
    await until(lambda: reader.received == b"x")


async def test_without_epoll_each_waits_by_itself(
    nursery: trio.Nursery, closing: ExitStack, polled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other systems than Linux."""
    monkeypatch.delattr(select, "epoll")
    poller = Poller()
    nursery.start_soon(poller.run)
    await wait_all_tasks_blocked()
    reader = opened(closing)
    nursery.start_soon(reader.serve, poller)
    for count in range(1, 40):
        reader.peer.send(b"x")
        await until(partial(have_all, [reader], count))
    reader.peer.close()
    await until(lambda: reader.has_ended)


async def test_a_system_that_takes_no_more_sockets(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, polled: None
) -> None:
    """fs.epoll.max_user_watches is reached: the connection waits by itself."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    poller.add = refuse  # type: ignore[assignment, method-assign]
    reader = opened(closing)
    nursery.start_soon(reader.serve, poller)
    reader.peer.send(b"x")
    await until(lambda: reader.received == b"x")
