"""Runs one load against one fresh server, and checks afterwards that nothing got lost."""

from __future__ import annotations

from benchmarks.checks import await_counts, await_quiet, await_topic, check_on_disk
from benchmarks.client import run_client
from benchmarks.disk import run_beside, run_start
from benchmarks.generator import CHANNEL, CONSUMED, TOPIC, Bench, MeasureError, run_load
from benchmarks.onlog import run_on_log
from benchmarks.pipelines import run_sink, run_spark
from benchmarks.policies import run_with_policy
from benchmarks.rows import Row, Run
from benchmarks.servers import FLOOR, ORIGINAL, OURS, Server, ServerError
from benchmarks.upgraded import run_upgraded

# Enough to be sure of the rate on any server, and what the floor may stream in 3 s.
FLOOR_MOST = 12_000_000


def _server_options(row: Row, kind: str, messages: int) -> list[str]:
    if kind != FLOOR:
        return [f"--mem-queue-size={row.memory_queue}"]
    sizes = [
        f"--{name}={row.options[name]}" for name in ("size-min", "size-max") if name in row.options
    ]
    return [f"--canned={messages}", *sizes] if row.preload else sizes


def run_row(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """One run of a row on a fresh server of this kind, checked.

    Raises `MeasureError` or `ServerError` when anything is missing, doubled or refused.
    """
    if row.procedure == "start":
        return run_start(bench, row, kind, messages)
    if row.procedure == "beside":
        return run_beside(bench, row, kind, messages)
    if row.procedure == "upgraded":
        return run_upgraded(bench, row, kind, messages)
    if row.procedure == "sink":
        return run_sink(bench, row, kind, messages)
    if row.procedure == "spark":
        return run_spark(bench, row, kind, messages)
    if row.procedure == "client":
        return run_client(bench, row, kind, messages)
    if row.procedure == "policy":
        return run_with_policy(bench, row, messages)
    if row.procedure.startswith("log-"):
        return run_on_log(bench, row, messages)
    with bench.kinds.start(kind, _server_options(row, kind, messages)) as server:
        try:
            return _run_on(bench, row, server, messages)
        except (MeasureError, ServerError) as error:
            raise MeasureError(f"{error}; its last lines:\n{server.last_lines()}") from error


def _check_after(row: Row, server: Server, messages: int, channels: int) -> None:
    publishes = row.scenario == "publish"
    if channels:
        await_counts(server, published=messages, waiting=messages if publishes else 0)
    else:
        await_topic(server, messages)
    if publishes and row.memory_queue == 0:
        check_on_disk(server, CONSUMED if channels else None, messages)


def _run_on(bench: Bench, row: Row, server: Server, messages: int) -> Run:
    kind = server.kind
    where: dict[str, int | str | bool] = {
        "port": server.tcp_port,
        "pid": server.process.pid,
        "topic": TOPIC,
    }
    channels = bench.channels(row)
    if kind != FLOOR and channels:
        run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": channels})
        if channels > 1:
            await_quiet(server)
    where |= {"channel": CONSUMED, "messages": messages}
    if row.preload and kind != FLOOR:
        run_load(bench.load, "publish", {**where, "publishers": 2, "batch": 200})
        await_counts(server, published=messages, waiting=messages)
        if row.memory_queue == 0:
            check_on_disk(server, CONSUMED, messages)
    resident, cpu_s = server.resident_bytes(), server.cpu_s()
    options = {**where, **bench.options(row), "unbuffered": kind in row.unbuffered}
    if row.http:
        assert server.http_port is not None
        options |= {"port": server.http_port, "http": True}
    run = run_load(bench.load, row.scenario, options)
    if kind != FLOOR:
        _check_after(row, server, messages, channels)
    if row.scenario == "publish":
        # OK may come before the channel has its part: what is left to do counts as well.
        run |= {
            "cpu_seconds": server.cpu_s() - cpu_s,
            "resident_before": resident,
            "resident_after": server.resident_bytes(),
        }
    return {**run, "options": options}


def message_counts(bench: Bench, row: Row, kinds: list[str]) -> dict[str, int]:
    """How many messages each kind of server gets in a run of this row.

    Found by a short pilot, so that a run takes the wanted seconds. Brokers get the same count,
    that of the slower one: the queue's length has a part in the cost. The floor gets its own.
    """
    if row.scenario == "idle":
        return dict.fromkeys(kinds, 0)
    if row.messages:
        return dict.fromkeys(kinds, row.quick_messages if bench.quick else row.messages)
    if rate := row.options.get("rate"):
        return dict.fromkeys(kinds, int(float(rate) * bench.seconds))
    counts = {}
    for kind in kinds:
        run = run_row(bench, row, kind, row.pilot)
        wanted = int(run["timed_messages"] / run["timed_seconds"] * bench.seconds)
        most = row.most if kind != FLOOR or row.most < 10_000 else FLOOR_MOST
        counts[kind] = min(max(wanted, row.pilot), most)
    same = min((counts[kind] for kind in (OURS, ORIGINAL) if kind in counts), default=0)
    return {kind: count if kind == FLOOR else same for kind, count in counts.items()}
