"""Which tests stay together when several workers run them, and in which order they begin.

A worker gets a file at a time, so what is made for a module is made once. Tests with one Spark
session form one group over all their files, and so do those with one browser. A file whose tests
share nothing is handed out test by test. What takes long begins first, so that no worker has to
wait for the other one in the end.
"""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

__all__ = ["SPARK", "SPARK_FILES", "Scheduling", "group_of", "rank"]

SPARK: Final = "spark"
SPARK_FILES: Final = (
    "tests/pipelines/cluster/test_standalone.py",
    "tests/pipelines/drill/test_drill.py",
    "tests/pipelines/drill/test_receivers.py",
    "tests/pipelines/jobs/test_delta.py",
    "tests/pipelines/jobs/test_delta_jobs.py",
    "tests/pipelines/jobs/test_jobs.py",
    "tests/pipelines/jobs/test_restarts.py",
    "tests/pipelines/sink/test_spark.py",
    "tests/pipelines/source/test_killed_driver.py",
    "tests/pipelines/source/test_spark.py",
    "tests/pipelines/test_session.py",
    "tests/pipelines/topiclog/test_spark.py",
)
"""What uses the session of tests/pipelines/conftest.py."""
BROWSER: Final = "tests/browser/"
"""What uses the browser and the cluster of tests/browser/conftest.py."""
BY_TEST: Final = (
    "tests/admin/test_cancellation.py",
    "tests/drill/test_drill.py",
    "tests/foreign/test_clients.py",
    "tests/fuzz/test_fuzz.py",
    "tests/hostile/test_hostile.py",
    "tests/http/test_cancellation.py",
    "tests/http/test_cancellation_endpoints.py",
    "tests/local/test_cancellation.py",
    "tests/local/test_up.py",
    "tests/storage/log/sweep/test_sweep.py",
)
BY_CUTTING: Final = ("tests/golden/test_process.py", "tests/golden/test_lookupd.py")
"""Their ids end with the cutting of the conversation."""
LONG: Final = (
    SPARK,
    BROWSER,
    "tests/simulation/test_swarm.py",
    "tests/golden/test_process.py",
    "tests/golden/test_own_server.py",
    "tests/golden/test_http_ways.py",
    "tests/golden/test_lookup_client.py",
    "tests/pipelines/jobs/test_process.py",
    "tests/deploy/test_drill.py",
    "tests/local/",
    "tests/deploy/",
    "tests/foreign/",
    "tests/tools/",
    "tests/hostile/",
    "tests/fuzz/",
    "tests/drill/",
    "tests/golden/",
    "tests/test_time_limit.py",
    "tests/benchmarks/",
    "tests/cluster/",
    "tests/pipelines/",
    "tests/core/test_channel_machine.py",
    "tests/storage/",
    "tests/broker/",
    "tests/http/",
    "tests/admin/",
)
"""Beginnings of the groups that take longest, the longest first."""


def group_of(nodeid: str) -> str:
    """The group of a test: one worker runs all of a group, one after the other."""
    path = nodeid.partition("::")[0]
    if path in SPARK_FILES:
        return SPARK
    if path.startswith(BROWSER):
        return BROWSER
    if path in BY_TEST:
        return nodeid
    if path in BY_CUTTING:
        return f"{path}::{nodeid.rpartition('-')[2]}"
    return path


def rank(nodeid: str) -> int:
    """The place of a test's group among those that take long."""
    group = group_of(nodeid)
    places = (place for place, beginning in enumerate(LONG) if group.startswith(beginning))
    return next(places, len(LONG))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out groups in the order in which the tests were collected."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
