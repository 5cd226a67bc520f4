"""Loads of consumers: late ones, hostile ones, and many at once."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.generator import CHANNEL, CONSUMED, TOPIC
from benchmarks.stalls.clients import Client, command, mpub, subscribed, swallow
from benchmarks.stalls.daemons import Daemon
from benchmarks.stalls.stage import IN_MEMORY, Stage, await_true, channel_figure, peek, post

BYSTANDERS = 1_190
HOLDERS = 10
RDY = 2_500
MISSES = 2_500
COME_AND_GO = 3_000
IN_FLIGHT = 1_000_000
GREEDY = 20


def late_answers(stage: Stage) -> None:
    """Ten of 1,200 consumers finish what has timed out; a hostile one sends ids that never were."""
    bystanders, rdy = stage.some(BYSTANDERS), stage.some(RDY)
    with ExitStack() as stack:
        nsqd = stack.enter_context(stage.nsqd(IN_MEMORY, "--msg-timeout=1s"))
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        subscribed(nsqd, stack, bystanders, TOPIC, CONSUMED, 0)
        holders = subscribed(nsqd, stack, HOLDERS, TOPIC, CONSUMED, rdy)
        stage.load(nsqd, "publish", publishers=2, batch=100, messages=HOLDERS * rdy)
        ids = []
        for client in holders:
            ids.append(client.ids(rdy))
            client.send(command("RDY 0"))
        await_true(lambda: _waiting(nsqd) == HOLDERS * rdy, "all of it has timed out")
        with stage.watch(nsqd, f"{bystanders:,} consumers; {HOLDERS} FIN {rdy:,} late"):
            for client, late in zip(holders, ids, strict=True):
                client.send(*(b"FIN " + id_ + b"\n" for id_ in late))
            for client in holders:
                client.frames(1)
        _misses(stage, nsqd, holders[0], bystanders)


def _misses(stage: Stage, nsqd: Daemon, client: Client, bystanders: int) -> None:
    for verb, tail in (("REQ", " 0"), ("TOUCH", "")):
        count = stage.some(MISSES)
        lines = [command(f"{verb} {number:016x}{tail}") for number in range(count)]
        with stage.watch(nsqd, f"{bystanders:,} consumers; {verb} of {count:,} unknown ids"):
            client.send(*lines)
            client.frames(count)


def _waiting(nsqd: Daemon) -> int:
    return channel_figure(nsqd, "depth")


def come_and_go(stage: Stage) -> None:
    """Thousands of consumers connect, then all of them leave; /stats of them in between."""
    count = stage.some(COME_AND_GO)
    with stage.nsqd() as nsqd, ExitStack() as stack:
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        with stage.watch(nsqd, f"{count:,} consumers connect"):
            clients = subscribed(nsqd, stack, count, TOPIC, CONSUMED, 1)
            for client in clients:
                client.frames(1)
        for form in ("json", "text"):
            with stage.watch(nsqd, f"/stats, {form}, of {count:,} clients"):
                nsqd.get(f"/stats?format={form}")
        with stage.watch(nsqd, f"a message for {count:,} consumers that wait"):
            stage.load(nsqd, "publish", publishers=1, batch=count, messages=count)
        with stage.watch(nsqd, f"{count:,} consumers leave at once"):
            for client in clients:
                client.close()
        with ExitStack() as more:
            subscribed(nsqd, more, count, TOPIC, CONSUMED, 0)
            await_true(lambda: _clients(nsqd) == count, "all are subscribed")
            with stage.watch(nsqd, f"a channel of {count:,} consumers is deleted"):
                post(nsqd, f"/channel/delete?topic={TOPIC}&channel={CONSUMED}")


def _clients(nsqd: Daemon) -> int:
    return channel_figure(nsqd, "client_count")


def in_flight(stage: Stage) -> None:
    """A million messages in flight: scans find none that is due; then all are due at once."""
    count = stage.some(IN_FLIGHT, 1_000)
    timeout_s = 25 if not stage.quick else 5
    most = count // GREEDY
    options = (IN_MEMORY, f"--max-rdy-count={most}", f"--msg-timeout={timeout_s}s")
    with stage.nsqd(*options) as nsqd, ExitStack() as stack:
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        stage.load(
            nsqd, "publish", publishers=2, batch=500, messages=count, size_min=24, size_max=24
        )
        clients = subscribed(nsqd, stack, GREEDY, TOPIC, CONSUMED, most)
        began_s = time.monotonic()
        swallow(clients, lambda: channel_figure(nsqd, "in_flight_count") == count)
        with stage.watch(nsqd, f"{count:,} in flight, none due"):
            # Two of the scans that look for batches to be copied out of.
            time.sleep(max(1.0, min(6.0, began_s + timeout_s - 4 - time.monotonic())))
        with stage.watch(nsqd, f"/channel/peek behind {count:,} in flight"):
            peek(nsqd, f"state=in_flight&offset={count - 10}")
        for client in clients:
            client.send(command("RDY 0"))
        with stage.watch(nsqd, f"{count:,} in flight time out"):
            await_true(lambda: _waiting(nsqd) == count, "all have timed out")


def tiny_messages(stage: Stage) -> None:
    """The largest MPUB there can be, of the smallest messages."""
    nbytes = stage.some(5_000_000, 100_000)
    count = nbytes // 5
    body = mpub(TOPIC, [b"x"] * count)
    with stage.nsqd(IN_MEMORY) as nsqd, ExitStack() as stack:
        stage.load(nsqd, "channels", channel=CHANNEL, channels=1)
        publisher = Client(nsqd)
        stack.callback(publisher.close)
        with stage.watch(nsqd, f"an MPUB of {count:,} messages of 1 B"):
            publisher.send(body)
            publisher.frames(2)
        lines = b"x\n" * (nbytes // 2)
        with stage.watch(nsqd, f"POST /mpub of {nbytes // 2:,} messages of 1 B"):
            post(nsqd, f"/mpub?topic={TOPIC}", lines)
        most = command("RDY 2500")
        consumer = Client(nsqd)
        stack.callback(consumer.close)
        with stage.watch(nsqd, "2,500 of them to one consumer, which finishes them"):
            consumer.send(command(f"SUB {TOPIC} {CONSUMED}"), most)
            ids = consumer.ids(min(RDY, count))
            consumer.send(command("RDY 0"), *(b"FIN " + id_ + b"\n" for id_ in ids))
