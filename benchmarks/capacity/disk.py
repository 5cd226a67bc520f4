"""Disk: its pace, what a message takes there, and what starts and stops cost with a backlog."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.capacity.lab import (
    IN_MEMORY,
    Lab,
    Options,
    await_url,
    folder_nbytes,
    histogram,
    sizes,
    stats,
)
from benchmarks.capacity.tables import Table
from benchmarks.capacity.topics import base_url
from benchmarks.disk import free_port
from benchmarks.generator import CHANNEL, TOPIC, run_load
from benchmarks.servers import OURS

ALL_TO_DISK = "--mem-queue-size=0"
KB = 1000
STOP_S = 120.0
MB = 1e6
# Of the generator's queue files; ours have the same.
RECORDS = "*.diskqueue.0*.dat"


def measure_disk(lab: Lab) -> Table:
    """All through the files of topic and channel, or only what memory has no room for."""
    table = Table(
        "disk",
        "through disk, one channel, nobody consumes meanwhile",
        "body, mem-queue-size, in msg/s, in MB/s, in CPU us, out msg/s, out MB/s, out CPU us,"
        " bytes on disk each, more than body",
        "In: MPUB on 2 connections; CPU is counted until the channel has all. With 0 each message"
        " is written to the topic's file, read there and written to the channel's; with 10,000,"
        " the default, what the channel has no room for is written to its file. Out: 2 consumers"
        " at RDY 2500, from the page cache. fsync as by default.",
    )
    for nbytes, memory_queue, batch, count in (
        (100, 0, 200, 600_000),
        (KB, 0, 100, 200_000),
        (10 * KB, 0, 20, 30_000),
        (KB, 10_000, 100, 300_000),
    ):
        # Of a quick run, too, some must be on disk.
        messages = lab.some(count, 20_000 if memory_queue else 200)
        option = f"--mem-queue-size={memory_queue}"
        with lab.bench.kinds.folder() as folder, lab.nsqd(option, folder=folder) as server:
            into = lab.publish(server, messages, publishers=2, batch=batch, **sizes(nbytes))
            on_disk = stats(server)["channels"][0]["backend_depth"]
            each = folder_nbytes(folder, f"{TOPIC}:{RECORDS}") / on_disk
            out = lab.consume(server, messages, consumers=2, rdy=2500, **sizes(nbytes))
        table.add(
            *(f"{nbytes:,} B", f"{memory_queue:,}"),
            *(into.rate, into.rate * nbytes / MB, into.cpu_us),
            *(out.rate, out.rate * nbytes / MB, out.cpu_us),
            *(each, each - nbytes),
        )
    return table


def measure_fsync(lab: Lab) -> Table:
    """What --sync-every costs, for publishers that wait for their OK."""
    table = Table(
        "fsync",
        "1 kB messages to disk (--mem-queue-size=0) by --sync-every",
        "sync-every, way, msg/s, CPU us, ms of an fsync, fsyncs a second",
        "OK does not wait for the fsync; but nsqd takes 2 x sync-every further messages at most"
        " while one is under way. Both are of the disk of this machine, mostly.",
    )
    for every in (1, 100, 2500, 100_000):
        for way, count, load in (
            ("MPUB of 100, 2 connections", 100_000, {"publishers": 2, "batch": 100}),
            ("PUB that waits, 50 connections", 20_000, {"publishers": 50}),
        ):
            # A tenth where each message or command waits for the disk.
            messages = lab.some(count // 10 if every == 1 else count, 100)
            with lab.nsqd(ALL_TO_DISK, f"--sync-every={every}") as server:
                began_s = time.monotonic()
                flow = lab.publish(server, messages, **load, **sizes(KB))
                syncs, sync_ms = histogram(server, "nsqd_fsync_duration_seconds")
                took_s = time.monotonic() - began_s
            table.add(f"{every:,}", way, flow.rate, flow.cpu_us, sync_ms, syncs / took_s)
    return table


def measure_start(lab: Lab) -> Table:
    """A start does not read the backlog."""
    table = Table(
        "start",
        "start with a backlog of 1 kB messages on disk",
        "messages, GB on disk, ready after s, first message after s, CPU s, MB resident",
        "To the 200 of /ready, and to the first message of a consumer that tries to connect from"
        " the beginning on. Default options.",
    )
    for count in (0, 100_000, 1_000_000, 3_000_000):
        messages = lab.some(count) if count else 0
        with lab.bench.kinds.folder() as folder:
            load: Options = {"topic": TOPIC, "channel": f"{CHANNEL}0", "data-path": str(folder)}
            if messages:
                run_load(lab.bench.load, "backlog", {**load, "messages": messages, **sizes(KB)})
            table.add(
                f"{messages:,}",
                folder_nbytes(folder, RECORDS) / 1e9,
                *_started(lab, folder, messages),
            )
    return table


def _started(lab: Lab, folder: Path, messages: int) -> tuple[float | None, ...]:
    port = free_port()
    with ThreadPoolExecutor(1) as pool, lab.bench.kinds.launch(OURS, (), folder, port) as launched:
        load: Options = {"topic": TOPIC, "channel": f"{CHANNEL}0", "messages": messages}
        load |= {"port": port, "since-ns": launched.since_ns, "consumers": 1, "rdy": 1}
        load |= {"stall": 60, **sizes(KB)}
        first = pool.submit(run_load, lab.bench.load, "first", load) if messages else None
        server = launched.listening()
        await_url(f"{base_url(server)}/ready")
        ready_s = time.monotonic() - launched.since_ns / 1e9
        first_s = first.result()["timed_seconds"] if first else None
        return ready_s, first_s, server.cpu_s(), server.resident_bytes() / MB


def measure_stop(lab: Lab) -> Table:
    """SIGTERM by what is in memory."""
    table = Table(
        "stop",
        "SIGTERM with messages in memory, until the process has ended",
        "messages, body, MB, s, MB/s, msg/s",
        "One channel. What it could not save in a minute it names, and ends with 1.",
    )
    for count, nbytes in ((0, KB), (10_000, KB), (100_000, KB), (500_000, KB), (1_000_000, 100)):
        messages = lab.some(count, 100) if count else 0
        with lab.bench.kinds.folder() as folder, lab.nsqd(IN_MEMORY, folder=folder) as server:
            if messages:
                lab.publish(server, messages, publishers=2, batch=100, **sizes(nbytes))
            stop_s = server.stop(STOP_S)
        mbytes = messages * nbytes / MB
        table.add(f"{count:,}", f"{nbytes:,} B", mbytes, stop_s, mbytes / stop_s, messages / stop_s)
    return table
