"""What the commands import before they know what is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = ("trionsq.local.nsqd", "lookupd.cli", "admin.cli", "trionsq.local.main")
JOBS = "pipelines.__main__"
PROGRAM = """
import contextlib, importlib, io, sys
main = importlib.import_module(sys.argv[1]).main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    raise SystemExit(main(sys.argv[2:]))
large = {"trio", "quart", "hypercorn", "h11", "asyncio"}
if sys.argv[1].startswith("pipelines"):
    large = {"pyspark", "pyarrow", "numpy", "deltalake", "obstore"}
print(*(large & sys.modules.keys()))
"""


def imported(*words: str) -> list[str]:
    """Of the large packages, those that a command imports."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("flag", ["--version", "--help"])
@pytest.mark.parametrize("module", COMMANDS)
def test_questions_are_answered_without_the_large_packages(module: str, flag: str) -> None:
    """--version and --help import neither trio nor quart."""
    assert imported(module, flag) == []


@pytest.mark.parametrize("words", [["--help"], ["archive", "--help"]])
def test_the_help_of_the_pipelines_comes_before_spark(words: list[str]) -> None:
    """Nor does it need Arrow, or what else the extras install."""
    assert imported(JOBS, *words) == []


def test_a_broker_starts_without_the_framework() -> None:
    """What nsqd needs to listen and to answer /ping does not import quart and hypercorn."""
    program = (
        "import trionsq.local.nsqd_daemon, sys; "
        "print(*({'quart', 'hypercorn'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
