"""Loads of topics with a log, where OK means that a message is safe."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from benchmarks.generator import CHANNEL, CONSUMED, TOPIC
from benchmarks.logread import read_range
from benchmarks.stalls.clients import Client, command, subscribed, swallow
from benchmarks.stalls.daemons import Daemon
from benchmarks.stalls.queues import defer
from benchmarks.stalls.stage import Stage, await_true, channel_figure, post

ON_LOG = ("--storage=log", "--durability=always")
PUBLISHED = 20_000
MANY_PUBLISHERS = 3_000
IN_FLIGHT_EACH = 2_500
IN_FLIGHT = 100_000
BEHIND = 1_000_000
DUE_AT_ONCE = 200_000
READ = 300_000
TINY = 300_000
TOPICS = 2_000


def log_publishers(stage: Stage) -> None:
    """Publishers to a log that wait for OK: 50, and 3,000 at once; MPUBs without waiting."""
    with stage.nsqd(*ON_LOG) as nsqd:
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        count = stage.some(PUBLISHED, 1_000)
        with stage.watch(nsqd, f"{count:,} PUBs of 50 connections that wait"):
            stage.load(nsqd, "publish", publishers=50, messages=count)
        with stage.watch(nsqd, f"MPUBs of {count * 50:,} messages, 10 under way"):
            stage.load(nsqd, "publish", publishers=2, batch=200, window=10, messages=count * 50)
        with ExitStack() as stack:
            clients = [Client(nsqd) for _ in range(stage.some(MANY_PUBLISHERS))]
            for client in clients:
                stack.callback(client.close)
                client.frames(1)
            line = command(f"PUB {TOPIC}", b"x" * 100)
            with stage.watch(nsqd, f"a PUB of each of {len(clients):,} connections, five times"):
                for _ in range(5):
                    for client in clients:
                        client.send(line)
                    for client in clients:
                        client.frames(1)


def log_consumers(stage: Stage) -> None:
    """A log's channel far behind: very many in flight, read on from the disk, emptied."""
    count = stage.some(BEHIND, 1_000)
    with stage.folder() as folder:
        with stage.nsqd(*ON_LOG, folder=folder) as nsqd:
            _fill(stage, nsqd, count)
            nsqd.stop()
        with stage.nsqd(*ON_LOG, "--msg-timeout=10s", folder=folder) as nsqd:
            wanted = min(stage.some(IN_FLIGHT), count)
            with ExitStack() as stack:
                consumers = -(-wanted // IN_FLIGHT_EACH)
                clients = subscribed(nsqd, stack, consumers, TOPIC, CONSUMED, IN_FLIGHT_EACH)
                with stage.watch(nsqd, f"{wanted:,} in flight of {count:,} on disk"):
                    swallow(clients, lambda: channel_figure(nsqd, "in_flight_count") >= wanted)
                    time.sleep(3)  # the state is saved each second
            await_true(lambda: channel_figure(nsqd, "in_flight_count") == 0, "they time out")
            with stage.watch(nsqd, f"a consumer reads {count:,}"):
                stage.load(nsqd, "consume", channel=CONSUMED, consumers=2, rdy=2_500,
                           messages=count)  # fmt: skip
            _fill(stage, nsqd, count)
            with stage.watch(nsqd, f"/channel/empty with {count:,} behind"):
                post(nsqd, f"/channel/empty?topic={TOPIC}&channel={CONSUMED}")
            with stage.watch(nsqd, f"/topic/delete of {count:,}"):
                post(nsqd, f"/topic/delete?topic={TOPIC}")


def _fill(stage: Stage, nsqd: Daemon, count: int) -> None:
    stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
    stage.load(nsqd, "publish", publishers=2, batch=200, window=10, messages=count)
    await_true(lambda: channel_figure(nsqd, "depth") == count, "all are in the channel")


def log_readers(stage: Stage) -> None:
    """GET /topic/log: eight readers at once of both forms, tiny messages, slow ones, a follower."""
    count = stage.some(READ, 1_000)
    with stage.folder() as folder:
        with stage.nsqd(*ON_LOG, folder=folder) as nsqd:
            _fill(stage, nsqd, count)
            nsqd.stop()
        with stage.nsqd(*ON_LOG, folder=folder) as nsqd:
            port = nsqd.http_port
            for form in ("binary", "ndjson"):
                with stage.watch(nsqd, f"8 readers of {count:,}, {form}"), _readers() as pool:
                    for read in [pool.submit(read_range, port, form, count) for _ in range(8)]:
                        read.result()
            with stage.watch(nsqd, f"8 slow readers of {count:,}, ndjson"), _readers() as pool:
                slow = partial(time.sleep, 0.002)
                reads = [
                    pool.submit(read_range, port, "ndjson", count // 8, pace=slow) for _ in range(8)
                ]
                for read in reads:
                    read.result()
            publisher = Client(nsqd)
            publisher.frames(1)
            tiny = stage.some(TINY, 1_000)
            line = command("PUB tiny", b"x")
            for _ in range(tiny // 1_000):
                publisher.send(line * 1_000)
                publisher.frames(1_000)
            with stage.watch(nsqd, f"a reader of {tiny:,} messages of a byte, ndjson"):
                read_range(port, "ndjson", tiny, "tiny")
            with (
                stage.watch(nsqd, "8 readers wait, and one PUB after the other"),
                _readers() as pool,
            ):
                path = "/topic/log?topic=tiny&from=end&wait=3&count=20000"
                followers = [pool.submit(nsqd.get, path) for _ in range(8)]
                while not all(follower.done() for follower in followers):
                    publisher.send(line)
                    publisher.frames(1)
            publisher.close()


def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=8)


def log_deferred(stage: Stage) -> None:
    """Deferred messages of a log: many due at once, whose bodies are read from the disk."""
    count, delay_s = stage.some(DUE_AT_ONCE, 1_000), 2 if stage.quick else 20
    with stage.nsqd(*ON_LOG) as nsqd, ExitStack() as stack:
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        clients = subscribed(nsqd, stack, 4, TOPIC, CONSUMED, 2_500)
        with stage.watch(nsqd, f"{count:,} DPUBs, which come due within {delay_s} s"):
            defer(nsqd, count, delay_s * 1_000)
            swallow(clients, lambda: channel_figure(nsqd, "deferred_count") == 0)


def log_fragments(stage: Stage) -> None:
    """The first log of a node; and very many messages in flight, every second one finished."""
    wanted = stage.some(IN_FLIGHT)
    with stage.nsqd("--durability=always", "--msg-timeout=60s") as nsqd, ExitStack() as stack:
        with stage.watch(nsqd, "the first log is made"):
            post(nsqd, f"/topic/create?topic={TOPIC}&storage=log")
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        stage.load(nsqd, "publish", publishers=2, batch=200, window=10, messages=wanted)
        each = min(wanted, IN_FLIGHT_EACH)
        clients = subscribed(nsqd, stack, wanted // each, TOPIC, CONSUMED, each)
        taken = [client.ids(each) for client in clients]
        with stage.watch(nsqd, f"of {wanted:,} in flight every second one is finished"):
            for client, ids in zip(clients, taken, strict=True):
                client.send(command("RDY 0"), *(command(f"FIN {id_.decode()}") for id_ in ids[::2]))
            await_true(
                lambda: channel_figure(nsqd, "in_flight_count") <= wanted // 2 + 1, "half is left"
            )
            time.sleep(4)  # the state is saved each second


def log_topics(stage: Stage) -> None:
    """2,000 topics with a log: they are made by a PUB to each, and published to; then deleted."""
    count = stage.some(TOPICS, 10)
    with stage.nsqd(*ON_LOG) as nsqd:
        publisher = Client(nsqd)
        publisher.frames(1)
        lines = b"".join(command(f"PUB t{number:05d}", b"x" * 100) for number in range(count))
        for what in ("makes the topic", "comes again"):
            with stage.watch(nsqd, f"a PUB to each of {count:,} topics: {what}"):
                publisher.send(lines)
                publisher.frames(count)
        for page in ("/metrics", "/stats?format=json"):
            with stage.watch(nsqd, f"{count:,} topics with a log: {page}"):
                nsqd.get(page)
        with stage.watch(nsqd, f"{count:,} topics with a log: 50 are deleted"):
            for number in range(min(50, count)):
                post(nsqd, f"/topic/delete?topic=t{number:05d}")
        publisher.close()
