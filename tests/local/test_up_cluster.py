"""`trionsq up`: the order of start and stop, and what becomes of a part that fails."""

from __future__ import annotations

import io
import logging
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from trionsq.daemon import log
from trionsq.daemon.signals import ECHO_S
from trionsq.local.up import daemons, processes
from trionsq.local.up.cluster import Cluster, Hosting, Member, run_cluster
from trionsq.local.up.daemons import host_inside
from trionsq.local.up.options import Ports, UpError, UpOptions, plan
from trionsq.local.up.processes import host_process

PARTS = plan(UpOptions(nsqd=2, port=0, lookupd_port=0, no_admin=True))
LIMIT_S = 180.0


@pytest.fixture(autouse=True)
def lines() -> Iterator[io.StringIO]:
    """The log, configured as the command does."""
    logger = logging.getLogger(log.LOGGER)
    before = (list(logger.handlers), logger.level, logger.propagate)
    stream = io.StringIO()
    log.configure("[trionsq] ", "info", stream)
    yield stream
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


BREAK_NOW = "break now"


async def fail_when_told(events: list[str]) -> None:
    """A defect in a task of a daemon."""
    while BREAK_NOW not in events:
        await trio.lowlevel.checkpoint()
    events.remove(BREAK_NOW)
    raise RuntimeError("broken")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to daemons that do nothing; `BREAK_NOW` among it breaks the nsqd-1."""
    found: list[str] = []

    @asynccontextmanager
    async def daemon(flags: Sequence[str]) -> AsyncIterator[Ports]:
        [name] = [flag[-6:] for flag in flags if flag.startswith("--data-path=")] or ["lookup"]
        found.append(f"{name} up")
        logging.getLogger("trionsq").info("here")
        async with trio.open_nursery() as tasks:
            if name == "nsqd-1":
                tasks.start_soon(fail_when_told, found)
            yield Ports(1, 2)
            tasks.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()
        found.append(f"{name} down")

    monkeypatch.setattr(daemons, "KINDS", {"nsqd": daemon, "nsqlookupd": daemon})
    monkeypatch.setattr("os.makedirs", lambda path, exist_ok: None)
    return found


async def run(hosting: Hosting, body: object) -> int:
    """Run a cluster of two nsqds."""
    with trio.fail_after(LIMIT_S):
        return await run_cluster(PARTS, hosting, body)  # type: ignore[arg-type]


async def test_nsqds_come_last_and_go_first(events: list[str], lines: io.StringIO) -> None:
    """They find the nsqlookupd at their start and until their end; each line says whose it is."""

    async def body(cluster: Cluster) -> None:
        assert [member.part.name for member in cluster.members] == [
            "nsqlookupd",
            "nsqd-1",
            "nsqd-2",
        ]

    assert await run(host_inside, body) == 0
    assert events[:3] == ["lookup up", "nsqd-1 up", "nsqd-2 up"]
    assert set(events[3:5]) == {"nsqd-1 down", "nsqd-2 down"}
    assert events[5:] == ["lookup down"]
    prefixes = [line.split()[0] for line in lines.getvalue().splitlines()]
    assert prefixes == ["[nsqlookupd]", "[nsqd-1]", "[nsqd-2]"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it(number: signal.Signals, events: list[str]) -> None:
    """In order, with 0."""

    async def body(cluster: Cluster) -> None:
        signal.raise_signal(number)
        await trio.sleep_forever()

    assert await run(host_inside, body) == 0
    assert events[-1] == "lookup down"


async def test_a_signal_while_it_starts(events: list[str]) -> None:
    """What is up by then is stopped in order; the body never runs."""
    calls: list[str] = []

    async def hosting(member: Member, *, task_status: trio.TaskStatus[Ports]) -> None:
        if member.part.name == "nsqd-1":
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        await host_inside(member, task_status=task_status)

    async def body(cluster: Cluster) -> None:
        calls.append("body")

    assert await run(hosting, body) == 0
    assert events == ["lookup up", "lookup down"]
    assert not calls


async def test_a_second_signal_cuts_it_short(lines: io.StringIO) -> None:
    """While a part does not end, a second signal ends all at once, with 1; no echo does."""
    echoed: list[str] = []

    async def hosting(member: Member, *, task_status: trio.TaskStatus[Ports]) -> None:
        task_status.started(Ports(1, 2))
        await member.stop.wait()
        signal.raise_signal(signal.SIGTERM)  # an echo
        await trio.sleep(ECHO_S / 2)
        echoed.append(lines.getvalue())
        await trio.sleep(ECHO_S)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep_forever()

    async def body(cluster: Cluster) -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    assert await run(hosting, body) == 1
    assert "FATAL: stopped at once by a second signal" in lines.getvalue()
    assert "FATAL" not in echoed[0]


async def test_a_defect_of_one_part_ends_all_in_order(
    events: list[str], lines: io.StringIO
) -> None:
    """Exit 1, the traceback under the part's name, one line that names it, the others unhurt."""

    async def body(cluster: Cluster) -> None:
        events.append(BREAK_NOW)
        await trio.sleep_forever()

    assert await run(host_inside, body) == 1
    assert events[3:] == ["nsqd-2 down", "lookup down"]
    text = lines.getvalue()
    assert text.splitlines()[-1].endswith("FATAL: nsqd-1: unexpected error: RuntimeError('broken')")
    assert "ERROR: stopped by an unexpected error\n" in text
    assert "\n    | RuntimeError: broken\n" in text


async def test_a_part_that_cannot_start(events: list[str], lines: io.StringIO) -> None:
    """Those before it are stopped in order; one line, exit 1."""

    async def hosting(member: Member, *, task_status: trio.TaskStatus[Ports]) -> None:
        if member.part.name == "nsqd-2":
            raise UpError("nsqd-2: no room")
        await host_inside(member, task_status=task_status)

    async def body(cluster: Cluster) -> None:
        raise AssertionError("it is not up")

    assert await run(hosting, body) == 1
    assert events == ["lookup up", "nsqd-1 up", "nsqd-1 down", "lookup down"]
    [line] = [line for line in lines.getvalue().splitlines() if "FATAL" in line]
    assert line.endswith("FATAL: nsqd-2: no room")


async def test_restarts_are_ever_rarer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lines: io.StringIO
) -> None:
    """A process that dies at once is started again after 0.5 s, twice that ... 30 s at most.

    One that was up for more than a minute before is started again soon.
    """
    starts: list[float] = []
    lasts_s = [0.0] * 9 + [61.0, 0.0]

    class Life:
        was_up = True

        def __init__(self, member: Member, task_status: trio.TaskStatus[Ports]) -> None:
            task_status.started(Ports(1, 2))
            self._member = member

        async def run(self) -> str:
            starts.append(trio.current_time())
            await trio.sleep(lasts_s[len(starts) - 1])
            if len(starts) == len(lasts_s):
                self._member.stop.set()
                return ""
            if len(starts) % 2:
                raise UpError("its port is taken")
            return "exit 1"

    monkeypatch.setattr(processes, "_Life", Life)

    async def body(cluster: Cluster) -> None:
        await cluster.members[0].ended.wait()

    with trio.fail_after(1000):
        assert await run_cluster(PARTS[:1], host_process, body) == 0
    pauses = [
        later - earlier - lasted
        for earlier, later, lasted in zip(starts, starts[1:], lasts_s, strict=False)
    ]
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30, 0.5])
    assert "nsqlookupd exited (exit 1), restarting in 1 s" in lines.getvalue()
