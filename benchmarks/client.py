"""The rows of client libraries: each program of `clients`, beside others that do the same."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.checks import await_counts
from benchmarks.generator import CHANNEL, CONSUMED, TOPIC, Bench, MeasureError, run_load
from benchmarks.rows import Row, Run
from benchmarks.servers import Server, ServerError

READER = "reader"
"""The generator's own consumer, in C."""
# A fast one beside a slow one needs so many messages for a rate that means something.
BESIDE_LEAST = 500_000
# A busy machine takes long; what counts is timed by the program itself.
CLIENT_S = 300.0

_ROOT = Path(__file__).parent.parent


def run_client(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """The same load several times, each on a fresh server: those beside, then the client itself.

    What it returns is the client's run; the others are in it as `beside`, by name. Raises
    `MeasureError` or `ServerError` when a message is missing, doubled or not finished.
    """
    runs = {}
    for name in (*row.beside, row.client):
        is_beside = name != row.client and not bench.quick
        count = max(messages, BESIDE_LEAST) if is_beside else messages
        with bench.kinds.start(kind, [f"--mem-queue-size={row.memory_queue}"]) as server:
            try:
                runs[name] = _run(bench, row, server, name, count)
            except (MeasureError, ServerError) as error:
                text = f"{name}: {error}; the server's last lines:\n{server.last_lines()}"
                raise MeasureError(text) from error
    return {**runs.pop(row.client), "beside": runs}


def _run(bench: Bench, row: Row, server: Server, name: str, messages: int) -> dict[str, Any]:
    where: dict[str, int | str | bool] = {"port": server.tcp_port, "topic": TOPIC}
    run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
    size = int(bench.options(row)["size-max"])
    if row.scenario == "publish":
        return _run_program(server, name, messages, size, waiting=messages)
    where |= {"messages": messages, **bench.options(row)}
    consuming: dict[str, int | str | bool] = {"channel": CONSUMED, "pid": server.process.pid}
    sizes = {key: value for key, value in where.items() if key not in ("consumers", "rdy")}
    run_load(bench.load, "publish", {**sizes, "publishers": 2, "batch": 200})
    await_counts(server, published=messages, waiting=messages)
    if name == READER:
        run = run_load(bench.load, "consume", {**where, **consuming})
        await_counts(server, published=messages, waiting=0)
        return run
    return _run_program(server, name, messages, size, waiting=0)


def _run_program(
    server: Server, name: str, messages: int, size: int, *, waiting: int
) -> dict[str, Any]:
    """One program of `clients`; killed once so many messages wait at the server, or after 5 min."""
    order = (f"127.0.0.1:{server.tcp_port}", TOPIC, CONSUMED, str(messages))
    module, _, option = name.partition(":")
    words = (*order, option) if option else order
    command = [sys.executable, "-m", f"benchmarks.clients.{module}", *words]
    cpu_s = server.cpu_s()
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=complaints)
        assert process.stdout is not None
        try:
            line = _line(process.stdout, CLIENT_S)
            if line.endswith(b"\n"):
                await_counts(server, published=messages, waiting=waiting)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        complaints.seek(0)
        said = complaints.read()[-1500:].decode(errors="replace")
    if not line.endswith(b"\n"):
        raise MeasureError(f"it has not done {messages} messages in {CLIENT_S:g} s: {said}")
    run: dict[str, Any] = json.loads(line)
    if (run["messages"], run["nbytes"]) != (messages, messages * size):
        raise MeasureError(f"{run['messages']} messages of {run['nbytes']} bytes, not {messages}")
    return {**run, "cpu_seconds": server.cpu_s() - cpu_s}


def _line(stream: IO[bytes], within_s: float) -> bytes:
    """What it writes up to a newline; what there is of it at its end or after that time."""
    end, line = time.monotonic() + within_s, b""
    while not line.endswith(b"\n"):
        left_s = end - time.monotonic()
        if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
            break
        data = os.read(stream.fileno(), 65_536)  # not through its buffer, which select can't see
        if not data:
            break
        line += data
    return line
