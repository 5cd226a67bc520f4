"""Runs the golden replays that were asked for once, all together, before their tests report."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.golden.jobs import Job, Outcomes, Selection, run_jobs
from tests.golden.sockets import SocketPlace

SELECTION = pytest.StashKey[Selection]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test with a ``tcp_job`` or ``http_job`` one instance for each case."""
    for fixture in ("tcp_job", "http_job"):
        if fixture in metafunc.fixturenames:
            jobs = _selection(metafunc.config).jobs
            wanted = [job for job in jobs if job.name.startswith(fixture.removesuffix("job")[:-1])]
            metafunc.parametrize(fixture, wanted, ids=[job.name for job in wanted])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was left out, so that a green run is not taken for more than it is."""
    if SELECTION in config.stash:
        for line in config.stash[SELECTION].summary():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def process_outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """How every selected case went against a real process."""
    jobs = [job for item in request.session.items for job in _jobs_of(item)]
    place = SocketPlace(tmp_path_factory.mktemp("golden"))
    return trio.run(run_jobs, jobs, place.start_server, place.start_auth)


def _jobs_of(item: pytest.Item) -> list[Job]:
    if "process_outcomes" not in getattr(item, "fixturenames", ()):
        return []
    callspec = getattr(item, "callspec", None)
    return (
        [value for value in callspec.params.values() if isinstance(value, Job)] if callspec else []
    )


def _selection(config: pytest.Config) -> Selection:
    if SELECTION not in config.stash:
        config.stash[SELECTION] = Selection()
    return config.stash[SELECTION]
