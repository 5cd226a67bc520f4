"""The wheel without extras: few packages, a quick import, and commands that say what they lack."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.install.programs import InstallError

__all__ = ["LACKING", "MAX_PACKAGES", "try_client"]

MAX_PACKAGES = 14
"""With pip, without setuptools, which `venv` puts into an environment of Python 3.11."""
LACKING = {
    "nsqd": "server",
    "nsqlookupd": "server",
    "nsqadmin": "server",
    "trionsq": "server",
    "nsq_to_http": "http",
}
"""The commands that refuse to run, and the extra that they name."""
# For what takes seconds; a machine may be busy.
LIMIT_S = 300.0
COMPLETE = ("to_nsq", "nsq_tail", "nsq_stat", "nsq_to_file", "nsq_to_nsq", "nsq_log", "nsq-drain")
_IMPORT = """
import time
begun = time.perf_counter()
from trionsq.client import Producer
print(time.perf_counter() - begun)
"""


def try_client(venv: Path, folder: Path) -> str:
    """Try an environment that has ``pip install trionsq`` and nothing else.

    Args:
        venv: the environment.
        folder: any; the working directory.

    Returns:
        Figures for a person: packages, MB, import time.

    Raises:
        InstallError: it has too many packages, a tool does not start, or a command without its
            extra does not say so.
    """
    python = str(venv / "bin" / "python")
    listed = _run([python, "-m", "pip", "list", "--format=freeze"], folder).stdout.split()
    packages = {line.partition("==")[0] for line in listed} - {"setuptools"}
    if len(packages) > MAX_PACKAGES:
        raise InstallError(f"{len(packages)} packages: {sorted(packages)}")
    for name in COMPLETE:
        if (done := _run([str(venv / "bin" / name), "--help"], folder)).returncode:
            raise InstallError(f"{name} --help: {done.stderr}")
    for name, extra in LACKING.items():
        done = _run([str(venv / "bin" / name), "--help"], folder)
        if done.returncode != 1 or f"pip install 'trionsq[{extra}]'" not in done.stderr:
            raise InstallError(f"{name} names no extra: {done.returncode} {done.stderr}")
    seconds = min(float(_run([python, "-c", _IMPORT], folder).stdout) for _ in range(3))
    nbytes = sum(path.stat().st_size for path in (venv / "lib").rglob("*") if path.is_file())
    return f"{len(packages)} packages, {nbytes / 1e6:.0f} MB, import {seconds:.3f} s"


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
