"""The two disk rows that are more than one load on one server: a restart, a slow channel."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from benchmarks.checks import await_counts, await_depth, check_on_disk
from benchmarks.generator import CHANNEL, CONSUMED, SLOW, TOPIC, Bench, MeasureError, run_load
from benchmarks.rows import Row, Run
from benchmarks.servers import Server, ServerError

DEFAULT_MEMORY_QUEUE = 10_000  # messages: nsqd's own default, and what it keeps off the disk
STOP_S = 120.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def run_start(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """A clean stop with all messages in one channel's memory, then a start, to the first of them.

    Raises `MeasureError` or `ServerError` when one is missing or the stop was not clean.
    """
    with bench.kinds.folder() as folder:
        with bench.kinds.start(kind, [f"--mem-queue-size={row.memory_queue}"], folder) as server:
            where: dict[str, int | str] = {"port": server.tcp_port, "topic": TOPIC}
            run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
            fill = {"publishers": 2, "batch": 200, "messages": messages}
            run_load(bench.load, "publish", {**where, **fill})
            await_counts(server, published=messages, waiting=messages)
            stop_s = server.stop(STOP_S)
        port = free_port()
        with bench.kinds.launch(kind, [], folder, port) as launched:
            options: dict[str, int | str] = {"topic": TOPIC, "channel": CONSUMED, "stall": 60}
            options |= {"port": port, "pid": launched.process.pid, "messages": messages}
            options |= {"since-ns": launched.since_ns, **bench.options(row)}
            try:
                run = run_load(bench.load, row.scenario, options)
            except MeasureError as error:
                raise MeasureError(f"{error}; its last lines:\n{launched.last_lines()}") from error
            started = launched.listening()
            cpu_s, resident = started.cpu_s(), started.resident_bytes()
            await_depth(started, CONSUMED, messages - run["finished"])
    # Not per message: what a start costs should hardly depend on how many wait.
    run |= {"messages": 0, "stop_seconds": stop_s, "cpu_seconds": cpu_s}
    return {**run, "resident_after": resident, "options": options}


def _link(backlog: Path, folder: Path) -> None:
    """Puts the backlog's queue files into a data folder; only what a server replaces is shared."""
    for path in backlog.iterdir():
        os.link(path, folder / path.name)


def _beside(bench: Bench, row: Row, server: Server, messages: int, behind: int) -> dict[str, Any]:
    where: dict[str, int | str] = {"port": server.tcp_port, "topic": TOPIC}
    slow: dict[str, int | str] = {}
    if behind:
        await_depth(server, SLOW, behind)
        slow = {"slow": 1, "slow-channel": SLOW}
    run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
    where |= {"channel": CONSUMED, "pid": server.process.pid, "messages": messages}
    options = {**where, **slow, **bench.options(row)}
    cpu_s = server.cpu_s()
    run = run_load(bench.load, row.scenario, options)
    await_counts(server, published=messages, waiting=0)
    if behind:
        await_depth(server, SLOW, behind + messages)
        check_on_disk(
            server, SLOW, behind + messages - DEFAULT_MEMORY_QUEUE - run["slow_delivered"]
        )
        if not run["slow_delivered"]:
            raise MeasureError("the slow consumer never got a message")
    # What the slow channel still had to write when the fast one was done counts as well.
    return {**run, "cpu_seconds": server.cpu_s() - cpu_s, "options": options}


def run_beside(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """The same load twice, each on a fresh server: alone, and beside a slow channel.

    What it returns is the run beside; the one alone is in it as `alone`. Raises `MeasureError`
    or `ServerError` when a message is missing in either channel.
    """
    runs = []
    behind = row.quick_backlog if bench.quick else row.backlog
    for backlog in (0, behind):
        with bench.kinds.folder() as folder:
            if backlog:
                _link(bench.backlog(row), folder)
            options = [f"--mem-queue-size={row.memory_queue}"]
            with bench.kinds.start(kind, options, folder) as server:
                try:
                    runs.append(_beside(bench, row, server, messages, backlog))
                except (MeasureError, ServerError) as error:
                    text = f"{error}; its last lines:\n{server.last_lines()}"
                    raise MeasureError(text) from error
    return {**runs[1], "alone": runs[0]}
