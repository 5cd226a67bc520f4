"""The rows of the log engine: the same load on it and on what it is compared with, in one run.

Every server syncs before it answers (``--durability=always``), but for those it is compared with:
nsqd that keeps messages in memory, a bare loop that appends and syncs, one topic for all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.checks import await_counts, await_depth
from benchmarks.clients.deferred import DeferredError, run_deferred
from benchmarks.disk import STOP_S, free_port
from benchmarks.generator import CHANNEL, CONSUMED, SLOW, TOPIC, Bench, MeasureError, run_load
from benchmarks.logread import read_both_forms
from benchmarks.rows import Row, Run
from benchmarks.servers import OURS, Server, ServerError

__all__ = ["LOG", "MEMORY", "load_server", "run_on_log"]

LOG: Final = ("--storage=log", "--durability=always")
MEMORY: Final = ("--mem-queue-size=10000000",)
_FILL: Final = {"publishers": 2, "batch": 200, "window": 10}
_RECORD_BYTES: Final = 256


def run_on_log(bench: Bench, row: Row, messages: int) -> Run:
    """Run a row whose procedure is "log-" and what it does.

    What it returns is the run on the log; the others are in it as `beside`, by name. Raises
    `MeasureError` or `ServerError` when a message is missing.
    """
    what = row.procedure.removeprefix("log-")
    if what == "start":
        return _start(bench, row, messages)
    if what == "behind":
        return _behind(bench, row, messages)
    if what == "read":
        return _read(bench, row, messages)
    if what == "deferred":
        with bench.kinds.start(OURS, LOG) as server:
            return _or_last_lines(
                server, lambda: run_deferred(server, messages, float(bench.options(row)["lead"]))
            )
    if what == "loop":
        with bench.kinds.folder() as folder:
            beside = {"loop": _bare_loop(folder / "loop", bench.seconds)}
        return {**load_server(bench, row, LOG, messages), "beside": beside}
    if what == "topics":
        one = load_server(bench, row, LOG, messages, topics=1)
        return {**load_server(bench, row, LOG, messages), "beside": {"one-topic": one}}
    memory = load_server(bench, row, MEMORY, messages)
    return {**load_server(bench, row, LOG, messages), "beside": {"memory": memory}}


def _or_last_lines(server: Server, work: Any) -> Run:
    try:
        run: Run = work()
    except (DeferredError, MeasureError, ServerError) as error:
        raise MeasureError(f"{error}; its last lines:\n{server.last_lines()}") from error
    return run


def load_server(
    bench: Bench, row: Row, options: Sequence[str], messages: int, **others: int
) -> dict[str, Any]:
    """One load on a fresh server; for a consumer, of messages that are there already."""
    chosen = {**bench.options(row), **others, "messages": messages}
    with bench.kinds.folder() as folder:
        if row.preload and row.layer == "cold":
            _fill(bench, folder, options, messages)
        with bench.kinds.start(OURS, options, folder) as server:
            where: dict[str, int | str | bool] = {
                "port": server.tcp_port, "pid": server.process.pid, "topic": TOPIC,
            }  # fmt: skip
            if row.preload:
                if row.layer != "cold":
                    _publish(bench, server, messages)
                where["channel"] = CONSUMED
            elif "topics" not in chosen:
                run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
            cpu_s = server.cpu_s()

            def work() -> Run:
                run = run_load(bench.load, row.scenario, {**where, **chosen})
                if "topics" in chosen:
                    _check_topics(server, messages)
                else:
                    waiting = messages if row.scenario == "publish" else 0
                    if row.layer == "cold":
                        await_depth(server, CONSUMED, waiting)
                    else:
                        await_counts(server, published=messages, waiting=waiting)
                return run

            run = _or_last_lines(server, work)
            return {**run, "cpu_seconds": server.cpu_s() - cpu_s, "options": chosen}


def _publish(bench: Bench, server: Server, messages: int) -> None:
    where: dict[str, int | str] = {"port": server.tcp_port, "topic": TOPIC}
    run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
    run_load(bench.load, "publish", {**where, **_FILL, "messages": messages})
    await_counts(server, published=messages, waiting=messages)


def _fill(bench: Bench, folder: Path, options: Sequence[str], messages: int) -> None:
    """Fill a data folder, and stop that server."""
    with bench.kinds.start(OURS, options, folder) as server:
        _publish(bench, server, messages)
        server.stop(STOP_S)


def _check_topics(server: Server, messages: int) -> None:
    published = sum(topic["message_count"] for topic in server.all_stats())
    if published != messages:
        raise MeasureError(f"topics say {published}, published were {messages}")


def _bare_loop(path: Path, seconds: float) -> dict[str, Any]:
    """Append a record and sync it, one after the other."""
    record = bytes(_RECORD_BYTES)
    count, end_s = 0, time.monotonic() + seconds
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    began_s = time.monotonic()
    try:
        while (now_s := time.monotonic()) < end_s:
            os.pwrite(file, record, count * _RECORD_BYTES)
            os.fdatasync(file)
            count += 1
    finally:
        os.close(file)
    return {"timed_messages": count, "timed_seconds": now_s - began_s}


def _start(bench: Bench, row: Row, messages: int) -> Run:
    """A start with so many messages in the log, to the first of them."""
    with bench.kinds.folder() as folder:
        _fill(bench, folder, LOG, messages)
        port = free_port()
        with bench.kinds.launch(OURS, LOG, folder, port) as launched:
            options: dict[str, int | str] = {
                "topic": TOPIC, "channel": CONSUMED, "stall": 60, "port": port,
                "pid": launched.process.pid, "messages": messages,
                "since-ns": launched.since_ns, **bench.options(row),
            }  # fmt: skip
            try:
                run = run_load(bench.load, row.scenario, options)
            except MeasureError as error:
                raise MeasureError(f"{error}; its last lines:\n{launched.last_lines()}") from error
            started = launched.listening()
            cpu_s, resident = started.cpu_s(), started.resident_bytes()
            await_depth(started, CONSUMED, messages - run["finished"])
    return {**run, "messages": 0, "cpu_seconds": cpu_s, "resident_after": resident}


def _read(bench: Bench, row: Row, messages: int) -> Run:
    """A log is read over HTTP after a restart; then a consumer gets the same, after another."""
    with bench.kinds.folder() as folder:
        _fill(bench, folder, LOG, messages)
        with bench.kinds.start(OURS, LOG, folder) as server:
            cpu_s = server.cpu_s()
            run = _or_last_lines(server, lambda: read_both_forms(server, messages))
            cpu_s = server.cpu_s() - cpu_s
            server.stop(STOP_S)
        with bench.kinds.start(OURS, LOG, folder) as server:
            where: dict[str, int | str | bool] = {
                "port": server.tcp_port, "pid": server.process.pid, "topic": TOPIC,
                "channel": CONSUMED, "messages": messages,
            }  # fmt: skip
            consume = run_load(bench.load, row.scenario, {**where, **bench.options(row)})
    options = bench.options(row)
    run = {**run, "messages": 2 * messages, "cpu_seconds": cpu_s, "options": options}
    return {**run, "beside": {"consume": consume}}


def _behind(bench: Bench, row: Row, messages: int) -> Run:
    """The same load alone, and beside a channel far behind whose consumer is at RDY 1."""
    behind = row.quick_backlog if bench.quick else row.backlog
    runs = {}
    for name, backlog in (("alone", 0), ("behind", behind)):
        with bench.kinds.start(OURS, LOG) as server:

            def work(server: Server = server, backlog: int = backlog) -> Run:
                return _pubsub(bench, row, server, messages, backlog)

            runs[name] = _or_last_lines(server, work)
    return {**runs["behind"], "alone": runs["alone"]}


def _pubsub(bench: Bench, row: Row, server: Server, messages: int, backlog: int) -> dict[str, Any]:
    where: dict[str, int | str] = {"port": server.tcp_port, "topic": TOPIC}
    slow: dict[str, int | str] = {}
    if backlog:
        # `load channels` numbers what it makes.
        run_load(bench.load, "channels", {**where, "channel": SLOW, "channels": 1})
        run_load(bench.load, "publish", {**where, **_FILL, "messages": backlog, "stall": 60})
        await_depth(server, f"{SLOW}0", backlog)
        slow = {"slow": 1, "slow-channel": f"{SLOW}0"}
    run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
    where |= {"channel": CONSUMED, "pid": server.process.pid, "messages": messages}
    cpu_s, written = server.cpu_s(), server.written_bytes()
    run = run_load(bench.load, row.scenario, {**where, **slow, **bench.options(row)})
    await_depth(server, CONSUMED, 0)
    if backlog:
        await_depth(server, f"{SLOW}0", backlog + messages)
        if not run["slow_delivered"]:
            raise MeasureError("the slow consumer never got a message")
    return {
        **run,
        "cpu_seconds": server.cpu_s() - cpu_s,
        "written_bytes": server.written_bytes() - written,
    }
