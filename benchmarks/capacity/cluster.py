"""More than one process: nsqlookupd, nsqadmin, two nsqds beside each other."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.capacity.lab import WAIT_S, Flow, Lab, await_url, get, sizes
from benchmarks.capacity.tables import Table
from benchmarks.capacity.topics import with_topics
from benchmarks.disk import free_port
from benchmarks.generator import MeasureError
from benchmarks.servers import Server

LOOKUPS = 1_500
CHANNELS = 2
PAGES = ("/api/topics", "/api/nodes", "/api/counter", "/topics")


@dataclass(frozen=True)
class Daemon:
    """A process that is not nsqd, and its HTTP port."""

    process: subprocess.Popen[bytes]
    http_port: int

    @property
    def url(self) -> str:
        """Where its HTTP is."""
        return f"http://127.0.0.1:{self.http_port}"

    def cpu_s(self) -> float:
        """User and system time so far, in seconds."""
        return Server("", self.process, 0, None, sys.stdin.buffer).cpu_s()

    def resident_bytes(self) -> int:
        """Resident memory in bytes."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(statm.split()[1]) * 4096


@contextmanager
def running(module: str, *options: str) -> Iterator[Daemon]:
    """A daemon that answers /ping; killed after the block."""
    port = free_port()
    command = (sys.executable, "-m", module, f"--http-address=127.0.0.1:{port}", *options)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        daemon = Daemon(process, port)
        await_url(f"{daemon.url}/ping")
        yield daemon
    finally:
        process.kill()
        process.wait()


@contextmanager
def _registered(lab: Lab, topics: int) -> Iterator[tuple[Server, Daemon, Flow]]:
    """An nsqd, the nsqlookupd that knows all its topics, and how that came about."""
    port = free_port()
    with running("lookupd.cli", f"--tcp-address=127.0.0.1:{port}") as lookupd:
        option = f"--lookupd-tcp-address=127.0.0.1:{port}"
        cpu_s, began_s = lookupd.cpu_s(), time.monotonic()
        with with_topics(lab, topics, CHANNELS, option) as (server, _):
            _await_known(lookupd, topics)
            took_s = time.monotonic() - began_s
            flow = Flow(topics * (1 + CHANNELS), took_s, lookupd.cpu_s() - cpu_s)
            yield server, lookupd, flow


def _await_known(lookupd: Daemon, topics: int) -> None:
    end_s = time.monotonic() + WAIT_S
    last = f"{lookupd.url}/channels?topic=t{topics - 1:05d}"
    while len(json.loads(get(last))["channels"]) < CHANNELS:
        if time.monotonic() > end_s:
            raise MeasureError(f"nsqlookupd does not know all of {topics} topics")
        time.sleep(0.02)


def measure_lookupd(lab: Lab) -> Table:
    """Registrations and lookups by number of topics."""
    table = Table(
        "lookupd",
        "nsqlookupd: one nsqd with so many topics of 2 channels registers",
        "topics, all known after s, CPU us a registration, MB resident,"
        " CPU us a /lookup, core does lookups/s, /topics ms",
        "From the start of nsqd on. Lookups by one Python client on one connection.",
    )
    for topics in (100, 1_000, 5_000):
        count = lab.some(topics)
        with _registered(lab, count) as (_, lookupd, registration):
            lookup = _lookups(lookupd, count, lab.some(LOOKUPS, 10))
            began_s = time.monotonic()
            get(f"{lookupd.url}/topics")
            listed_ms = (time.monotonic() - began_s) * 1e3
            table.add(
                f"{count:,}",
                *(registration.seconds, registration.cpu_us, lookupd.resident_bytes() / 1e6),
                *(lookup.cpu_us, 1e6 / lookup.cpu_us, listed_ms),
            )
    return table


def _lookups(lookupd: Daemon, topics: int, count: int) -> Flow:
    connection = http.client.HTTPConnection("127.0.0.1", lookupd.http_port, timeout=30)
    cpu_s, began_s = lookupd.cpu_s(), time.monotonic()
    for number in range(count):
        connection.request("GET", f"/lookup?topic=t{number * 7919 % topics:05d}")
        answer = connection.getresponse()
        if not json.loads(answer.read())["producers"]:
            raise MeasureError(f"/lookup answered {answer.status} and no producer")
    connection.close()
    return Flow(count, time.monotonic() - began_s, lookupd.cpu_s() - cpu_s)


def measure_nsqadmin(lab: Lab) -> Table:
    """What its pages cost it, and the nsqds that it asks."""
    table = Table(
        "nsqadmin",
        "nsqadmin before one nsqlookupd and one nsqd, topics of 2 channels",
        "page, topics, ms, CPU ms of nsqadmin, CPU ms of nsqd, MB resident",
        "Each page asks the nodes anew.",
    )
    for topics in (100, 1_000):
        count = lab.some(topics)
        with (
            _registered(lab, count) as (nsqd, lookupd, _),
            running("admin.cli", f"--lookupd-http-address=127.0.0.1:{lookupd.http_port}") as admin,
        ):
            for page in PAGES:
                table.add(page, f"{count:,}", *_seen(admin, nsqd, page))
    return table


def _seen(admin: Daemon, nsqd: Server, page: str) -> tuple[float, ...]:
    rounds = 5
    get(admin.url + page)
    own_s, nsqd_s, began_s = admin.cpu_s(), nsqd.cpu_s(), time.monotonic()
    for _ in range(rounds):
        get(admin.url + page)
    spent_s = (time.monotonic() - began_s, admin.cpu_s() - own_s, nsqd.cpu_s() - nsqd_s)
    return (*(each / rounds * 1e3 for each in spent_s), admin.resident_bytes() / 1e6)


def measure_processes(lab: Lab) -> Table:
    """The same load on each of one and two nsqds."""
    table = Table(
        "processes",
        "one nsqd, and two beside each other, each with its own load",
        "load, nsqds, msg/s together, times, CPU us, nsqds' cores, generators' cores",
        "All on this machine: where cores of nsqds and generators add up to its own, the rate is"
        " that of the machine, and only the CPU of a message tells what more cores would do.",
    )
    for name, messages, options in (
        ("PUB that waits, 25 connections", 30_000, {"publishers": 25}),
        ("PUB, 100 under way, 1 kB", 300_000, {"publishers": 2, "window": 100}),
        ("MPUB of 100, 1 kB", 400_000, {"publishers": 2, "batch": 100}),
    ):
        alone = 0.0
        for count in (1, 2):
            flow = _side_by_side(lab, count, lab.some(messages, 100), options)
            alone = alone or flow.rate
            table.add(
                name,
                str(count),
                *(flow.rate, flow.rate / alone, flow.cpu_us, flow.cpu_s / flow.seconds),
                flow.generator_cpu_s / flow.seconds,
            )
    return table


def _side_by_side(lab: Lab, count: int, messages: int, options: dict[str, int]) -> Flow:
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        servers = [stack.enter_context(lab.nsqd()) for _ in range(count)]
        began_s = time.monotonic()
        runs = [
            pool.submit(lab.through, server, messages, 1, sizes(1000), **options)
            for server in servers
        ]
        flows = [run.result() for run in runs]
        seconds = time.monotonic() - began_s
    return Flow(
        messages * count,
        seconds,
        sum(flow.cpu_s for flow in flows),
        sum(flow.generator_cpu_s for flow in flows),
    )
