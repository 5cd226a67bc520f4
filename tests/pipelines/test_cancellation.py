"""Each await of the receiver and of the sink is cancelled once; brokers are in this process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import trio

from pipelines.receiver import Receiver, ReceiverConfig
from pipelines.sink.commands import command_batches
from pipelines.sink.nsqds import open_nsqds
from pipelines.sink.options import CommandLimits
from pipelines.sink.stage import Stage
from pipelines.sink.writers import _publish
from pipelines.wal import WalLimits
from tests.broker.support import check_balances, check_nobody_left, publish
from tests.cancellation import CancelAt, Scenario, When, sweep_awaits
from tests.client.network import Network
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from tests.pipelines.sink.rows import batch, options
from tests.pipelines.wal.logs import numbers_on, open_log
from tests.soak import in_short_soak, more_in_soak
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.client import Consumer
from trionsq.client.connection import Connection
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryStream, memory_connection
from trionsq.wire import commands

ADDRESS = "nsqd.test:4150"
LOOKUPD = "lookupd.test:4161"
PRODUCERS = [{"broadcast_address": "nsqd.test", "tcp_port": 4150}]
ANSWERS = {
    b"topics": {"topics": ["t", "u", "other"]},
    b"nodes": {"producers": PRODUCERS},
    b"lookup": {"channels": [], "producers": PRODUCERS},
}
COUNT = 12
# Beyond each deferral of a requeued message.
SETTLE_S = 3.0


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Broker, Network]]:
    """An nsqd, and an nsqlookupd that knows it; all that dials reaches them."""
    async with trio.open_nursery() as nursery, nsqd_in_memory() as broker:
        network = Network.of(broker, ADDRESS)

        async def dial(host: str, port: int) -> MemoryStream:
            await trio.lowlevel.checkpoint()
            ours, theirs = memory_connection()
            nursery.start_soon(answer, MemoryStream(theirs.incoming, theirs.outgoing))
            return ours

        with patched(network, partial(httpget.get, dial=dial)):
            yield broker, network
            assert all(link.is_closed for link in network.links)
        nursery.cancel_scope.cancel()


async def answer(stream: MemoryStream) -> None:
    """One answer of an nsqlookupd."""
    heard = b""
    try:
        while b"\r\n\r\n" not in heard:
            data = await stream.receive_some()
            if not data:
                return
            heard += data
        path = heard.split()[1].partition(b"?")[0].strip(b"/")
        body = json.dumps(ANSWERS[path]).encode()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except trio.BrokenResourceError:
        return
    finally:
        stream.close()


@contextmanager
def patched(network: Network, get: Any) -> Iterator[None]:
    """Consumers, publishers and requests reach this network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pipelines.receiver.receiver.Consumer", partial(Consumer, dial=network.dial, get=get)
        )
        opened = Connection.open
        patch.setattr(
            "pipelines.sink.nsqds.Connection.open",
            lambda address, config, dial=network.dial: opened(address, config, dial),
        )
        patch.setattr("pipelines.discovery.httpget.get", get)
        yield


async def waiting(broker: Broker, topic: str, channel: str = "c") -> list[int]:
    """The numbers that the next consumer of a channel gets."""
    consumer = Conversation.begin(broker, capacity_bytes=2**20)
    await consumer.subscribe(topic, channel, ready=1000)
    found = []
    with trio.move_on_after(SETTLE_S):
        while True:
            message = await consumer.message()
            found.append(int(message.body))
            await consumer.say(commands.finish(message.message_id))
    consumer.close()
    await trio.sleep(0.1)
    return found


# The receiver


async def end_a_receiver(cancel_at: CancelAt, *, how: str) -> None:
    """A receiver that finds its topics, and whose log is full for a while, ends at one await."""
    disk = SimulatedDisk()
    log = open_log(disk, WalLimits(max_bytes=10_000, retention_s=0))
    config = ReceiverConfig(
        topic_pattern="[tu]",
        channel="c",
        lookupd_http_addresses=(LOOKUPD,),
        connections_per_nsqd=1,
        max_in_flight=4,
        probe_s=0.2,
    )
    with nothing_left_behind(), threads_in_mock_time():
        async with cluster() as (broker, network):
            for topic in ("t", "u"):
                broker.topic(topic).channel("c")
            publish(broker, "t", *(b"%d" % number for number in range(COUNT)))
            publish(broker, "u", *(b"%d" % number for number in range(COUNT, 2 * COUNT)))
            receiver, ended, scope = Receiver(config, log), trio.Event(), trio.CancelScope()

            async def receive() -> None:
                with scope:
                    await receiver._main()
                ended.set()

            committed: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                [cancel_at.root] = nursery.child_tasks
                cancel = scope.cancel if how == "cancelled" else receiver._stop.set
                cancel_at.cancel = cancel
                await trio.sleep(2)
                committed = numbers_on(disk)
                log.commit(log.end)
                await trio.sleep(4)
                cancel_at.root = None
                receiver._stop.set()
                with trio.fail_after(config.stop_timeout_s + 1):
                    await ended.wait()
            log.close()
            assert disk.open_files == 0
            assert all(link.is_closed for link in network.links)
            check_nobody_left(broker)
            check_balances(broker)
            left = await waiting(broker, "t") + await waiting(broker, "u")
    assert len(left) == len(set(left))
    assert sorted({*left, *committed, *numbers_on(disk)}) == list(range(2 * COUNT))


@in_short_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
@pytest.mark.parametrize("how", ["stopped", "cancelled"])
def test_a_receiver_ended_at_any_await(how: str, when: When) -> None:
    """No connection, file or task is left, and each message is in the log or at nsqd."""
    sweep_awaits(partial(end_a_receiver, how=how), when)


# The sink


async def end_a_publisher(cancel_at: CancelAt) -> None:
    """A task of the sink in direct mode is cancelled at one await; then it is done again."""
    given = options(ADDRESS, lookupd__http__addresses=LOOKUPD, batchMessages="3", unconfirmed="2")
    rows = [batch([b"%d" % number for number in range(at, at + 5)]) for at in (0, 5)]
    with nothing_left_behind(), threads_in_mock_time():
        async with cluster() as (broker, network):
            broker.topic("t").channel("c")
            done = 0
            with trio.CancelScope() as scope:
                cancel_at.root = trio.lowlevel.current_task()
                cancel_at.cancel = scope.cancel
                done = await _publish(iter(rows), given, 0)
            cancel_at.root = None
            assert done == 10 or cancel_at.has_fired
            assert all(link.is_closed for link in network.links)
            assert await _publish(iter(rows), given, 0) == 10
            found = Counter(await waiting(broker, "t"))
    assert set(found) == set(range(10))
    assert max(found.values()) <= 1 + cancel_at.has_fired or done == 10


async def end_a_commit(cancel_at: CancelAt) -> None:
    """A commit in staged mode is cancelled at one await; the next driver commits the rest."""
    disk = SimulatedDisk()
    given = options(ADDRESS)
    stage = Stage(disk)
    files = []
    for at in (0, 6):
        rows = batch([b"%d" % number for number in range(at, at + 6)])
        staged = stage.write("q", [command_batches(rows, "t", CommandLimits(max_messages=2))])
        assert staged is not None
        files.append(staged)
    with nothing_left_behind():
        async with cluster() as (broker, network):
            broker.topic("t").channel("c")
            with trio.CancelScope() as scope:
                cancel_at.root = trio.lowlevel.current_task()
                cancel_at.cancel = scope.cancel
                async with open_nsqds(given) as nsqds:
                    await stage.commit("q", 1, files, nsqds.publish)
            cancel_at.root = None
            assert disk.open_files == 0
            assert all(link.is_closed for link in network.links)
            async with open_nsqds(given) as nsqds:
                await Stage(disk).commit("q", 1, files, nsqds.publish)
            found = Counter(await waiting(broker, "t"))
    assert set(found) == set(range(12))
    # The command batch that was under way is published again.
    assert sum(found.values()) <= 12 + 2 * cancel_at.has_fired
    assert disk.open_files == 0


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
@pytest.mark.parametrize("scenario", [end_a_publisher, end_a_commit])
def test_publishing_cancelled_at_any_await(scenario: Scenario, when: When) -> None:
    """No connection, file or task is left, and the next attempt publishes what is missing."""
    sweep_awaits(scenario, when)
