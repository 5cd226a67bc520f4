"""The ends and the edges of what the poller waits for, on real sockets."""

from __future__ import annotations

import errno
import select
import socket
from contextlib import ExitStack
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transports.readers import have_all, opened, until
from trionsq.transports.poller import Poller


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


@pytest.mark.parametrize("where", ["waiting", "in a step", "emptying"])
async def test_a_poller_that_ends_leaves_nobody_waiting(
    nursery: trio.Nursery, closing: ExitStack, polled: None, where: str
) -> None:
    """Its connections go on by themselves, wherever they were; it serves new ones again."""
    poller, go_on = Poller(), trio.Event()

    async def step() -> bool:
        await go_on.wait()
        return True

    reader = opened(closing, lambda data: step() if data == b"step" else None)
    with trio.CancelScope() as first:
        async with trio.open_nursery() as inner:
            inner.start_soon(poller.run)
            await wait_all_tasks_blocked()
            nursery.start_soon(reader.serve, poller)
            await wait_all_tasks_blocked()
            if where == "in a step":
                reader.peer.send(b"step")
                await wait_all_tasks_blocked()
            elif where == "emptying":
                reader.on_read = first.cancel
                reader.peer.send(b"more")
                reader.peer.send(b"!", socket.MSG_OOB)
                await wait_all_tasks_blocked()
            first.cancel()
    go_on.set()
    reader.peer.send(b"x")
    await until(lambda: reader.received.endswith(b"x"))
    nursery.start_soon(poller.run)
    await wait_all_tasks_blocked()
    later = opened(closing)
    nursery.start_soon(later.serve, poller)
    for each in (reader, later):
        each.readers.clear()
        each.peer.send(b"y")
    await until(lambda: reader.received.endswith(b"y") and later.received == b"y")
    assert not reader.readers & later.readers


async def test_what_stands_behind_urgent_data_is_read(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, alone: int
) -> None:
    """A read ends at it without filling its buffer."""
    readers = [opened(closing) for _ in range(3)]
    for reader in readers:
        nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    for reader in readers:
        reader.peer.send(b"before")
        reader.peer.send(b"!", socket.MSG_OOB)
        reader.peer.send(b" behind")
    await until(lambda: all(reader.received == b"before behind" for reader in readers))


async def test_what_stands_behind_passed_descriptors_is_read(
    poller: Poller, nursery: trio.Nursery, closing: ExitStack, polled: None
) -> None:
    """A read of a unix socket ends at them without filling its buffer."""
    reader = opened(closing, lambda data: None, socket.socketpair())
    nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    socket.send_fds(reader.peer, [b"before"], [reader.peer.fileno()])
    reader.peer.send(b" behind")
    await until(lambda: reader.received == b"before behind")


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
