"""Runs one load against one fresh server, and checks afterwards that nothing got lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, Run
from benchmarks.servers import FLOOR, ORIGINAL, OURS, Kinds, Server

TOPIC = "bench"
CHANNEL = "bench"
CONSUMED = f"{CHANNEL}0"
"""`load channels` numbers the channels it creates; the consumers take the first."""
LOAD_S = 300.0
SETTLE_S = 120.0
# Enough to be sure of the rate on any server, and what the floor may stream in 3 s.
FLOOR_MOST = 12_000_000


class MeasureError(Exception):
    """A load failed, or the server's own figures afterwards do not add up."""


@dataclass(frozen=True)
class Bench:
    """What every measurement shares: programs, servers and how long to go on."""

    load: Path
    kinds: Kinds
    seconds: float = 3.0
    quick: bool = False

    def options(self, row: Row) -> dict[str, int | str]:
        """The generator's options of a row."""
        return {**row.options, **(row.quick_options if self.quick else {})}

    def channels(self, row: Row) -> int:
        """How many channels the row's topic has."""
        return row.quick_channels if self.quick else row.channels


def run_load(load: Path, scenario: str, options: Mapping[str, int | str | bool]) -> dict[str, Any]:
    """Run the generator and return the JSON it prints.

    An option that is True is a flag, one that is False is left out. Raises `MeasureError` with
    the generator's own words when it fails, or when it does not end within 300 s.
    """
    command = [str(load), scenario]
    for name, value in options.items():
        if value is not False:
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{' '.join(command)}: not done after {LOAD_S:.0f} s") from error
    if result.returncode != 0:
        raise MeasureError(f"{' '.join(command)}: {result.stderr.strip()}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def _await(what: str, check: Callable[[], str | None]) -> None:
    """Asks until `check` has nothing left to complain of."""
    end = time.monotonic() + SETTLE_S
    while (complaint := check()) is not None:
        if time.monotonic() > end:
            raise MeasureError(f"{what}: {complaint}")
        time.sleep(0.05)


def _await_quiet(server: Server) -> None:
    """Waits until work that goes on after the answer (writing metadata, say) is done."""

    def check() -> str | None:
        before = server.cpu_s()
        time.sleep(0.5)
        return "still busy" if server.cpu_s() - before > 0.15 else None

    _await("after creating channels", check)


def _await_counts(server: Server, *, published: int, waiting: int) -> None:
    """Waits for the server's own figures: all published, all in the channel, so many left."""

    def check() -> str | None:
        topic = server.topic_stats(TOPIC, CONSUMED)
        if topic is None:
            return "the channel is missing"
        channel = topic["channels"][0]
        seen = (topic["message_count"], topic["depth"], channel["message_count"])
        if seen != (published, 0, published):
            return f"topic and channel say {seen}, published were {published}"
        left = (channel["depth"], channel["in_flight_count"])
        return None if left == (waiting, 0) else f"waiting and in flight: {left}, not {waiting}, 0"

    _await("after the load", check)


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
    with bench.kinds.start(kind, _server_options(row, kind, messages)) as server:
        try:
            return _run_on(bench, row, server, messages)
        except MeasureError as error:
            raise MeasureError(f"{error}; its last lines:\n{server.last_lines()}") from error


def _run_on(bench: Bench, row: Row, server: Server, messages: int) -> Run:
    kind = server.kind
    where: dict[str, int | str | bool] = {
        "port": server.tcp_port,
        "pid": server.process.pid,
        "topic": TOPIC,
    }
    channels = bench.channels(row)
    if kind != FLOOR:
        run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": channels})
        if channels > 1:
            _await_quiet(server)
    where |= {"channel": CONSUMED, "messages": messages}
    if row.preload and kind != FLOOR:
        run_load(bench.load, "publish", {**where, "publishers": 2, "batch": 200})
        _await_counts(server, published=messages, waiting=messages)
    resident, cpu_s = server.resident_bytes(), server.cpu_s()
    options = {**where, **bench.options(row), "unbuffered": kind in row.unbuffered}
    run = run_load(bench.load, row.scenario, options)
    if kind != FLOOR:
        waiting = messages if row.scenario == "publish" else 0
        _await_counts(server, published=messages, waiting=waiting)
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
