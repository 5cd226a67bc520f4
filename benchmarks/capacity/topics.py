"""Topics and channels that do nothing: what they hold, and what it costs to start and to look."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.capacity.lab import Lab, await_url, get
from benchmarks.capacity.tables import Table
from benchmarks.servers import OURS, Server

IDLE_S = 5.0
PING_EACH_S = 0.01
COUNTS = ((0, 1), (100, 1), (1_000, 1), (1_000, 2), (5_000, 2))
CREATED = 100


def write_metadata(folder: Path, topics: int, channels: int) -> None:
    """An nsqd.dat with so many topics, `t00000` and so on, each with channels `c0`, ..."""
    names = [{"name": f"c{number}", "paused": False} for number in range(channels)]
    known = [
        {"name": f"t{number:05d}", "paused": False, "channels": names} for number in range(topics)
    ]
    (folder / "nsqd.dat").write_text(json.dumps({"topics": known, "version": "1.3.0"}))


@contextmanager
def with_topics(
    lab: Lab, topics: int, channels: int, *options: str
) -> Iterator[tuple[Server, float]]:
    """An nsqd that starts with so many, and the seconds until it was ready."""
    with lab.bench.kinds.folder() as folder:
        write_metadata(folder, topics, channels)
        with lab.bench.kinds.launch(OURS, options, folder) as launched:
            server = launched.listening()
            await_url(f"{base_url(server)}/ready")
            yield server, time.monotonic() - launched.since_ns / 1e9


def base_url(server: Server) -> str:
    """Where its HTTP is."""
    return f"http://127.0.0.1:{server.http_port}"


def measure_topics(lab: Lab) -> Table:
    """What topics cost by being there."""
    table = Table(
        "topics",
        "topics without messages, by number",
        "topics x channels, ready after s, MB resident, kB a topic, idle % of a core,"
        " a new topic ms, stop s",
        "Ready: from the start of the process on a data path that names them to 200 of /ready. A"
        " new topic: POST /topic/create, with what is written to nsqd.dat.",
    )
    empty = 0
    for topics, channels in COUNTS:
        count = lab.some(topics) if topics else 0
        with with_topics(lab, count, channels) as (server, ready_s):
            resident = server.resident_bytes()
            empty = empty or resident
            cpu_s = server.cpu_s()
            time.sleep(0.2 if lab.quick else IDLE_S)
            idle = (server.cpu_s() - cpu_s) / (0.2 if lab.quick else IDLE_S) * 100
            new_ms = _create(server, lab.some(CREATED, 2))
            stop_s = server.stop(120)
        each = (resident - empty) / count / 1e3 if topics else None
        table.add(
            f"{count:,} x {channels}" if topics else "none",
            *(ready_s, resident / 1e6, each, idle, new_ms, stop_s),
        )
    return table


def _create(server: Server, count: int) -> float:
    """CPU milliseconds of nsqd for each new topic."""
    cpu_s = server.cpu_s()
    for number in range(count):
        url = f"{base_url(server)}/topic/create?topic=new{number}"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as got:
            got.read()
    time.sleep(0.3)  # nsqd.dat is written after the answer, in a thread
    return (server.cpu_s() - cpu_s) / count * 1e3


class Pinger:
    """Asks /ping on and on: its longest answer shows how long the event loop was held up."""

    def __init__(self, server: Server) -> None:
        self._url = f"{base_url(server)}/ping"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0

    def _run(self) -> None:
        while not self._over.wait(PING_EACH_S):
            began_s = time.monotonic()
            get(self._url)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def __enter__(self) -> Pinger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


PAGES = ("/metrics", "/stats?format=json")


def measure_pages(lab: Lab) -> Table:
    """What it costs to look at many topics."""
    table = Table(
        "pages",
        "looking at nsqd: what a page costs with 100 to 5,000 topics of 2 channels",
        "page, topics, ms, CPU ms, MB, others wait ms",
        "The last column is the longest answer to /ping meanwhile.",
    )
    for topics in (100, 1_000, 5_000):
        count = lab.some(topics)
        with with_topics(lab, count, 2) as (server, _):
            for page in PAGES:
                table.add(page, f"{count:,}", *_looked(server, page))
    return table


def _looked(server: Server, page: str) -> tuple[float, ...]:
    """Thrice, after a first one that does not count; then once more while others ask."""
    url = base_url(server) + page
    get(url)
    cpu_s, took_s, nbytes = 0.0, 0.0, 0
    for _ in range(3):
        time.sleep(1.1)  # pages of metrics are made once a second at most
        before_s, began_s = server.cpu_s(), time.monotonic()
        nbytes = len(get(url))
        took_s += time.monotonic() - began_s
        cpu_s += server.cpu_s() - before_s
    with Pinger(server) as pinger:
        time.sleep(1.1)
        get(url)
    return took_s / 3 * 1e3, cpu_s / 3 * 1e3, nbytes / 1e6, pinger.longest_s * 1e3
