"""The rows of the pipelines: of the sink (`clients.sink`), and with Spark (`clients.spark`).

The server's counts are checked. Those with Spark run only when they are named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.checks import await_counts
from benchmarks.generator import CHANNEL, CONSUMED, TOPIC, Bench, MeasureError, run_load
from benchmarks.onlog import LOG
from benchmarks.rows import Metric, Row, Run
from benchmarks.servers import ServerError

SINK_S = 120.0
SPARK_S = 300.0
# What clients.spark publishes first and does not count.
_WARM = 500

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
            order = (f"127.0.0.1:{server.tcp_port}", TOPIC, str(messages), row.layer)
            run = _run_program("sink", order, messages, SINK_S)
            await_counts(server, published=messages, waiting=messages)
            return {**run, "cpu_seconds": server.cpu_s() - cpu_s}
        except (MeasureError, ServerError) as error:
            text = f"{error}; the server's last lines:\n{server.last_lines()}"
            raise MeasureError(text) from error


def run_spark(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """One run of a row with Spark on a fresh server; raises as `run_sink`."""
    flags = LOG if row.layer.startswith("log-") else ()
    with bench.kinds.start(kind, [f"--mem-queue-size={row.memory_queue}", *flags]) as server:
        try:
            where: dict[str, int | str | bool] = {"port": server.tcp_port, "topic": TOPIC}
            run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
            if row.preload:
                load = {**where, "messages": messages, "publishers": 2, "batch": 200}
                run_load(bench.load, "publish", load | {"size-min": 100, "size-max": 100})
                await_counts(server, published=messages, waiting=messages)
            cpu_s = server.cpu_s()
            tcp, http = f"127.0.0.1:{server.tcp_port}", f"127.0.0.1:{server.http_port}"
            order = (row.layer, tcp, http, TOPIC, CONSUMED, str(messages))
            run = _run_program("spark", order, messages, SPARK_S)
            published = messages + (_WARM if row.layer.startswith("latency") else 0)
            waiting = messages if row.layer == "sink" else 0
            await_counts(server, published=published, waiting=waiting)
            return {**run, "cpu_seconds": server.cpu_s() - cpu_s}
        except (MeasureError, ServerError) as error:
            text = f"{error}; the server's last lines:\n{server.last_lines()}"
            raise MeasureError(text) from error


def _run_program(program: str, order: tuple[str, ...], messages: int, limit_s: float) -> Run:
    command = [sys.executable, "-m", f"benchmarks.clients.{program}", *order]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{messages} messages are not done after {limit_s:g} s") from error
    if done.returncode:
        raise MeasureError(f"it has not done {messages} messages: {done.stderr[-1500:]}")
    run: dict[str, object] = json.loads(done.stdout)
    return run


def _rate(run: Run) -> float:
    return float(run["timed_messages"] / run["timed_seconds"])


def _latency_ms(point: str) -> Callable[[Run], float]:
    return lambda run: float(run["latency_us"][point] / 1000)


def _spark(layer: str, title: str, *metrics: Metric, messages: int, quick: int) -> Row:
    return Row(
        f"spark-{layer}",
        title,
        "publish",
        {},
        metrics,
        messages=messages,
        quick_messages=quick,
        preload=layer == "through" or layer.startswith("log-"),
        procedure="spark",
        layer=layer,
        floor=False,
    )


def _spark_rate(layer: str, title: str, target: float | None) -> Row:
    metrics = [Metric("rate", "msg/s", _rate, target, absolute=True)]
    if layer != "sink":
        metrics.append(Metric("CPU", "us/msg", _cpu_us, more_is_better=False, absolute=True))
    return _spark(layer, title, *metrics, messages=2_000_000, quick=100_000)


def _cpu_us(run: Run) -> float:
    """Of the server and of all processes of Spark."""
    seconds = run["cpu_seconds"] + run["spark_cpu_seconds"]
    return float(seconds / run["timed_messages"] * 1e6)


def _spark_latency(layer: str, title: str, p50_ms: float | None, p95_ms: float | None) -> Row:
    metrics = [
        Metric(point, "ms", _latency_ms(point), target, more_is_better=False, absolute=True)
        for point, target in (("p50", p50_ms), ("p95", p95_ms))
    ]
    return _spark(layer, title, *metrics, messages=2000, quick=300)


SPARK_ROWS: tuple[Row, ...] = (
    (
        _spark_rate("through", "nsqd, receiver, log and Spark to a noop sink, 100 B", 160_000),
        _spark_rate("log-1", "log of nsqd and Spark to a noop sink, 100 B, 1 partition", None),
        _spark_rate("log-2", "the same with 2 partitions", None),
        _spark_rate("log-4", "the same with 4 partitions", None),
        _spark_rate("sink", "Spark's batch sink, 2 tasks, bodies of 100 B", 370_000),
        _spark_latency("latency", "publish to foreachBatch, the default trigger", 550, 1200),
        _spark_latency("latency-1s", "publish to foreachBatch, a trigger of 1 s", None, None),
    )
    if find_spec("pyspark")
    else ()
)
"""With the extra `spark` alone, and only when they are named: each run starts a Spark."""
