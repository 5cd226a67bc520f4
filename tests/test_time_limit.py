"""A test that hangs is told by name, and costs nothing but itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import smoke

ROOT = Path(__file__).parents[1]
LIMIT_S = 60.0
GRACE_S = 60.0
HEAD = """
import signal, threading
import pytest, trio

def hurry():
    \"\"\"Have what is left of the limit, or of the grace, end now.\"\"\"
    left_s, grace_s = signal.getitimer(signal.ITIMER_REAL)
    assert left_s > 0
    signal.setitimer(signal.ITIMER_REAL, min(left_s, 0.01), grace_s)
"""
WAITS = """
async def wait():
    hurry()
    await trio.sleep_forever()

async def test_it():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, name="the one that waits")
"""
SHIELDED = """
async def test_it():
    with trio.CancelScope(shield=True):
        while True:
            hurry()
            await trio.sleep(0.01)
"""
SPINS_IN_TRIO = """
async def test_it():
    while True:
        hurry()
"""
SPINS = """
def test_it():
    hurry()
    while True:
        pass
"""
IN_A_FIXTURE = """
@pytest.fixture
def slow():
    hurry()
    threading.Event().wait()

def test_it(slow):
    pass
"""
DEAF = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])

def test_it():
    threading.Event().wait()
"""


def run(
    folder: Path, body: str, limit_s: float = LIMIT_S, grace_s: float = GRACE_S
) -> subprocess.CompletedProcess[str]:
    """A run of pytest over the given test, which hangs, and one that does not."""
    (folder / "conftest.py").write_text(
        "from tests import time_limit\n"
        f"time_limit.LIMIT_S = {limit_s}\ntime_limit.GRACE_S = {grace_s}\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(time_limit)\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    (folder / "test_hang.py").write_text(f"{HEAD}{body}\n\ndef test_other():\n    pass\n")
    command = [sys.executable, "-m", "pytest", f"--rootdir={folder}", "-p", "no:cacheprovider",
               f"--config-file={folder / 'pytest.ini'}", str(folder)]  # fmt: skip
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    "hang",
    smoke(
        {
            "waits": (WAITS, "the one that waits"),
            "shielded": (SHIELDED, "in test_it"),
            "spins in trio": (SPINS_IN_TRIO, "in test_it"),
            "spins": (SPINS, "in test_it"),
            "in a fixture": (IN_A_FIXTURE, "in slow"),
        },
        "waits",
        "spins in trio",
        "in a fixture",
    ),
)
def test_a_test_that_hangs_fails_by_name(hang: tuple[str, str], tmp_path: Path) -> None:
    """Its failure shows where it was, and the next test runs and passes."""
    body, shown = hang
    done = run(tmp_path, body)
    assert f"test_hang.py::test_it exceeded its limit of {LIMIT_S:g} s" in done.stdout
    assert shown in done.stdout
    passed = "1 passed" in done.stdout
    assert passed, done.stdout
    assert done.returncode == 1


def test_a_process_that_can_not_be_stopped_ends(tmp_path: Path) -> None:
    """No exception reaches a thread that hears no signal: then the stacks come, and the end."""
    done = run(tmp_path, DEAF, limit_s=0.5, grace_s=0.5)
    assert "Timeout (" in done.stderr
    assert "in test_it" in done.stderr
    assert done.returncode == 1
