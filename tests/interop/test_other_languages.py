"""The suites of clients in other languages, unmodified: ``make interop GO_NSQ=dir NSQJS=dir``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.suites import LIMIT_S

ROOT = Path(__file__).parents[2]
# The client, the variable with its folder, what runs it, and how many tests it has at least.
CLIENTS = [("go-nsq", "GO_NSQ", "go", 25), ("nsqjs", "NSQJS", "npx", 170)]


@pytest.mark.time_limit(LIMIT_S + 60)
@pytest.mark.parametrize(("client", "variable", "program", "count"), CLIENTS)
def test_the_suite_of_a_client(client: str, variable: str, program: str, count: int) -> None:
    """All of it passes."""
    folder = os.environ.get(variable, "")
    if not folder or shutil.which(program) is None:
        pytest.skip(f"{client}: {variable}=<its source>, and {program} in PATH")
    command = [sys.executable, "-m", "tests.interop.suites", client, folder]
    environment = dict(os.environ)
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
        command = ["unshare", "--net", *command]
        environment["TRIONSQ_OWN_NETWORK"] = "1"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 30,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{client}: {', '.join(f'{len(found)} {how}' for how, found in figures.items())}")
    assert figures["failed"] == []
    assert len(figures["passed"]) >= count
