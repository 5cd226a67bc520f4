"""What holds the event loop up: much that is to be done at once, and how long others wait then."""

from __future__ import annotations

import selectors
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.capacity.connections import dial
from benchmarks.capacity.lab import IN_MEMORY, Lab, sizes, stats
from benchmarks.capacity.tables import Table
from benchmarks.capacity.topics import Pinger, base_url
from benchmarks.generator import CHANNEL, TOPIC, MeasureError
from benchmarks.servers import Server

MESSAGES = 500_000
CONNECTIONS = 5_000
HOLDERS = 80
RDY = 2_500
TIMEOUT_S = 4
WITHIN_S = 30.0
STEP_S = 0.5


def measure_stalls(lab: Lab) -> Table:
    """Each on a fresh nsqd that does nothing else."""
    table = Table(
        "stalls",
        "what holds nsqd up",
        "event, CPU s, others wait s",
        "The last column is the longest answer to /ping meanwhile.",
    )
    count, holders = lab.some(MESSAGES, 1_000), lab.some(HOLDERS)
    with lab.nsqd() as server:
        lab.publish(server, count, publishers=2, batch=200, **sizes(100))
        where = f"/channel/empty?topic={TOPIC}&channel={CHANNEL}0"
        table.add(f"a channel is emptied: {count:,} by MPUB of 200", *_watched(server, where))
        lab.publish(server, count, publishers=2, window=100, **sizes(100))
        where = f"/topic/delete?topic={TOPIC}"
        table.add(f"a topic is deleted: {count:,} by PUB", *_watched(server, where))
    with lab.nsqd("--mem-queue-size=0") as server:
        lab.publish(server, count, publishers=2, batch=100, **sizes(1_000))
        where = f"/channel/empty?topic={TOPIC}&channel={CHANNEL}0"
        table.add(f"a channel is emptied: {count:,} of 1 kB on disk", *_watched(server, where))
    connections = lab.some(CONNECTIONS)
    table.add(f"{connections:,} connections end at once", *_left(lab, connections))
    table.add(f"{holders * RDY:,} messages in flight time out", *_timed_out(lab, holders))
    return table


def _during(server: Server, act: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds until nsqd is quiet again, less those for being asked, and the longest wait."""
    with Pinger(server) as pinger:
        asked_s = _spent_s(server)
        before_s, began_s = server.cpu_s(), time.monotonic()
        act()
        while _spent_s(server) > asked_s + 0.03:
            pass
        rounds = (time.monotonic() - began_s) / STEP_S
        cpu_s = server.cpu_s() - before_s - asked_s * rounds
    return max(cpu_s, 0.0), pinger.longest_s


def _spent_s(server: Server) -> float:
    """CPU seconds of half a second."""
    cpu_s = server.cpu_s()
    time.sleep(STEP_S)
    return server.cpu_s() - cpu_s


def _watched(server: Server, path: str) -> tuple[float, float]:
    def post() -> None:
        request = urllib.request.Request(base_url(server) + path, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    return _during(server, post)


def _left(lab: Lab, count: int) -> tuple[float, float]:
    with lab.nsqd() as server:
        where = ["--port", str(server.tcp_port), "--topic", TOPIC, "--channel", f"{CHANNEL}0"]
        idle = subprocess.Popen(
            [lab.bench.load, "idle", *where, "--consumers", str(count), "--hold", "60"],
            stdout=subprocess.DEVNULL,
        )
        try:
            _await(lambda: len(stats(server)["channels"][0]["clients"]) == count)
            return _during(server, idle.kill)
        finally:
            idle.kill()
            idle.wait()


def _timed_out(lab: Lab, holders: int) -> tuple[float, float]:
    """Consumers take all they may and leave; nothing is put back before it times out."""
    count = holders * RDY
    with lab.nsqd(IN_MEMORY, f"--msg-timeout={TIMEOUT_S}s") as server:
        lab.publish(server, count, publishers=2, batch=200, **sizes(100))
        _take(server, holders, count)
        return _during(server, lambda: _await(lambda: _channel(server, "depth") == count))


def _take(server: Server, holders: int, count: int) -> None:
    with ExitStack() as held, selectors.DefaultSelector() as selector:
        for _ in range(holders):
            sock = held.enter_context(dial(server))
            sock.sendall(b"SUB %s %s0\nRDY %d\n" % (TOPIC.encode(), CHANNEL.encode(), RDY))
            selector.register(sock, selectors.EVENT_READ, sock)
        end_s = time.monotonic() + TIMEOUT_S
        while _channel(server, "in_flight_count") < count:
            if time.monotonic() > end_s:
                raise MeasureError(f"{count} messages are not in flight")
            for key, _ in selector.select(0.1):
                key.data.recv(1 << 20)


def _channel(server: Server, figure: str) -> int:
    return int(stats(server)["channels"][0][figure])


def _await(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not done():
        if time.monotonic() > end_s:
            raise MeasureError(f"not done after {WITHIN_S:g} s")
        time.sleep(0.1)
