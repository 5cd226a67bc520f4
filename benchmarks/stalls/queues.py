"""Loads of queues: what waits in memory, on disk, for its time, and in very many channels."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack

from benchmarks.capacity.topics import write_metadata
from benchmarks.generator import CHANNEL, CONSUMED, TOPIC
from benchmarks.stalls.clients import Client, command
from benchmarks.stalls.daemons import Daemon
from benchmarks.stalls.stage import IN_MEMORY, Stage, await_true, channel_figure, peek, post

DEFERRED = 150_000
DUE_AT_ONCE = 500_000
ON_DISK = 800_000
SINGLES = 1_000_000
CHANNELS = 10_000
TOPICS = 5_000
CREATED = 50
ALIKE = "c"
"""With TOPIC by turns, so that no two PUBs of a run are for one topic and can be one batch."""


def defer(nsqd: Daemon, count: int, delay_ms: int) -> None:
    """So many DPUBs to the topic, thousands under way; returns when all are answered."""
    publisher = Client(nsqd)
    try:
        publisher.frames(1)
        line = command(f"DPUB {TOPIC} {delay_ms}", b"x" * 100)
        for start in range(0, count, 5_000):
            some = min(5_000, count - start)
            publisher.send(line * some)
            publisher.frames(some)
    finally:
        publisher.close()


def deferred(stage: Stage) -> None:
    """150,000 deferred messages, a restart, and the first consumer; then many due at once."""
    count = stage.some(DEFERRED, 1_000)
    with stage.folder() as folder:
        with stage.nsqd(folder=folder) as nsqd:
            stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
            defer(nsqd, count, 3_500_000)
            nsqd.stop()
        with stage.nsqd(folder=folder) as nsqd, ExitStack() as stack:
            client = Client(nsqd)
            stack.callback(client.close)
            with stage.watch(nsqd, f"{count:,} deferred, restart, the first RDY 1"):
                client.subscribe(TOPIC, CONSUMED, 1)
                client.frames(2)
    count, delay_s = stage.some(DUE_AT_ONCE, 1_000), 12 if not stage.quick else 2
    with stage.nsqd(IN_MEMORY) as nsqd:
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        began_s = time.monotonic()
        defer(nsqd, count, delay_s * 1_000)
        if time.monotonic() > began_s + delay_s - 1:
            return  # the machine is too slow for all to be due at once
        with stage.watch(nsqd, f"/channel/peek of {count:,} deferred"):
            peek(nsqd, "state=deferred&limit=10")
        with stage.watch(nsqd, f"{count:,} deferred come due"):
            await_true(lambda: channel_figure(nsqd, "depth") == count, "all are due")


def empty_disk(stage: Stage) -> None:
    """/channel/empty with 0.8 GB on disk; messages come and go through the disk meanwhile."""
    count = stage.some(ON_DISK, 1_000)
    with stage.folder() as folder:
        sizes: dict[str, int | str | bool] = {"size_min": 1_000, "size_max": 1_000}
        with stage.nsqd("--mem-queue-size=0", folder=folder) as nsqd:
            stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
            stage.load(nsqd, "publish", publishers=2, batch=100, messages=count, **sizes)
            await_true(lambda: channel_figure(nsqd, "depth") == count, "all are in the channel")
            where = f"topic={TOPIC}&channel={CONSUMED}"
            with stage.watch(nsqd, f"/channel/peek behind {count:,} on disk"):
                peek(nsqd, f"offset={count - 10}")
            with stage.watch(nsqd, f"/channel/empty with {count / 1e6:.1f} GB on disk"):
                post(nsqd, f"/channel/empty?{where}")


def singles(stage: Stage) -> None:
    """A million messages wait, each published alone, while a slow publisher goes on."""
    count = stage.some(SINGLES, 1_000)
    with stage.nsqd(IN_MEMORY) as nsqd:
        for topic in (TOPIC, ALIKE):
            post(nsqd, f"/topic/create?topic={topic}")
            post(nsqd, f"/channel/create?topic={topic}&channel={CONSUMED}")
        publisher = Client(nsqd)
        publisher.frames(1)
        pair = command(f"PUB {TOPIC}", b"x" * 100) + command(f"PUB {ALIKE}", b"x" * 100)
        with stage.watch(nsqd, f"{count:,} PUBs that find no consumer"):
            for _ in range(count // 2_000):
                publisher.send(pair * 1_000)
                publisher.frames(2_000)
        with stage.watch(nsqd, f"{count:,} messages wait; 20,000 more come"):
            for _ in range(stage.some(200)):
                publisher.send(pair * 50)
                publisher.frames(100)
                time.sleep(0.02)
        with stage.watch(nsqd, f"{count:,} messages wait; /debug/loop and its figures"):
            nsqd.get("/debug/loop?seconds=0.1")
        half = channel_figure(nsqd, "depth")
        with stage.watch(nsqd, f"/channel/peek behind {half:,} in memory"):
            peek(nsqd, f"offset={half - 10}")
        with stage.watch(nsqd, f"/channel/empty with {half:,} in memory"):
            post(nsqd, f"/channel/empty?topic={TOPIC}&channel={CONSUMED}")
        with stage.watch(nsqd, f"/topic/delete with {half:,} in memory"):
            post(nsqd, f"/topic/delete?topic={ALIKE}")
        publisher.close()


def many_channels(stage: Stage) -> None:
    """One topic of 10,000 channels: publish, look, pause, delete."""
    count = stage.some(CHANNELS, 10)
    with stage.folder() as folder:
        write_metadata(folder, 1, count)
        topic = "t00000"
        with stage.nsqd(folder=folder) as nsqd:
            publisher = Client(nsqd)
            publisher.frames(1)
            line = command(f"PUB {topic}", b"x" * 100)
            with stage.watch(nsqd, f"a topic of {count:,} channels: 20 PUBs"):
                for _ in range(20):
                    publisher.send(line)
                    publisher.frames(1)
            for page in ("/metrics", "/stats?format=json", "/stats"):
                with stage.watch(nsqd, f"a topic of {count:,} channels: {page}"):
                    nsqd.get(page)
            for verb in ("pause", "unpause", "empty", "delete"):
                with stage.watch(nsqd, f"a topic of {count:,} channels: {verb}"):
                    post(nsqd, f"/topic/{verb}?topic={topic}")
            publisher.close()


def many_topics(stage: Stage) -> None:
    """5,000 topics: some are made, which writes nsqd.dat; publishers to each of them."""
    count, created = stage.some(TOPICS, 10), stage.some(CREATED)
    with stage.folder() as folder:
        write_metadata(folder, count, 1)
        with stage.nsqd("--statsd-interval=5s", folder=folder) as nsqd:
            with stage.watch(nsqd, f"{count:,} topics: {created} more are made"):
                for number in range(created):
                    post(nsqd, f"/topic/create?topic=new{number}")
            publisher = Client(nsqd)
            publisher.frames(1)
            lines = [command(f"PUB t{number:05d}", b"x" * 100) for number in range(count)]
            with stage.watch(nsqd, f"{count:,} topics: a PUB to each, three times"):
                for line in itertools.chain(lines, lines, lines):
                    publisher.send(line)
                publisher.frames(3 * count)
            publisher.close()
            with stage.watch(nsqd, f"{count:,} topics are paused, one after the other"):
                for number in range(min(count, 200)):
                    post(nsqd, f"/topic/pause?topic=t{number:05d}")
