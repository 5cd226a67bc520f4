"""The golden transcripts of nsqlookupd: against a process on sockets, those of TCP also in memory.

TRIONSQ_TEST_NSQLOOKUPD=/path/to/nsqlookupd replays those on sockets against that one.
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.golden.cutting import CUTTINGS, Cutting
from tests.golden.jobs import Job, Outcomes, OutcomesByCutting, jobs_asked_for, run_jobs
from tests.golden.lookupd_places import no_auth, start_in_memory, start_process
from tests.golden.transcripts import HERE, load_http_cases, load_tcp_cases
from tests.soak import in_short_soak

TCP_FILE = HERE / "data" / "lookupd_tcp.jsonl"
HTTP_FILE = HERE / "data" / "http_lookupd.jsonl"

TCP_JOBS = [Job(case, cutting) for case in load_tcp_cases(TCP_FILE) for cutting in CUTTINGS]
HTTP_JOBS = [Job(case, "whole") for case in load_http_cases(HTTP_FILE)]


ON_PROCESS = [
    pytest.param(job, id=job.name, marks=() if job.cutting == "whole" else in_short_soak)
    for job in TCP_JOBS + HTTP_JOBS
]


@pytest.fixture(scope="module")
def lookupd_process_outcomes(request: pytest.FixtureRequest) -> OutcomesByCutting:
    """How every selected case went against processes; those of one cutting go together."""

    def replay(cutting: Cutting) -> Outcomes:
        jobs = jobs_asked_for(request, "lookupd_process_outcomes")
        cut = [job for job in jobs if job.cutting == cutting]
        return trio.run(run_jobs, cut, start_process, no_auth)

    return OutcomesByCutting(replay)


@pytest.fixture(scope="module")
def lookupd_memory_outcomes(request: pytest.FixtureRequest) -> OutcomesByCutting:
    """How every selected case went in memory; those of one cutting go together."""

    def replay(cutting: Cutting) -> Outcomes:
        jobs = jobs_asked_for(request, "lookupd_memory_outcomes")
        cut = [job for job in jobs if job.cutting == cutting]
        clock = MockClock(autojump_threshold=0.01)
        return trio.run(run_jobs, cut, start_in_memory, no_auth, clock=clock)

    return OutcomesByCutting(replay)


@pytest.mark.parametrize("job", ON_PROCESS)
def test_conversation(job: Job, lookupd_process_outcomes: OutcomesByCutting) -> None:
    """nsqds, consumers and nsqadmin are answered as by nsqlookupd v1.3.0, however bytes are cut."""
    lookupd_process_outcomes.check(job)


@pytest.mark.parametrize("job", TCP_JOBS, ids=lambda job: job.name)
def test_conversation_in_memory(job: Job, lookupd_memory_outcomes: OutcomesByCutting) -> None:
    """Also without a kernel between, and with time leaping."""
    lookupd_memory_outcomes.check(job)
