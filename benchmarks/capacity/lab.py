"""What the tables share: a server to put load on, and what a load cost it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from benchmarks.capacity.tables import Table
from benchmarks.generator import CHANNEL, TOPIC, Bench, MeasureError, run_load
from benchmarks.servers import OURS, Server, ServerError

WAIT_S = 60.0
IN_MEMORY = "--mem-queue-size=10000000"
# Quick runs only show that a table can be made.
QUICK_PART = 50
TICK_S = 0.01

Options = dict[str, int | str | bool]


@dataclass(frozen=True)
class Flow:
    """What one load did: messages, the seconds they took, CPU seconds of nsqd and generator."""

    messages: int
    seconds: float
    cpu_s: float
    generator_cpu_s: float = 0.0

    def __add__(self, other: Flow) -> Flow:
        """One after the other."""
        return Flow(
            self.messages + other.messages,
            self.seconds + other.seconds,
            self.cpu_s + other.cpu_s,
            self.generator_cpu_s + other.generator_cpu_s,
        )

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds of nsqd for each message; never 0, for a tick is 10 ms."""
        return max(self.cpu_s, TICK_S) / self.messages * 1e6

    @property
    def busy_percent(self) -> float:
        """What nsqd used of one core."""
        return self.cpu_s / self.seconds * 100


@dataclass(frozen=True)
class Lab:
    """The programs and folders of a session, and whether it is only a try."""

    bench: Bench

    @property
    def quick(self) -> bool:
        """Whether figures do not matter."""
        return self.bench.quick

    def some(self, count: int, least: int = 1) -> int:
        """So many; in a quick run a part of them."""
        return max(count // QUICK_PART, least) if self.quick else count

    @contextmanager
    def nsqd(
        self, *options: str, folder: Path | None = None, channels: int = 1
    ) -> Iterator[Server]:
        """A fresh nsqd, killed after the block, with so many channels of the topic.

        Raises:
            MeasureError: what failed in the block, with the last lines of nsqd's log.
        """
        with self.bench.kinds.start(OURS, options or (IN_MEMORY,), folder) as server:
            try:
                self.load(server, "channels", channel=CHANNEL, channels=channels)
                yield server
            except (MeasureError, ServerError) as error:
                raise MeasureError(f"{error}; its last lines:\n{server.last_lines()}") from error

    def load(self, server: Server, scenario: str, **options: int | str | bool) -> dict[str, Any]:
        """Run the generator; an option's `_` stands for `-`. Raises `MeasureError`."""
        where: Options = {"port": server.tcp_port, "topic": TOPIC, "pid": server.process.pid}
        told = {name.replace("_", "-"): value for name, value in options.items()}
        if told.get("http"):
            where["port"] = server.http_port or 0
        return run_load(self.bench.load, scenario, {**where, **told})

    def publish(self, server: Server, messages: int, **options: int | str | bool) -> Flow:
        """Publish, and count nsqd's work until all channels hold the messages."""
        before = _published(server)
        cpu_s = server.cpu_s()
        run = self.load(server, "publish", messages=messages, **options)
        _await(lambda: _settled(server, before + messages))
        cpu_s = server.cpu_s() - cpu_s
        return Flow(messages, run["publish_seconds"], cpu_s, run["generator_cpu_seconds"])

    def consume(self, server: Server, messages: int, **options: int | str | bool) -> Flow:
        """Take and finish what one channel holds. Options: `consumers`, `rdy`, sizes."""
        options.setdefault("channel", f"{CHANNEL}0")
        cpu_s = server.cpu_s()
        run = self.load(server, "consume", messages=messages, **options)
        cpu_s = server.cpu_s() - cpu_s
        seconds = run["timed_seconds"] * messages / run["timed_messages"]
        return Flow(messages, seconds, cpu_s, run["generator_cpu_seconds"])

    def through(
        self, server: Server, messages: int, channels: int, sizes: Options, **publish: int
    ) -> Flow:
        """Publish while each of the channels is consumed, to the last FIN."""
        reader: Options = {"messages": messages, "consumers": 2, "rdy": 2500, **sizes}
        names = [f"{CHANNEL}{number}" for number in range(channels)]
        cpu_s, began_s = server.cpu_s(), time.monotonic()
        with ThreadPoolExecutor(channels) as pool:
            runs = [pool.submit(self.load, server, "consume", channel=x, **reader) for x in names]
            own_s = self.load(server, "publish", messages=messages, **sizes, **publish)[
                "generator_cpu_seconds"
            ]
            own_s += sum(run.result()["generator_cpu_seconds"] for run in runs)
        seconds = time.monotonic() - began_s
        return Flow(messages, seconds, server.cpu_s() - cpu_s, own_s)


Section = Callable[[Lab], Table]
"""Measures one table."""


def sizes(nbytes: int) -> Options:
    """The generator's options for bodies of one size."""
    return {"size-min": nbytes, "size-max": nbytes}


def get(url: str, within_s: float = 60.0) -> bytes:
    """The body of an answer. Raises `ServerError` when there is none with 200."""
    try:
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            body: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise ServerError(f"{url}: {error!r}") from error
    return body


def await_url(url: str, within_s: float = WAIT_S) -> None:
    """Until it answers 200. Raises `ServerError` when it does not in time."""
    end_s = time.monotonic() + within_s
    while True:
        try:
            get(url, within_s)
        except ServerError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.01)
        else:
            return


def peak_bytes(pid: int) -> int:
    """The most that was resident since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise MeasureError(f"/proc/{pid}/status has no VmHWM")


def forget_peak(pid: int) -> None:
    """The peak is what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def folder_nbytes(folder: Path, pattern: str) -> int:
    """What the matching files of a folder have together."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def stats(server: Server) -> dict[str, Any]:
    """nsqd's /stats of the topic; empty while it is unknown."""
    url = f"http://127.0.0.1:{server.http_port}/stats?format=json&topic={TOPIC}"
    topics: Sequence[dict[str, Any]] = json.loads(get(url))["topics"]
    return topics[0] if topics else {}


def histogram(server: Server, name: str) -> tuple[int, float | None]:
    """How much one of nsqd's histograms has observed, and the mean in milliseconds."""
    found = dict[str, float]()
    for line in get(f"http://127.0.0.1:{server.http_port}/metrics").decode().splitlines():
        if line.startswith((f"{name}_count ", f"{name}_sum ")):
            series, _, value = line.rpartition(" ")
            found[series] = float(value)
    count, total_s = found[f"{name}_count"], found[f"{name}_sum"]
    return int(count), total_s / count * 1e3 if count else None


def _published(server: Server) -> int:
    return int(stats(server).get("message_count", 0))


def _settled(server: Server, published: int) -> str | None:
    topic = stats(server)
    counts = {topic["message_count"], *(each["message_count"] for each in topic["channels"])}
    if counts <= {published}:
        return None
    return f"published were {published}, topic and channels have {sorted(counts)}"


def _await(check: Callable[[], str | None]) -> None:
    end_s = time.monotonic() + WAIT_S
    while (complaint := check()) is not None:
        if time.monotonic() > end_s:
            raise MeasureError(complaint)
        time.sleep(0.02)
