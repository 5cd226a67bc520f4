"""``make run``: a local cluster with producers and a consumer, so that data flows at once.

The cluster is that of ``trionsq up``, with the same flags. A producer for each nsqd and one
consumer, which finds the nsqds through the nsqlookupd, are tasks beside it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Sequence
from typing import Final

import trio

from trionsq.client import ClientError, Config, Consumer, Producer, ProtocolError
from trionsq.local.up.cluster import Cluster
from trionsq.local.up.command import run, table
from trionsq.local.up.options import UpOptions, read_options

__all__ = ["main"]

TOPIC: Final = "demo"
CHANNEL: Final = "live"
BATCH: Final = 100
BATCH_INTERVAL_S: Final = 0.1
REPORT_INTERVAL_S: Final = 2.0
RETRY_S: Final = 1.0
# In the current folder: messages that wait are there again the next time.
DATA_PATH: Final = "run"
CONFIG: Final = Config(max_in_flight=500, lookupd_poll_interval_s=1, max_attempts=0)

_OURS: Final = re.compile(rb"demo (\d+) (\d+)")

_NEXT: Final = """
A task publishes to topic "{topic}", one consumes from its channel "{channel}".
Look at it in a browser: {dashboard}
Try in another terminal:"""
# What to type, and what it shows.
_TRIES: Final = (
    ("curl -d 'hello' 'http://{http}/pub?topic={topic}'", "publish; it shows up here"),
    ("curl 'http://{http}/stats?format=json&topic={topic}'", "counters of topic and channel"),
    (
        "curl -X POST 'http://{http}/channel/pause?topic={topic}&channel={channel}'",
        "nothing is delivered",
    ),
    ("curl -X POST 'http://{http}/channel/unpause?topic={topic}&channel={channel}'", "go on"),
    ("curl 'http://{lookupd}/lookup?topic={topic}'", "which nsqds have the topic"),
    (".venv/bin/nsq_tail --topic={topic} --lookupd-http-address={lookupd} -n 5", "five messages"),
    (".venv/bin/trionsq up --help", "such a cluster for your work"),
)


@dataclasses.dataclass(slots=True)
class Counters:
    """What has flowed since the start; *latencies_ms* is of the last report's interval."""

    published: int = 0
    consumed: int = 0
    latencies_ms: list[float] = dataclasses.field(default_factory=list)


async def produce(
    address: str,
    counters: Counters,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Publish a batch, wait for its OK, pause a little, for ever; started when there is a topic."""
    async with Producer(address) as producer:
        while True:
            now_ns = time.monotonic_ns()
            first = counters.published
            bodies = [b"demo %d %d" % (number, now_ns) for number in range(first, first + BATCH)]
            try:
                await producer.publish_many(TOPIC, bodies)
            except (ClientError, ProtocolError) as error:
                print(f"failed to publish, retrying: {error}", flush=True)
                await trio.sleep(RETRY_S)
                continue
            if not counters.published:
                task_status.started()
            counters.published += BATCH
            await trio.sleep(BATCH_INTERVAL_S)


async def consume(lookupd_http_address: str, counters: Counters) -> None:
    """Finish each message, for ever."""
    where = [lookupd_http_address]
    async with Consumer(TOPIC, CHANNEL, lookupd_http_addresses=where, config=CONFIG) as consumer:
        async for batch in consumer.batches():
            now_ns = time.monotonic_ns()
            for body in batch.bodies:
                if ours := _OURS.fullmatch(body):
                    counters.latencies_ms.append((now_ns - int(ours[2])) / 1e6)
                else:
                    print(f"received another message: {body[:200]!r}", flush=True)
            batch.finish()
            counters.consumed += len(batch)


async def report(counters: Counters) -> None:
    """Print a line of rates every few seconds."""
    while True:
        before = dataclasses.replace(counters)
        await trio.sleep(REPORT_INTERVAL_S)
        published = (counters.published - before.published) / REPORT_INTERVAL_S
        consumed = (counters.consumed - before.consumed) / REPORT_INTERVAL_S
        latencies_ms = sorted(counters.latencies_ms) or [0.0]
        print(
            f"published {counters.published:,} ({published:,.0f}/s)"
            f"  consumed {counters.consumed:,} ({consumed:,.0f}/s)"
            f"  publish to consume p50 {latencies_ms[len(latencies_ms) // 2]:.2f} ms",
            flush=True,
        )
        counters.latencies_ms.clear()


def _what_to_try(http: str, lookupd: str, dashboard: str) -> str:
    places = {"http": http, "lookupd": lookupd, "topic": TOPIC, "channel": CHANNEL}
    tries = [(command.format(**places), what) for command, what in _TRIES]
    width = max(len(command) for command, _ in tries)
    lines = [f"  {command:{width}}  {what}".rstrip() for command, what in tries]
    return "\n".join([_NEXT.format(dashboard=dashboard, **places), *lines, ""])


async def run_flow(options: UpOptions, cluster: Cluster, counters: Counters) -> None:
    """Produce, consume and report until cancelled."""
    lookupd = cluster.addresses["nsqlookupd"].http
    nsqds = [addresses for name, addresses in cluster.addresses.items() if name.startswith("nsqd-")]
    print(table(cluster, pids=options.processes))
    admin = cluster.addresses.get("nsqadmin")
    dashboard = f"http://{admin.http}" if admin else "(disabled by --no-admin)"
    print(_what_to_try(nsqds[0].http, lookupd, dashboard), flush=True)
    async with trio.open_nursery() as tasks:
        await tasks.start(produce, nsqds[0].tcp, counters, name=f"demo producer for {nsqds[0].tcp}")
        for nsqd in nsqds[1:]:
            tasks.start_soon(produce, nsqd.tcp, counters, name=f"demo producer for {nsqd.tcp}")
        tasks.start_soon(consume, lookupd, counters, name="demo consumer")
        tasks.start_soon(report, counters, name="demo report")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 after Ctrl-C, 1 after an error.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error.
    """
    words = sys.argv[1:] if argv is None else argv
    options = read_options(words, "make run", data_path=DATA_PATH)
    counters = Counters()
    code = run(options, lambda cluster: run_flow(options, cluster, counters))
    if counters.published:
        print(f"stopped; published {counters.published:,}, consumed {counters.consumed:,}")
    return code


if __name__ == "__main__":
    # By its real name, by which /debug knows its tasks.
    from trionsq.local import demo

    raise SystemExit(demo.main())
