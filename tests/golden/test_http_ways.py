"""The golden HTTP transcripts in this process: on the fast path and through the framework.

Requests are sent whole and byte by byte. What a process is needed for (log, exit, addresses that
are known beforehand) is checked elsewhere; the sockets are real.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import trio

from tests.golden.broker_places import InProcess
from tests.golden.cutting import Cutting
from tests.golden.jobs import Job, Outcomes, jobs_asked_for, run_jobs
from tests.processes import other_binary
from tests.soak import by_level, more_in_soak
from trionsq.http.serve import serve_http
from trionsq.local import nsqd_daemon

WAYS = ("short", "framework")
CUTTINGS: tuple[Cutting, ...] = by_level(
    test=("whole",), short=("bytewise",), full=("whole", "bytewise")
)


def can_be_replayed(job: Job) -> bool:
    """Whether the case can be replayed here."""
    return not (other_binary() or job.case.server.tls or job.case.server.fixed_ports)


OutcomesByWay = dict[tuple[str, str], Outcomes]


@pytest.fixture(scope="module")
def ways_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> OutcomesByWay:
    """How every selected HTTP case went, by way and cutting."""
    jobs = {job.name: job for job in jobs_asked_for(request, "ways_outcomes")}
    outcomes: OutcomesByWay = {}
    with pytest.MonkeyPatch.context() as patch:
        for way, cutting in product(WAYS, CUTTINGS):
            patch.setattr(nsqd_daemon, "serve_http", partial(serve_http, fast_path=way == "short"))
            place = InProcess(tmp_path_factory.mktemp(way), cutting)
            outcomes[way, cutting] = trio.run(
                run_jobs, list(jobs.values()), place.start_server, place.start_auth
            )
    return outcomes


@more_in_soak
@pytest.mark.parametrize("cutting", CUTTINGS)
@pytest.mark.parametrize("way", WAYS)
def test_http_conversation_on_both_ways(
    http_job: Job, way: str, cutting: str, ways_outcomes: OutcomesByWay
) -> None:
    """An HTTP client is answered as nsqd v1.3.0 answers, whichever part of the server does it."""
    ways_outcomes[way, cutting].check(http_job)
