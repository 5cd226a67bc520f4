"""The nsqd that is attacked, the pair that must not notice, and what is measured of both."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from tests.drill.connection import NsqConnection
from tests.fuzz.steady import SteadyPair, Talk
from tests.fuzz.watch import MIB, without_groups
from tests.processes import NsqdProcess, running_nsqd
from tests.secured import Papers, make_papers
from trionsq.wire import commands

__all__ = ["GROWTH_NBYTES_MAX", "PAIRS_SECRET", "Attack", "Figures", "Target", "attack"]

GROWTH_NBYTES_MAX: Final = 64 * MIB
"""The broker's peak under attack is at most so much above its peak before."""
PAIRS_SECRET: Final = "of the pair"
# Nothing takes so long unless it hangs.
_PATIENCE_S: Final = 900.0
# Messages of the pair, all the way: to have something to compare with, and under attack.
_ROUNDS_BEFORE: Final = 500
_ROUNDS_DURING: Final = 200
_ROUNDS_UNDER_WAY_MIN: Final = 20
_TRACE: Final = re.compile(r"Traceback|client\(\S*\) - failed$|connection failed$|FATAL|CRITICAL")


@dataclass(slots=True)
class Target:
    """What an attack is given.

    Attributes:
        nsqd: whom it attacks.
        papers: what its TLS is made of.
        nbytes: how large a bomb is, inflated.
        patient: wait until nsqd has ended all that it ends by time.
        enough: set once the pair has brought enough messages through since the attack began.
    """

    nsqd: NsqdProcess
    papers: Papers
    nbytes: int
    patient: bool
    enough: trio.Event = field(default_factory=trio.Event)


Beside = Callable[[], AbstractAsyncContextManager[Sequence[str]]]
"""What has to run around nsqd's life; gives flags for it."""


@asynccontextmanager
async def nothing_beside() -> AsyncIterator[Sequence[str]]:
    """No flags."""
    yield ()


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of hostility.

    Attributes:
        name: as the table shows it.
        run: attacks once, and says in a few words what came of it. It is called again until the
            pair has done enough, so it may be short.
        beside: what has to run meanwhile.
        starves: it keeps nsqd busy for long, so that the pair must get on before it ends.
    """

    name: str
    run: Callable[[Target], Awaitable[str]]
    beside: Beside = nothing_beside
    starves: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """What an attack did to nsqd.

    Attributes:
        before_nbytes, peak_nbytes: the most that was resident, before and in all.
        rate_before, rate: messages a second of the pair, one at a time; without and with it.
        seconds: it lasted.
        told: what came of it.
    """

    before_nbytes: int
    peak_nbytes: int
    rate_before: float
    rate: float
    seconds: float
    told: str

    @property
    def grown_nbytes(self) -> int:
        """The peak's growth under attack."""
        return self.peak_nbytes - self.before_nbytes


def attack(kind: Attack, nbytes: int, *, patient: bool = False) -> Figures:
    """Attack an nsqd that is started for it.

    Args:
        kind: how.
        nbytes: how large a bomb is, inflated.
        patient: wait until nsqd has ended all that it ends by time.

    Raises:
        AssertionError: memory grew too much, the pair missed something, nsqd failed.
    """
    with tempfile.TemporaryDirectory(prefix="hostile") as folder, without_groups():
        return trio.run(_attack, kind, nbytes, patient, Path(folder))


async def _attack(kind: Attack, nbytes: int, patient: bool, folder: Path) -> Figures:
    papers = make_papers(folder)
    async with (
        kind.beside() as flags,
        running_nsqd(folder, [*papers.nsqd_flags, *flags], https=True) as nsqd,
    ):
        target = Target(nsqd, papers, nbytes, patient)
        with trio.fail_after(_PATIENCE_S):
            figures = await _attack_beside_a_pair(kind, target, authorized=bool(flags))
    assert nsqd.process.returncode == 0, nsqd.log_tail()
    traces = [line for line in nsqd.log if _TRACE.search(line)]
    assert not traces, traces[:5]
    grown_mib = figures.grown_nbytes // MIB
    assert figures.grown_nbytes <= GROWTH_NBYTES_MAX, f"grown by {grown_mib} MiB: {figures}"
    return figures


async def _attack_beside_a_pair(kind: Attack, target: Target, *, authorized: bool) -> Figures:
    address, pid = target.nsqd.tcp_address, target.nsqd.process.pid
    async with (
        await NsqConnection.open(address) as producer,
        await NsqConnection.open(address) as consumer,
    ):
        if authorized:
            for connection in (producer, consumer):
                await connection.send(commands.auth(PAIRS_SECRET))
                await connection.frames()
        pair = SteadyPair(
            Talk(producer.send, producer.frames), Talk(consumer.send, consumer.frames)
        )
        await pair.begin()
        began_s = trio.current_time()
        while pair.rounds < _ROUNDS_BEFORE:
            await pair.round()
        rate_before = pair.rounds / (trio.current_time() - began_s)
        before_nbytes = _peak_nbytes(pid)
        told, rate, seconds = await _attack_until_enough(kind, target, pair)
    return Figures(before_nbytes, _peak_nbytes(pid), rate_before, rate, seconds, told)


async def _attack_until_enough(
    kind: Attack, target: Target, pair: SteadyPair
) -> tuple[str, float, float]:
    """What came of it, the pair's rate meanwhile, and how long it lasted."""
    began_s, first, attacked = trio.current_time(), pair.rounds, trio.Event()

    async def go_on() -> None:
        while not (target.enough.is_set() and attacked.is_set()):
            await pair.round()
            if pair.rounds == first + _ROUNDS_DURING:
                target.enough.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        told = await kind.run(target)
        if kind.starves:
            rounds = pair.rounds - first
            assert rounds >= _ROUNDS_UNDER_WAY_MIN, f"others starve: {rounds} messages only"
        while not target.enough.is_set():
            told = await kind.run(target)
        seconds = trio.current_time() - began_s
        rate = (pair.rounds - first) / seconds
        attacked.set()
    return told, rate, seconds


def _peak_nbytes(pid: int) -> int:
    """The most memory that a process has ever had."""
    (found,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found) * 1024
