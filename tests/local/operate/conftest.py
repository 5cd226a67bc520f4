"""A cluster for a module, and commands for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.local.operate.stage import RealCluster, Run, real_cluster, run_command


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """One for all tests of a module; each has topics of its own."""
    with real_cluster() as running:
        yield running


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command."""
    return partial(run_command, capsys)
