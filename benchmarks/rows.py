"""What is measured: each row a load, the state it starts from and the figures taken from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from benchmarks.servers import ORIGINAL

Run = Mapping[str, Any]
"""What one run of the generator printed, and what `measure` added."""


@dataclass(frozen=True)
class Metric:
    """One figure of a run. `target` is its wanted ratio to the original's.

    With `absolute` it is what the figure itself should be.
    """

    name: str
    unit: str
    of: Callable[[Run], float]
    target: float | None = None
    more_is_better: bool = True
    absolute: bool = False

    def meets(self, ratio: float) -> bool | None:
        """Whether this ratio of ours to the original's, or this figure, meets the target if any."""
        if self.target is None:
            return None
        return ratio >= self.target if self.more_is_better else ratio <= self.target


@dataclass(frozen=True)
class Row:
    """A load and how it is prepared.

    `scenario` and `options` go to the generator. `pilot` messages are run first to find how
    many fill the wanted seconds; without it `messages` is what is run. `preload` publishes all
    messages before the load begins. `memory_queue` is --mem-queue-size, by default too large to
    be filled; 0 sends all through disk. `unbuffered` names the servers which are asked for
    output_buffer_size -1. `channels` 0 leaves the topic without one. `procedure` is what `disk`
    does around the load ("start", "beside"; "client" is that of `client`), `backlog` the messages
    behind the slow channel. `http` has the load go to the HTTP port. `client` is a program of
    `clients`, `beside` others, or the generator's "reader", that get the same load. `layer` is what
    lies over the connection where the procedure is "upgraded", and the mode where it is "sink".
    """

    name: str
    title: str
    scenario: str
    options: Mapping[str, int | str]
    metrics: tuple[Metric, ...]
    most: int = 2_000_000
    pilot: int = 0
    messages: int = 0
    quick_messages: int = 0
    quick_options: Mapping[str, int | str] = field(default_factory=dict)
    channels: int = 1
    quick_channels: int = 1
    memory_queue: int = 10_000_000
    preload: bool = False
    procedure: str = ""
    backlog: int = 0
    quick_backlog: int = 0
    most_repeats: int = 100
    floor: bool = True
    unbuffered: frozenset[str] = frozenset()
    http: bool = False
    client: str = ""
    beside: tuple[str, ...] = ()
    layer: str = ""


def _rate(run: Run) -> float:
    return float(run["timed_messages"] / run["timed_seconds"])


def _publish_rate(run: Run) -> float:
    return float(run["messages"] / run["publish_seconds"])


def cpu_us(run: Run) -> float | None:
    """CPU microseconds of the server for each message; None for a run without messages."""
    messages = run["messages"]
    return float(run["cpu_seconds"] / messages * 1e6) if messages else None


def _latency(point: str) -> Callable[[Run], float]:
    return lambda run: float(run["latency_us"][point])


def _bytes_for_each(count: str) -> Callable[[Run], float]:
    return lambda run: float((run["resident_after"] - run["resident_before"]) / run[count])


def _publish(name: str, title: str, target: float, **options: int | str) -> Row:
    metrics = (Metric("rate", "msg/s", _rate, target),)
    return Row(name, title, "publish", options, metrics, pilot=4_000)


def _http(name: str, title: str, target: float, **options: int | str) -> Row:
    row = _publish(name, title, target, **options)
    return replace(row, http=True, floor=False)


def _consume(name: str, title: str, target: float, consumers: int, rdy: int) -> Row:
    options: dict[str, int | str] = {"consumers": consumers, "rdy": rdy}
    metrics = (Metric("rate", "msg/s", _rate, target),)
    return Row(name, title, "consume", options, metrics, pilot=20_000, preload=True)


def _figure(name: str, scale: float = 1) -> Callable[[Run], float]:
    return lambda run: float(run[name] * scale)


def _kept(run: Run) -> float:
    return _rate(run) / _rate(run["alone"])


def _alone(of: Callable[[Run], float]) -> Callable[[Run], float]:
    return lambda run: of(run["alone"])


def _cost(run: Run) -> float:
    return float(run["cpu_seconds"] / run["messages"] * 1e6)


def _busy_percent(run: Run) -> float:
    return float(run["cpu_seconds"] / run["seconds"] * 100)


def client_cpu_us(run: Run) -> float:
    """CPU microseconds of a client for each message."""
    return float(run["generator_cpu_seconds"] / run["timed_messages"] * 1e6)


def _upgraded(layer: str, scenario: str) -> Row:
    doing = "MPUB 200 x 200 B" if scenario == "publish" else "consume at RDY 2500"
    return Row(
        f"{layer}-{'mpub' if scenario == 'publish' else scenario}",
        f"{doing} over {layer}, 1 connection of a Python client",
        scenario,
        {},
        (Metric("rate", "msg/s", _rate), Metric("cpu", "us/msg", _cost, more_is_better=False)),
        most=400_000,
        pilot=20_000,
        procedure="upgraded",
        layer=layer,
        floor=False,
    )


RECEIVER: Sequence[Row] = (
    [
        Row(
            "receiver",
            "the pipelines' receiver into its log, bodies of 100 B",
            "consume",
            {"consumers": 1, "rdy": 2500, "size-min": 100, "size-max": 100},
            (
                Metric("rate", "msg/s", _rate, 240_000, absolute=True),
                Metric("client-cpu", "us/msg", client_cpu_us, more_is_better=False),
            ),
            procedure="client",
            client="receiver",
            pilot=200_000,
            floor=False,
        ),
        *(
            Row(
                "sink" if mode == "direct" else f"sink-{mode}",
                f"the pipelines' sink, {mode}, one task, bodies of 100 B",
                "publish",
                {},
                (
                    Metric("rate", "msg/s", _rate, target, absolute=True),
                    Metric("client-cpu", "us/msg", client_cpu_us, more_is_better=False),
                ),
                pilot=500_000,
                procedure="sink",
                layer=mode,
                floor=False,
            )
            for mode, target in (("direct", 370_000), ("staged", None))
        ),
    ]
    if find_spec("pyarrow")
    else []
)
"""With the extra `spark` alone."""

PACED: Mapping[str, int | str] = {
    "publishers": 1,
    "consumers": 1,
    "rdy": 100,
    "rate": 5000,
    "window": 10_000,
}

ROWS: tuple[Row, ...] = (
    _publish("mpub", "MPUB 200 x 200 B, 2 connections", 1.5, publishers=2, batch=200),
    _publish(
        "mpub-varied",
        "MPUB 200 x 100-300 B, 2 connections",
        1.2,
        publishers=2,
        batch=200,
        **{"size-min": 100, "size-max": 300},
    ),
    _consume("consume", "consume, 2 connections at RDY 2500", 2.0, 2, 2500),
    _publish("pub-pipelined", "PUB, 2 connections x 100 under way", 2.5, publishers=2, window=100),
    _publish("pub-sync-1", "PUB, wait for OK, 1 connection", 0.65, publishers=1),
    _publish("pub-sync-50", "PUB, wait for OK, 50 connections", 0.5, publishers=50),
    _http("http-pub", "POST /pub, 16 connections kept alive", 0.7, publishers=16),
    _http("http-mpub", "POST /mpub 200 x 200 B, 2 connections", 0.5, publishers=2, batch=200),
    _consume("consume-10x1", "consume, 10 connections at RDY 1", 0.35, 10, 1),
    _consume("consume-50x10", "consume, 50 connections at RDY 10", 0.8, 50, 10),
    _consume("consume-20x100", "consume, 20 connections at RDY 100", 2.0, 20, 100),
    Row(
        "latency",
        "publish to receive at 5,000 msg/s",
        "pubsub",
        PACED,
        (
            Metric("p50", "us", _latency("p50"), 1.1, more_is_better=False),
            Metric("p99", "us", _latency("p99"), 1.2, more_is_better=False),
        ),
        unbuffered=frozenset({ORIGINAL}),
    ),
    Row(
        "latency-buffered",
        "the same, both with default buffering",
        "pubsub",
        PACED,
        (
            Metric("p50", "us", _latency("p50"), more_is_better=False),
            Metric("p99", "us", _latency("p99"), more_is_better=False),
        ),
    ),
    Row(
        "memory-message",
        "resident for a queued 200 B message",
        "publish",
        {"publishers": 2, "batch": 200},
        (
            Metric(
                "resident", "B/msg", _bytes_for_each("messages"), target=0.7, more_is_better=False
            ),
        ),
        messages=1_000_000,
        quick_messages=200_000,
        floor=False,
    ),
    Row(
        "idle",
        "3,000 idle consumers",
        "idle",
        {"consumers": 3000, "rdy": 1, "hold": 32, "heartbeat-ms": 30_000},
        (
            Metric("resident", "B/conn", _bytes_for_each("connections"), 0.4, more_is_better=False),
            Metric("cpu", "% of a core", _busy_percent, 0.3, more_is_better=False),
        ),
        most_repeats=1,
        quick_options={"consumers": 300, "hold": 3, "heartbeat-ms": 2_000},
        floor=False,
    ),
    Row(
        "channels-10000",
        "10,000 channels, one consumed",
        "pubsub",
        {"publishers": 1, "consumers": 1, "rdy": 2500, "batch": 10, "stall": 60},
        (
            Metric("consumer", "msg/s", _rate),
            Metric("publisher", "msg/s", _publish_rate),
        ),
        most=600,
        pilot=50,
        channels=10_000,
        quick_channels=500,
        memory_queue=2_000,
    ),
    Row(
        "disk-write",
        "MPUB 200 x 200 B to disk, 2 connections, no channel",
        "publish",
        {"publishers": 2, "batch": 200},
        (Metric("rate", "msg/s", _rate, 2.0),),
        pilot=100_000,
        channels=0,
        quick_channels=0,
        memory_queue=0,
        floor=False,
    ),
    Row(
        "disk-read",
        "consume from disk, 2 connections at RDY 2500",
        "consume",
        {"consumers": 2, "rdy": 2500},
        (Metric("rate", "msg/s", _rate, 3.0),),
        most=600_000,
        pilot=100_000,
        preload=True,
        memory_queue=0,
        floor=False,
    ),
    Row(
        "disk-through",
        "MPUB and consume at once, all through disk",
        "pubsub",
        {"publishers": 2, "consumers": 2, "rdy": 2500, "batch": 200},
        (Metric("rate", "msg/s", _rate),),
        pilot=100_000,
        memory_queue=0,
        floor=False,
    ),
    Row(
        "disk-start",
        "stop and start with 1,000,000 messages",
        "first",
        {"consumers": 1, "rdy": 1},
        (
            Metric("stop", "s", _figure("stop_seconds"), more_is_better=False),
            Metric("answers", "ms", _figure("answered_seconds", 1e3), more_is_better=False),
            Metric("delivers", "ms", _figure("timed_seconds", 1e3), more_is_better=False),
            Metric("cpu", "ms", _figure("cpu_seconds", 1e3), more_is_better=False),
            Metric("resident", "MB", _figure("resident_after", 1e-6), more_is_better=False),
        ),
        messages=1_000_000,
        quick_messages=50_000,
        procedure="start",
        floor=False,
    ),
    Row(
        "disk-slow-channel",
        "a fast channel beside one with 5,000,000 behind",
        "pubsub",
        {"publishers": 2, "consumers": 2, "rdy": 2500, "batch": 200, "ahead": 8_000},
        (
            Metric("kept", "of alone", _kept, 0.6, absolute=True),
            Metric("beside", "msg/s", _rate),
            Metric("alone", "msg/s", _alone(_rate)),
            Metric("cpu-beside", "us/msg", _cost, more_is_better=False),
            Metric("cpu-alone", "us/msg", _alone(_cost), more_is_better=False),
            Metric("busy-beside", "% of a core", _busy_percent),
            Metric("busy-alone", "% of a core", _alone(_busy_percent)),
        ),
        pilot=40_000,
        memory_queue=10_000,
        procedure="beside",
        backlog=5_000_000,
        quick_backlog=100_000,
        floor=False,
    ),
    *(
        _upgraded(layer, scenario)
        for scenario in ("publish", "consume")
        for layer in ("tls", "snappy", "deflate")
    ),
    *RECEIVER,
)
