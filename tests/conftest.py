"""What all tests share: the same examples at each run, a log as it was before, a time limit, and
which tests belong to this run."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from jinja2 import Environment
from trio.testing import MockClock
from werkzeug.routing.rules import Rule

from tests import time_limit
from tests.engines import use_engine
from tests.parallel import SPARK, Scheduling, group_of, rank
from tests.soak import LEVEL, belongs

settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    database=None,
    # The machine may be busy with other work; a slow draw says nothing about the code.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", max_examples=1_000, deadline=None, print_blob=True)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
settings.load_profile(PROFILE)
if PROFILE == "same":
    # Hypothesis also draws the constants of those modules of the project that are loaded by then,
    # which depends on the tests that the worker ran before. It has no setting for that.
    assert callable(vars(providers)["is_local_module_file"])
    vars(providers)["is_local_module_file"] = lambda path: False


def uses_the_spark_of_all(item: pytest.Item) -> bool:
    """Whether the test uses the session that is made once, in tests/pipelines/conftest.py."""
    info = getattr(item, "_fixtureinfo", None)
    made = info.name2fixturedefs.get("spark", ()) if info else ()
    return any(each.scope == "session" for each in made)


LEFT_OUT = pytest.StashKey[int]()
"""How many of the collected tests belong to another run."""


def pytest_configure(config: pytest.Config) -> None:
    """Add the time limit, and make the marker known."""
    config.pluginmanager.register(time_limit, "time-limit")
    use_engine()
    config.addinivalue_line("markers", "soak(lowest): see tests/soak.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what belongs to this run; for a worker, what takes long comes first."""
    left_out = [item for item in items if not belongs(item)]
    config.stash[LEFT_OUT] = len(left_out)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if belongs(item)]
    for item in items:
        if uses_the_spark_of_all(item) and group_of(item.nodeid) != SPARK:
            raise pytest.UsageError(f"{item.nodeid} uses spark: enter its file in SPARK_FILES")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


@pytest.fixture
def autojump_clock(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """That of pytest-trio. It would jump while a thread works, so what a thread would do is done
    at once."""

    async def run_now(work: Callable[..., object], *args: object, **options: object) -> object:
        await trio.lowlevel.checkpoint()
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_now)
    return autojump_clock


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: each full collection would pass over them, and
    some sweeps ask for one at each step."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """See tests/parallel.py; whatever --dist says."""
    return Scheduling(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker sends the controller the count of the tests that it left out."""
    config: Any = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Keep the count of a worker. All workers collect the same tests, so the last count will do."""
    output = getattr(node, "workeroutput", {})
    if "left_out" in output:
        node.config.stash[LEFT_OUT] = output["left_out"]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Count the tests that did not run, so that nobody takes a green run for more than it is."""
    left_out = config.stash.get(LEFT_OUT, 0)
    if left_out and LEVEL == "test":
        terminalreporter.write_line(f"{left_out} tests are left to `make soak`")


@pytest.fixture(scope="session", autouse=True)
def templates_compiled_once() -> Iterator[None]:
    """The many dashboards of the tests in this process have the same templates, and nsqadmin
    compiles all of them at its start."""
    plain, compiled = Environment.compile, dict[tuple[str, str], Any]()

    def compile_once(
        self: Environment, source: str, name: str | None = None, filename: str = "", **more: Any
    ) -> Any:
        key = (filename, source)
        if more or not filename:
            return plain(self, source, name, filename or None, **more)
        if key not in compiled:
            compiled[key] = plain(self, source, name, filename)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "compile", compile_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def urls_built_when_asked_for() -> Iterator[None]:
    """For each route of an app werkzeug compiles two functions that build its URL: for the apps of
    all tests a good part of their time, and few ever build one."""
    plain = Rule._compile_builder

    def compile_when_called(self: Rule, append_unknown: bool = True) -> Callable[..., Any]:
        made: list[Callable[..., Any]] = []

        def build(rule: Rule, *args: Any, **values: Any) -> Any:
            if not made:
                made.append(plain(self, append_unknown))
            return made[0](rule, *args, **values)

        return build

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "_compile_builder", compile_when_called)
        yield


# Those that our commands set up.
_LOGGERS = ("trionsq", "trionsq.client", "pipelines.receiver", "pipelines.wal")


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """A test that runs a command in this process does not decide what others' logs hold."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(list(one.handlers), list(one.filters), one.level, one.propagate) for one in loggers]
    yield
    for logger, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.filters[:], logger.propagate = handlers, filters, propagate
        logger.setLevel(level)
