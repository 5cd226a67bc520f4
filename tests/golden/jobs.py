"""Which cases are replayed, and how: grouped by server, concurrent, reported case by case.

Most of a TCP case's time is waiting, so the cases that share a server run at the same time;
their topics do not clash. HTTP cases look at whole-server statistics and run in file order.
A TCP case that failed while this process was late is replayed again, alone on a server of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from tests.golden.cutting import CUTTINGS, Cutter, Cutting
from tests.golden.interfaces import AuthServer, AuthStarter, ServerStarter, ServerUnderTest
from tests.golden.lateness import Lateness
from tests.golden.needs import (
    checks_anything,
    deviating_cases,
    http_case_needs,
    http_cases,
    not_built,
    tcp_cases,
    tcp_needs,
    without_unbuilt_steps,
)
from tests.golden.peer import TranscriptMismatchError
from tests.golden.replay_http import replay_http_case
from tests.golden.replay_tcp import replay_tcp_case
from tests.golden.transcripts import AuthStub, ExpectNone, HttpCase, Sleep, TcpCase

GROUPS_AT_ONCE = 3
TCP_CASES_AT_ONCE = 24
CASE_LIMIT_S = 120.0
REPEATS_MAX = 5


@dataclass(frozen=True)
class Job:
    """One case to be replayed in one way."""

    case: TcpCase | HttpCase
    cutting: Cutting

    @property
    def name(self) -> str:
        """Unique among all jobs."""
        suite = "tcp" if isinstance(self.case, TcpCase) else "http"
        return f"{suite}-{self.case.name}-{self.cutting}"

    @property
    def waits_ms(self) -> int:
        """What the case surely waits; the longest are begun first."""
        return sum(s.duration_ms for s in self.case.steps if isinstance(s, Sleep | ExpectNone))


class Selection:
    """All jobs of this run, and what was left out of it and why."""

    def __init__(self) -> None:
        unbuilt = frozenset(not_built())
        self.jobs: list[Job] = []
        self.left_out_cases: Counter[str] = Counter()
        self.left_out_steps: Counter[str] = Counter()
        self._select_tcp(unbuilt)
        self._select_http(unbuilt)

    def summary(self) -> list[str]:
        """A line for each kind of omission, with its count."""
        return [
            f"golden: {what} left out for {count_by_need(counts)}"
            for what, counts in (
                (f"{self.left_out_cases.total()} cases", self.left_out_cases),
                (f"{self.left_out_steps.total()} HTTP steps", self.left_out_steps),
            )
            if counts
        ]

    def _select_tcp(self, unbuilt: frozenset[str]) -> None:
        deviating = deviating_cases("tcp")
        for case in tcp_cases():
            if missing := sorted(tcp_needs(case) & unbuilt):
                self.left_out_cases["+".join(missing)] += 1
            elif case.name in deviating:
                self.left_out_cases["deviation"] += 1
            else:
                # Of a server for each, two cuttings are enough.
                left_out = {"bytewise"} if case.server.fresh else set()
                self.jobs += [Job(case, cutting) for cutting in CUTTINGS if cutting not in left_out]

    def _select_http(self, unbuilt: frozenset[str]) -> None:
        deviating = deviating_cases("http")
        for case in http_cases():
            trimmed, left_out = without_unbuilt_steps(case, unbuilt)
            if missing := sorted(http_case_needs(case) & unbuilt):
                self.left_out_cases["+".join(missing)] += 1
            elif case.name in deviating:
                self.left_out_cases["deviation"] += 1
            elif not checks_anything(trimmed):
                self.left_out_cases["+".join(sorted(set(left_out)))] += 1
            else:
                self.left_out_steps.update(left_out)
                self.jobs.append(Job(trimmed, "whole"))


def count_by_need(counts: Counter[str]) -> str:
    """``tls 9, auth 3``."""
    return ", ".join(f"{need} {count}" for need, count in counts.most_common())


class Outcomes:
    """How each job went."""

    def __init__(self) -> None:
        self._failures: dict[str, BaseException | None] = {}
        self.disturbed: list[Job] = []
        """Those whose failure says nothing: this process was late meanwhile."""

    def note(self, job: Job, failure: Exception | None) -> None:
        """Keep how ``job`` went; None is success."""
        self._failures[job.name] = failure

    def check(self, job: Job) -> None:
        """Raises what the job raised; KeyError if it never ran."""
        failure = self._failures[job.name]
        if failure is not None:
            raise failure


class OutcomesByCutting:
    """How each job went; those of a cutting are run when the first of them is asked for.

    So a worker that has no test of a cutting does not run it.
    """

    def __init__(self, run: Callable[[Cutting], Outcomes]) -> None:
        self._run = run
        self._outcomes: dict[Cutting, Outcomes] = {}

    def check(self, job: Job) -> None:
        """See `Outcomes`."""
        if job.cutting not in self._outcomes:
            self._outcomes[job.cutting] = self._run(job.cutting)
        self._outcomes[job.cutting].check(job)


def jobs_asked_for(request: pytest.FixtureRequest, fixture: str) -> list[Job]:
    """The jobs of all tests of this run that use the fixture."""
    items: list[Any] = request.session.items
    return [
        value
        for item in items
        if fixture in getattr(item, "fixturenames", ()) and hasattr(item, "callspec")
        for value in item.callspec.params.values()
        if isinstance(value, Job)
    ]


async def run_jobs(
    jobs: Sequence[Job], start_server: ServerStarter, start_auth: AuthStarter
) -> Outcomes:
    """Replay all jobs, each group on a server of its own, a few groups at a time."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        groups.setdefault(_group_key(job), []).append(job)
    outcomes, lateness = Outcomes(), Lateness()
    places = trio.CapacityLimiter(GROUPS_AT_ONCE)

    async def run(group: list[Job]) -> None:
        async with places:
            await _run_group(group, start_server, start_auth, outcomes, lateness)

    async with trio.open_nursery() as watching:
        watching.start_soon(lateness.watch)
        async with trio.open_nursery() as nursery:
            for group in groups.values():
                nursery.start_soon(run, group)
        for _ in range(REPEATS_MAX):
            disturbed, outcomes.disturbed = outcomes.disturbed, []
            for job in disturbed:
                await run([job])
        watching.cancel_scope.cancel()
    return outcomes


def _group_key(job: Job) -> object:
    if job.case.server.fresh:
        return job.name
    return (type(job.case), job.cutting, job.case.server)


async def _run_group(
    group: list[Job],
    start_server: ServerStarter,
    start_auth: AuthStarter,
    outcomes: Outcomes,
    lateness: Lateness,
) -> None:
    first = group[0].case
    try:
        if isinstance(first, TcpCase) and first.auth is not None:
            async with start_auth(first.auth) as auth:
                async with start_server(first.server, auth.address) as server:
                    await _run_cases(group, server, outcomes, lateness)
                for job in group:
                    _check_auth_requests(job, first.auth, auth, outcomes)
        else:
            async with start_server(first.server, None) as server:
                await _run_cases(group, server, outcomes, lateness)
    except Exception as error:  # a server that does not start or stop fails all its cases
        for job in group:
            outcomes.note(job, error)


async def _run_cases(
    group: list[Job], server: ServerUnderTest, outcomes: Outcomes, lateness: Lateness
) -> None:
    is_tcp = isinstance(group[0].case, TcpCase)
    places = trio.CapacityLimiter(TCP_CASES_AT_ONCE if is_tcp else 1)

    async def run(job: Job) -> None:
        async with places:
            start = trio.current_time()
            failure = await _failure_of(job, server)
            outcomes.note(job, failure)
            if is_tcp and failure is not None and await lateness.was_late_since(start):
                outcomes.disturbed.append(job)

    async with trio.open_nursery() as nursery:
        for job in sorted(group, key=lambda job: -job.waits_ms) if is_tcp else group:
            nursery.start_soon(run, job)
            await trio.lowlevel.checkpoint()


async def _failure_of(job: Job, server: ServerUnderTest) -> Exception | None:
    try:
        with trio.fail_after(CASE_LIMIT_S):
            await replay_job(job, server)
    except Exception as error:  # raised again by the case's own test
        return error
    return None


async def replay_job(job: Job, server: ServerUnderTest) -> None:
    """Replay one job on a server that fits it; raises what goes wrong."""
    if isinstance(job.case, TcpCase):
        await replay_tcp_case(job.case, server, Cutter(job.cutting, job.case.name))
    else:
        await replay_http_case(job.case, server)


def _check_auth_requests(job: Job, stub: AuthStub, auth: AuthServer, outcomes: Outcomes) -> None:
    seen = auth.requests
    if stub.requests_seen is not None and len(seen) != stub.requests_seen:
        outcomes.note(job, TranscriptMismatchError(f"auth server was asked {seen}"))
    elif stub.request is not None and seen[0] != dict(stub.request):
        outcomes.note(job, TranscriptMismatchError(f"{seen[0]}\nexpected {stub.request}"))
