"""The golden transcripts of nsqlookupd: against a process on sockets, those of TCP also in memory.

TRIONSQ_TEST_NSQLOOKUPD=/path/to/nsqlookupd replays those on sockets against that one.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.golden.cutting import CUTTINGS
from tests.golden.jobs import Job, Outcomes, run_jobs
from tests.golden.lookupd_places import no_auth, start_in_memory, start_process
from tests.golden.transcripts import HERE, load_http_cases, load_tcp_cases

TCP_FILE = HERE / "data" / "lookupd_tcp.jsonl"
HTTP_FILE = HERE / "data" / "http_lookupd.jsonl"

TCP_JOBS = [Job(case, cutting) for case in load_tcp_cases(TCP_FILE) for cutting in CUTTINGS]
HTTP_JOBS = [Job(case, "whole") for case in load_http_cases(HTTP_FILE)]


def jobs_asked_for(request: pytest.FixtureRequest, fixture: str) -> list[Job]:
    """The jobs of the tests of this run that use the fixture."""
    items: list[Any] = request.session.items
    return [
        item.callspec.params["job"]
        for item in items
        if fixture in getattr(item, "fixturenames", ())
    ]


@pytest.fixture(scope="module")
def lookupd_process_outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """How every selected case went against processes."""
    jobs = jobs_asked_for(request, "lookupd_process_outcomes")
    return trio.run(run_jobs, jobs, start_process, no_auth)


@pytest.fixture(scope="module")
def lookupd_memory_outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """How every selected case went in memory."""
    jobs = jobs_asked_for(request, "lookupd_memory_outcomes")
    clock = MockClock(autojump_threshold=0.01)
    return trio.run(run_jobs, jobs, start_in_memory, no_auth, clock=clock)


@pytest.mark.parametrize("job", TCP_JOBS + HTTP_JOBS, ids=lambda job: job.name)
def test_conversation(job: Job, lookupd_process_outcomes: Outcomes) -> None:
    """nsqds, consumers and nsqadmin are answered as by nsqlookupd v1.3.0, however bytes are cut."""
    lookupd_process_outcomes.check(job)


@pytest.mark.parametrize("job", TCP_JOBS, ids=lambda job: job.name)
def test_conversation_in_memory(job: Job, lookupd_memory_outcomes: Outcomes) -> None:
    """Also without a kernel between, and with time leaping."""
    lookupd_memory_outcomes.check(job)
