"""The rows of the pipelines' sink: `clients.sink` publishes, the server's counts are checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.checks import await_counts
from benchmarks.generator import CHANNEL, TOPIC, Bench, MeasureError, run_load
from benchmarks.rows import Row, Run
from benchmarks.servers import Server, ServerError

SINK_S = 120.0

_ROOT = Path(__file__).parent.parent


def run_sink(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """One run on a fresh server.

    Raises `MeasureError` or `ServerError` when a message is missing or doubled.
    """
    with bench.kinds.start(kind, [f"--mem-queue-size={row.memory_queue}"]) as server:
        try:
            where: dict[str, int | str | bool] = {"port": server.tcp_port, "topic": TOPIC}
            run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
            cpu_s = server.cpu_s()
            run = _run_program(server, messages, row.layer)
            await_counts(server, published=messages, waiting=messages)
            return {**run, "cpu_seconds": server.cpu_s() - cpu_s}
        except (MeasureError, ServerError) as error:
            text = f"{error}; the server's last lines:\n{server.last_lines()}"
            raise MeasureError(text) from error


def _run_program(server: Server, messages: int, mode: str) -> Run:
    order = (f"127.0.0.1:{server.tcp_port}", TOPIC, str(messages), mode)
    command = [sys.executable, "-m", "benchmarks.clients.sink", *order]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=SINK_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{messages} messages are not done after {SINK_S:g} s") from error
    if done.returncode:
        raise MeasureError(f"it has not done {messages} messages: {done.stderr[-1500:]}")
    run: dict[str, object] = json.loads(done.stdout)
    return run
