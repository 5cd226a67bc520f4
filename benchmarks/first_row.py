"""``python -m benchmarks.first_row``: how long it takes from nothing to the first row in Spark.

Each run makes an empty environment, installs the wheel with its extra ``spark`` there (pip's cache
is used if there is one), and runs a program that reads a topic of an nsqd on this machine with
``foreachBatch``. Needs a registry.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.install.__main__ import build_wheel
from trionsq.testing import broker_in_thread

__all__ = ["main"]

_LIMIT_S: Final = 900.0
_PROGRAM: Final = """\
import os, sys, time
import threading
start_s = time.time()
from pipelines.session import spark_session
spark = spark_session("first row")
session_s = time.time()
rows = spark.readStream.format("nsq").options(**{{
    "topic": "t", "channel": "c", "nsqd.tcp.addresses": {nsqd!r}, "walPath": {wal!r},
}}).load()
first = threading.Event()
query = rows.writeStream.foreachBatch(
    lambda frame, batch: first.set() if frame.count() else None
).option("checkpointLocation", {checkpoint!r}).start()
while not first.wait(0.02):
    assert query.isActive, query.exception()
print("SECONDS", session_s - start_s, time.time() - session_s)
query.stop()
spark.stop()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_row", description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args(arguments)
    print(f"{'run':>3}  {'pip install':>11}  {'session':>8}  {'first row':>9}  {'together':>8}  s")
    for run in range(1, options.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            seconds = _run(Path(folder))
        cells = f"{seconds[0]:11.1f}  {seconds[1]:8.1f}  {seconds[2]:9.1f}  {sum(seconds):8.1f}"
        print(f"{run:3}  {cells}", flush=True)
    return 0


def _run(folder: Path) -> tuple[float, float, float]:
    """Seconds of the installation, of Spark's start, and from then to the first row."""
    wheel = build_wheel(folder)
    start_s = time.monotonic()
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    _output(folder, str(python), "-m", "pip", "install", "--quiet", f"{wheel}[spark]")
    installed_s = time.monotonic() - start_s
    with broker_in_thread() as nsqd:
        _publish(nsqd.tcp_address)
        program = _PROGRAM.format(
            nsqd=nsqd.tcp_address, wal=str(folder / "wal"), checkpoint=str(folder / "checkpoint")
        )
        text = _output(folder, str(python), "-c", program)
    (line,) = (line for line in text.splitlines() if line.startswith("SECONDS "))
    _, session_s, row_s = line.split()
    return installed_s, float(session_s), float(row_s)


def _publish(address: str) -> None:
    to_nsq = [sys.executable, "-m", "trionsq.tools.to_nsq", "--topic=t"]
    subprocess.run(
        [*to_nsq, f"--nsqd-tcp-address={address}"], input=b"hello\n", check=True, timeout=60,
        capture_output=True,
    )  # fmt: skip


def _output(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[:3]} exits with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
