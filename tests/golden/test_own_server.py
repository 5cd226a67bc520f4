"""The golden TCP transcripts that need sockets and a server each, with brokers in this process.

An auth server is asked, or a disk fails. The full soak replays them with a process for each.
"""

from __future__ import annotations

import pytest
import trio

from tests.golden.broker_places import InProcess
from tests.golden.jobs import Job, Outcomes, jobs_asked_for, run_jobs
from tests.processes import other_binary


def can_be_replayed(job: Job) -> bool:
    """Whether it is one of these."""
    server = job.case.server
    return server.fresh and not (other_binary() or server.tls or server.fixed_ports)


@pytest.fixture(scope="module")
def own_server_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """How every selected case went."""
    place = InProcess(tmp_path_factory.mktemp("own"), "whole")
    jobs = jobs_asked_for(request, "own_server_outcomes")
    return trio.run(run_jobs, jobs, place.start_server, place.start_auth)


def test_tcp_conversation_with_a_server_of_its_own(
    tcp_job: Job, own_server_outcomes: Outcomes
) -> None:
    """A client that speaks V2 is answered as nsqd v1.3.0 answers, AUTH and faults included."""
    own_server_outcomes.check(tcp_job)
