"""Runs the golden replays that were asked for once, all together, before their tests report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from tests.golden.cutting import Cutting
from tests.golden.jobs import (
    Job,
    Outcomes,
    OutcomesByCutting,
    Selection,
    jobs_asked_for,
    run_jobs,
)
from tests.golden.sockets import SocketPlace
from tests.processes import other_binary
from tests.soak import in_short_soak, in_soak

SELECTION = pytest.StashKey[Selection]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test with a ``tcp_job`` or ``http_job`` one instance for each case."""
    for fixture in ("tcp_job", "http_job"):
        if fixture in metafunc.fixturenames:
            jobs = _selection(metafunc.config).jobs
            wanted = [job for job in jobs if job.name.startswith(fixture.removesuffix("job")[:-1])]
            can_be_replayed = getattr(metafunc.module, "can_be_replayed", None)
            wanted = list(filter(can_be_replayed, wanted)) if can_be_replayed else wanted
            on_process = "process_outcomes" in metafunc.fixturenames
            params = [
                pytest.param(job, id=job.name, marks=marks_on_process(job) if on_process else ())
                for job in wanted
            ]
            metafunc.parametrize(fixture, params)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was left out, so that a green run is not taken for more than it is."""
    # Workers select for themselves; all select the same.
    if SELECTION in config.stash or getattr(config.option, "dist", "no") != "no":
        for line in _selection(config).summary():
            terminalreporter.write_line(line)


def marks_on_process(job: Job) -> Sequence[pytest.MarkDecorator]:
    """What is for soaks. Every cutting is replayed in memory at each run, and on a process those
    that are whole: what a real socket adds does not depend on where the bytes are cut. Cases that
    need a server each have it in this process (broker_places.py)."""
    server = job.case.server
    is_elsewhere = server.fresh and not (other_binary() or server.tls or server.fixed_ports)
    if job.cutting == "random" or is_elsewhere:
        return (in_soak,)
    return (in_short_soak,) if job.cutting != "whole" else ()


@pytest.fixture(scope="session")
def process_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> OutcomesByCutting:
    """How every selected case went against a real process; those of one cutting go together."""

    def replay(cutting: Cutting) -> Outcomes:
        jobs = [
            job for job in jobs_asked_for(request, "process_outcomes") if job.cutting == cutting
        ]
        place = SocketPlace(tmp_path_factory.mktemp("golden"))
        return trio.run(run_jobs, jobs, place.start_server, place.start_auth)

    return OutcomesByCutting(replay)


def _selection(config: pytest.Config) -> Selection:
    if SELECTION not in config.stash:
        config.stash[SELECTION] = Selection()
    return config.stash[SELECTION]
