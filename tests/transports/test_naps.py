"""How the poller sleeps (trionsq.transports.poller): in trio's event loop or not, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from statistics import median

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transports.readers import LIMIT_S, Reader, opened
from trionsq.transports.poller import Poller


class Sleeper:
    """A reader that gets eight bytes, one by one, and how often its poller slept in trio's loop.

    Attributes:
        reader: what reads.
        sleeps_before: by the number of bytes that came before.
        on_read: is called at each read with the number of bytes that came before.
    """

    def __init__(self, poller: Poller, closing: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader = opened(closing)
        self.sleeps_before: list[int] = []
        self.on_read: Callable[[int], None] = lambda count: None
        self._poller = poller
        self._sleeps = 0
        self._wait_readable = trio.lowlevel.wait_readable
        monkeypatch.setattr("trio.lowlevel.wait_readable", self._counted)

    async def _counted(self, fd: int) -> None:
        assert self._poller._epoll is not None
        self._sleeps += fd == self._poller._epoll.fileno()
        await self._wait_readable(fd)

    def _note_read(self) -> None:
        self.on_read(len(self.sleeps_before))
        self.sleeps_before.append(self._sleeps)

    def _send_all(self) -> None:
        for count in range(8):
            while len(self.reader.received) < count:
                time.sleep(0.001)
            time.sleep(0.01)
            self.reader.peer.send(b"x")

    async def run(self, nursery: trio.Nursery) -> list[int]:
        """Return `sleeps_before`, when the poller sleeps in trio's loop again."""
        self.reader.on_read = self._note_read
        nursery.start_soon(self.reader.serve, self._poller)
        await wait_all_tasks_blocked()
        sender = threading.Thread(target=self._send_all)
        sender.start()
        # Not `until`: it could always run, and the poller takes no naps then.
        while len(self.sleeps_before) < 8 or self._sleeps == self.sleeps_before[7]:  # noqa: ASYNC110
            await trio.sleep(0.005)
        sender.join()
        return self.sleeps_before


async def test_after_short_sleeps_it_looks_on_for_a_moment(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes then costs no sleep; when nothing came it sleeps again."""
    settings = "trionsq.transports.poller."
    monkeypatch.setattr(settings + "_MAX_RUN_S", 0)
    monkeypatch.setattr(settings + "_SLEEPS_PER_SPIN", 3)
    monkeypatch.setattr(settings + "_SHORT_SLEEP_S", LIMIT_S)
    monkeypatch.setattr(settings + "_SPIN_S", LIMIT_S)
    sleeper = Sleeper(poller, closing, monkeypatch)

    def end_spins(count: int) -> None:
        if count == 7:
            monkeypatch.setattr(settings + "_SPIN_S", 0)

    sleeper.on_read = end_spins
    sleeps_before = await sleeper.run(nursery)
    assert sleeps_before[1] > sleeps_before[0]
    assert sleeps_before[4] == sleeps_before[7]


async def test_where_input_is_expected_it_sleeps_in_its_own_epoll(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes then costs trio's event loop nothing."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_RUN_S", LIMIT_S)
    sleeper = Sleeper(poller, closing, monkeypatch)
    poller.threads = 1

    def expect(count: int) -> None:
        poller.expects_until_s = float("inf") if count < 7 else 0.0

    sleeper.on_read = expect
    sleeps_before = await sleeper.run(nursery)
    assert sleeps_before[0] == sleeps_before[7]


async def run_always() -> None:
    while True:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("obstacle", ["", "threads", "lone_count", "task"])
async def test_where_input_comes_often_it_naps_in_its_own_epoll(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
    obstacle: str,
) -> None:
    """But not while trio's loop has to hear of a thread or a connection, or has a task to run."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_RUN_S", LIMIT_S)
    sleeper = Sleeper(poller, closing, monkeypatch)
    if obstacle in ("threads", "lone_count"):
        setattr(poller, obstacle, 1)

    def note_read(count: int) -> None:
        if count == 0 and obstacle == "task":
            nursery.start_soon(run_always)
        if count == 7:
            poller.threads = 1

    sleeper.on_read = note_read
    sleeps_before = await sleeper.run(nursery)
    sleeps = [after - before for before, after in pairwise(sleeps_before)]
    # Now and then another task can run just then.
    assert (min(sleeps) > 0) == bool(obstacle)


async def test_between_naps_others_get_their_turn(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sleeps in trio's event loop when it has run for some time, and after a nap in vain."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_RUN_S", 0.025)
    sleeper = Sleeper(poller, closing, monkeypatch)
    sleeps_before = await sleeper.run(nursery)
    assert sleeps_before[0] < sleeps_before[7]


async def converse(reader: Reader, count: int) -> list[float]:
    """Send so many bytes from a task of this event loop, each when the one before was answered;
    return how long each answer took."""

    def answer() -> None:
        reader.transport.send_nowait(b"x")

    reader.on_read = answer
    took_s: list[float] = []
    for _ in range(count):
        began_s = time.perf_counter()
        reader.peer.send(b"x")
        await trio.lowlevel.wait_readable(reader.peer)
        assert reader.peer.recv(2) == b"x"
        took_s.append(time.perf_counter() - began_s)
    return took_s


async def test_a_client_in_this_process_does_not_wait_for_a_nap_each_time(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A nap delays the very task that sends what comes next: so naps in vain become rare."""
    nap_s = 0.05
    monkeypatch.setattr("trionsq.transports.poller._MAX_RUN_S", nap_s)
    reader = opened(closing)
    nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    took_s = await converse(reader, 50)
    assert max(took_s) >= nap_s
    assert median(took_s) < nap_s


async def test_after_naps_in_vain_it_tries_them_again(
    poller: Poller,
    nursery: trio.Nursery,
    closing: ExitStack,
    polled: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other clients may come, in other processes."""
    settings = "trionsq.transports.poller."
    monkeypatch.setattr(settings + "_MAX_SLEEPS_PER_NAP", 4)
    monkeypatch.setattr(settings + "_MAX_RUN_S", 0.01)
    reader = opened(closing)
    nursery.start_soon(reader.serve, poller)
    await wait_all_tasks_blocked()
    await converse(reader, 50)
    monkeypatch.setattr(settings + "_MAX_RUN_S", LIMIT_S)
    sleeper = Sleeper(poller, closing, monkeypatch)

    def note_read(count: int) -> None:
        if count == 7:
            poller.threads = 1

    sleeper.on_read = note_read
    sleeps_before = await sleeper.run(nursery)
    assert sleeps_before[5] == sleeps_before[7]
