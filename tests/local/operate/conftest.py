"""A cluster for a module, and commands for it."""

from __future__ import annotations

import os
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
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command."""
    # Half of a command's time would be spent on authorities that nobody asks for here.
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    return partial(run_command, capsys)
