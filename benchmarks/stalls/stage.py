"""Where a load is put on: a checkout's daemons, watched and asked for /ping meanwhile."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.generator import CONSUMED, TOPIC, MeasureError, run_load
from benchmarks.servers import ServerError
from benchmarks.stalls.daemons import NSQD, Daemon, running
from benchmarks.stalls.prober import Prober
from benchmarks.stalls.rows import Row

IN_MEMORY = "--mem-queue-size=10000000"
# Quick runs only show that a load can be put on.
QUICK_PART = 50
IDLE_S = 0.5
QUIET_S = 0.4
WITHIN_S = 60.0


@dataclass
class Stage:
    """One checkout, by its name in the table, and the rows that it has so far."""

    tree: str
    checkout: Path
    data: Path
    generator: Path
    quick: bool = False
    shape: str = ""
    rows: list[Row] = field(default_factory=list)

    def some(self, count: int, least: int = 1) -> int:
        """So many; in a quick run a part of them."""
        return max(count // QUICK_PART, least) if self.quick else count

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty data folder, gone after the block."""
        with tempfile.TemporaryDirectory(prefix="nsqd-", dir=self.data) as folder:
            yield Path(folder)

    @contextmanager
    def daemon(self, module: str, *options: str) -> Iterator[Daemon]:
        """A daemon of the checkout. What fails in the block has its last lines."""
        with running(self.checkout, self.data, module, *options) as daemon:
            try:
                yield daemon
            except (MeasureError, ServerError, OSError) as error:
                raise MeasureError(f"{error!r}; its last lines:\n{daemon.last_lines()}") from error

    @contextmanager
    def nsqd(self, *options: str, folder: Path | None = None) -> Iterator[Daemon]:
        """An nsqd on this data folder, else on an empty one."""
        if folder is None:
            with self.folder() as empty, self.nsqd(*options, folder=empty) as daemon:
                yield daemon
        else:
            with self.daemon(NSQD, f"--data-path={folder}", *options) as daemon:
                yield daemon

    def load(self, daemon: Daemon, scenario: str, **options: int | str | bool) -> None:
        """Run the generator; an option's `_` stands for `-`. Raises `MeasureError`."""
        told = {name.replace("_", "-"): value for name, value in options.items()}
        run_load(self.generator, scenario, {"port": daemon.tcp_port, "topic": TOPIC, **told})

    @contextmanager
    def watch(self, daemon: Daemon, load: str) -> Iterator[None]:
        """A row: what is seen from here until the daemon is quiet after the block."""
        with Prober(daemon.http_port) as prober:
            time.sleep(IDLE_S)
            idle = prober.read()
            resting_s = _spent_s(daemon)
            prober.read()
            daemon.reset()
            began_s = time.monotonic()
            yield
            end_s = time.monotonic() + WITHIN_S
            while _spent_s(daemon) > resting_s + 0.05:
                if time.monotonic() > end_s:
                    raise MeasureError(f"{load}: not quiet after {WITHIN_S:g} s")
            seconds = time.monotonic() - began_s
            pings = prober.read()
        self.rows.append(
            Row(
                shape=self.shape,
                load=load,
                tree=self.tree,
                seconds=seconds,
                pings=pings,
                idle=idle,
                watched=daemon.watched(),
            )
        )


def _spent_s(daemon: Daemon) -> float:
    """CPU seconds of some tenths of a second."""
    cpu_s = daemon.cpu_s()
    time.sleep(QUIET_S)
    return daemon.cpu_s() - cpu_s


def post(daemon: Daemon, path: str, body: bytes = b"") -> bytes:
    """The answer's body. Raises `MeasureError` unless it is 200."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=120)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise MeasureError(f"POST {path}: {answer.status} {data[:200]!r}")
    return data


def peek(daemon: Daemon, query: str) -> None:
    """Ask /channel/peek; that it refuses to go so far is an answer, too."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=120)
    try:
        connection.request("GET", f"/channel/peek?topic={TOPIC}&channel={CONSUMED}&{query}")
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status not in (200, 400):
        raise MeasureError(f"/channel/peek: {answer.status}")


def channel_figure(daemon: Daemon, figure: str, topic: str = TOPIC) -> int:
    """One of the figures of the topic's first channel, which must be there."""
    query = f"format=json&topic={topic}&include_clients=false&include_mem=false"
    channel: dict[str, Any] = json.loads(daemon.get(f"/stats?{query}"))["topics"][0]["channels"][0]
    return int(channel[figure])


def await_true(done: Callable[[], bool], what: str) -> None:
    """Until it is; asked each tenth of a second. Raises `MeasureError` after a minute."""
    end_s = time.monotonic() + WITHIN_S
    while not done():
        if time.monotonic() > end_s:
            raise MeasureError(f"not after {WITHIN_S:g} s: {what}")
        time.sleep(0.1)
