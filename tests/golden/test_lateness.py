"""A busy machine fails no conversation, and excuses none that differs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.golden.interfaces import ServerUnderTest
from tests.golden.jobs import REPEATS_MAX, Job, Outcomes, run_jobs
from tests.golden.lateness import LATE_S, Lateness
from tests.golden.lookupd_places import no_auth
from tests.golden.peer import TranscriptMismatchError
from tests.golden.test_harness import EXPECT_OK, OK_FRAME, ScriptedServer
from tests.golden.transcripts import Server, TcpCase

JOB = Job(TcpCase("scripted", "", Server((), False, False), None, (EXPECT_OK,)), "whole")
WRONG = OK_FRAME[:-1] + b"J"


async def outcomes_of(*says: bytes) -> tuple[Outcomes, int]:
    """Replay with servers that say this, one after the other; how many were started."""
    left = list(says)

    @asynccontextmanager
    async def start(wanted: Server, auth_address: str | None) -> AsyncIterator[ServerUnderTest]:
        yield ScriptedServer(left.pop(0))

    outcomes = await run_jobs([JOB], start, no_auth)
    return outcomes, len(says) - len(left)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is always late."""

    async def was_late_since(self: Lateness, start: float) -> bool:
        return True

    monkeypatch.setattr(Lateness, "was_late_since", was_late_since)


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is never late."""

    async def was_late_since(self: Lateness, start: float) -> bool:
        return False

    monkeypatch.setattr(Lateness, "was_late_since", was_late_since)


async def test_a_disturbed_replay_is_repeated(late: None) -> None:
    """On a server of its own; then what it says there counts."""
    outcomes, started = await outcomes_of(WRONG, WRONG, OK_FRAME)
    outcomes.check(JOB)
    assert started == 3


async def test_it_is_repeated_a_few_times_only(late: None) -> None:
    """What differs each time fails."""
    outcomes, started = await outcomes_of(*[WRONG] * (1 + REPEATS_MAX))
    with pytest.raises(TranscriptMismatchError):
        outcomes.check(JOB)
    assert started == 1 + REPEATS_MAX


async def test_what_differs_in_time_fails_at_once(in_time: None) -> None:
    """Nothing is repeated that was not disturbed."""
    outcomes, started = await outcomes_of(WRONG)
    with pytest.raises(TranscriptMismatchError):
        outcomes.check(JOB)
    assert started == 1


async def test_a_task_that_holds_others_up_is_noted() -> None:
    """From the time on at which it did so, and not from later on."""
    lateness = Lateness()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lateness.watch)
        start = trio.current_time()
        await trio.sleep(LATE_S)
        time.sleep(3 * LATE_S)  # noqa: ASYNC251 - that is what is noted
        assert await lateness.was_late_since(start)
        assert not await lateness.was_late_since(trio.current_time() + 60)
        nursery.cancel_scope.cancel()
