"""Messages: by size, way of publishing, channels, consumers, pace, and layers over a connection."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.capacity.lab import Flow, Lab, histogram, sizes
from benchmarks.capacity.tables import Table
from benchmarks.generator import MeasureError
from benchmarks.rows import ROWS, Row
from benchmarks.servers import OURS
from benchmarks.upgraded import run_upgraded

KB = 1000
SECOND_US = 1e6
# Bytes that wait in nsqd at once, at most.
ROUND_NBYTES = 200_000_000
LAYERED_MESSAGES = 600_000


def measure_sizes(lab: Lab) -> Table:
    """In by MPUB, then out by FIN, for bodies of 100 B to 100 kB."""
    table = Table(
        "sizes",
        "one nsqd, one channel, by size of the body",
        "body, MPUB of, in msg/s, in MB/s, in CPU us, out msg/s, out MB/s, out CPU us,"
        " core does msg/s",
        "In: MPUB on 2 connections. Out: 2 consumers at RDY 2500, a FIN for each. The last column"
        " is 1 s / (CPU in + CPU out): in and out at once, on one whole core.",
    )
    for nbytes, batch, messages, rounds in (
        (100, 200, 1_000_000, 2),
        (KB, 200, 200_000, 6),
        (10 * KB, 20, 20_000, 8),
        (100 * KB, 5, 2_000, 8),
    ):
        into, out = Flow(0, 0, 0), Flow(0, 0, 0)
        count = lab.some(messages, batch)
        with lab.nsqd() as server:
            for _ in range(1 if lab.quick else rounds):
                into += lab.publish(server, count, publishers=2, batch=batch, **sizes(nbytes))
                out += lab.consume(server, count, consumers=2, rdy=2500, **sizes(nbytes))
        mbytes = nbytes / 1e6
        table.add(
            f"{nbytes:,} B",
            batch,
            *(into.rate, into.rate * mbytes, into.cpu_us),
            *(out.rate, out.rate * mbytes, out.cpu_us),
            SECOND_US / (into.cpu_us + out.cpu_us),
        )
    return table


WAYS: tuple[tuple[str, int, dict[str, int | bool]], ...] = (
    ("MPUB of 1,000, 2 connections", 400_000, {"publishers": 2, "batch": 1000}),
    ("MPUB of 100, 2 connections", 400_000, {"publishers": 2, "batch": 100}),
    ("MPUB of 10, 2 connections", 200_000, {"publishers": 2, "batch": 10}),
    ("PUB, 2 connections x 100 under way", 300_000, {"publishers": 2, "window": 100}),
    ("PUB that waits, 1 connection", 20_000, {"publishers": 1}),
    ("PUB that waits, 50 connections", 60_000, {"publishers": 50}),
    ("POST /mpub of 100, 2 connections", 200_000, {"publishers": 2, "batch": 100, "http": True}),
    ("POST /pub, 16 connections", 20_000, {"publishers": 16, "http": True}),
)


def measure_ways(lab: Lab) -> Table:
    """The same messages by each way of publishing."""
    table = Table(
        "ways",
        "publishing 1 kB messages",
        "way, msg/s, CPU us, core does msg/s, of MPUB 100",
        "One channel, nobody consumes. The last column compares CPU.",
    )
    flows = []
    for name, messages, options in WAYS:
        with lab.nsqd() as server:
            # Bodies of /mpub are lines, so they are checked by count alone.
            flows.append(
                (name, lab.publish(server, lab.some(messages, 1000), **options, **sizes(KB)))
            )
    base = dict(flows)["MPUB of 100, 2 connections"].cpu_us
    for name, flow in flows:
        table.add(name, flow.rate, flow.cpu_us, SECOND_US / flow.cpu_us, flow.cpu_us / base)
    return table


def measure_channels(lab: Lab) -> Table:
    """What each channel more costs: nothing is copied but the delivery."""
    table = Table(
        "channels",
        "1 kB messages through 1, 3 and 10 channels, each consumed",
        "channels, published msg/s, delivered msg/s, CPU us / published, CPU us / delivered,"
        " core does published msg/s",
        "MPUB of 100 on 2 connections, 2 consumers at RDY 2500 for each channel, all at once. The"
        " generators share the cores.",
    )
    for channels, messages in ((1, 600_000), (3, 300_000), (10, 100_000)):
        with lab.nsqd(channels=channels) as server:
            flow = lab.through(
                server, lab.some(messages), channels, sizes(KB), publishers=2, batch=100
            )
        table.add(
            str(channels),
            *(flow.rate, flow.rate * channels, flow.cpu_us, flow.cpu_us / channels),
            SECOND_US / flow.cpu_us,
        )
    return table


def measure_consumers(lab: Lab) -> Table:
    """How RDY and the number of consumers decide what a delivery costs."""
    table = Table(
        "consumers",
        "taking 1 kB messages from one channel",
        "connections x RDY, msg/s, CPU us, core does msg/s",
        "All messages wait in memory; each is finished as soon as it is there.",
    )
    for consumers, rdy, messages in (
        (1, 2500, 400_000),
        (2, 2500, 400_000),
        (20, 100, 400_000),
        (50, 10, 200_000),
        (200, 10, 200_000),
        (10, 1, 30_000),
        (100, 1, 30_000),
    ):
        count = lab.some(messages)
        with lab.nsqd() as server:
            lab.publish(server, count, publishers=2, batch=100, **sizes(KB))
            flow = lab.consume(server, count, consumers=consumers, rdy=rdy, **sizes(KB))
        table.add(f"{consumers} x {rdy}", flow.rate, flow.cpu_us, SECOND_US / flow.cpu_us)
    return table


def measure_paced(lab: Lab) -> Table:
    """A steady rate of single PUBs through one channel: what is idle, what is late."""
    table = Table(
        "paced",
        "1 kB messages, each its own PUB, at a steady rate through one channel",
        "msg/s, nsqd % of a core, CPU us, p50 ms, p99 ms, loop lag ms",
        "10 publishers by the clock, 10 consumers at RDY 100; times from publishing to receipt. The"
        " lag is the mean of nsqd_event_loop_lag_seconds.",
    )
    for rate in (1_000, 5_000, 20_000, 100_000, 200_000):
        try:
            table.add(f"{rate:,}", *_paced(lab, rate))
        except MeasureError as error:
            if "does not keep up" not in str(error):
                raise
            table.add(f"{rate:,}", "not kept up", None, None, None, None)
            break
    return table


def _paced(lab: Lab, rate: int) -> tuple[float | None, ...]:
    with lab.nsqd() as server:
        run = lab.load(
            server,
            "pubsub",
            channel="bench0",
            messages=lab.some(rate * 4),
            rate=rate,
            window=20_000,
            publishers=10,
            consumers=10,
            rdy=100,
            **sizes(KB),
        )
        _, lag_ms = histogram(server, "nsqd_event_loop_lag_seconds")
    flow = Flow(run["messages"], run["seconds"], run["cpu_seconds"])
    latency = run["latency_us"]
    return flow.busy_percent, flow.cpu_us, latency["p50"] / 1e3, latency["p99"] / 1e3, lag_ms


def measure_layers(lab: Lab) -> Table:
    """TLS, snappy and deflate as factors of nsqd's CPU."""
    table = Table(
        "layers",
        "TLS, snappy, deflate: what a connection's layer costs nsqd",
        "layer, in CPU us, times, out CPU us, times",
        "Bodies of 200 B that compress as JSON does, MPUB of 200, RDY 2500, one connection.",
    )
    count = lab.some(LAYERED_MESSAGES, 1000)
    with lab.nsqd() as server:
        into = lab.publish(server, count, publishers=1, window=20, batch=200)
        out = lab.consume(server, count, consumers=1, rdy=2500)
    table.add("none", into.cpu_us, 1, out.cpu_us, 1)
    rows = {row.name: row for row in ROWS}
    for layer in ("tls", "snappy", "deflate"):
        cost_in = _layered(lab, rows[f"{layer}-mpub"], count)
        cost_out = _layered(lab, rows[f"{layer}-consume"], count)
        table.add(layer, cost_in, cost_in / into.cpu_us, cost_out, cost_out / out.cpu_us)
    return table


def _layered(lab: Lab, row: Row, messages: int) -> float:
    run = run_upgraded(lab.bench, replace(row, messages=messages), OURS, messages)
    return Flow(run["messages"], run["seconds"], run["cpu_seconds"]).cpu_us
