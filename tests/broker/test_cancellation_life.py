"""Each await of a whole broker's life is cancelled once, and each of an upgrade of a connection."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.support import check_balances, check_nobody_left, publish
from tests.broker.test_statsd import Network as Statsd
from tests.broker.upgrading import Upgrading, certificate
from tests.cancellation import (
    BOTH_IN_SOAK,
    CancelAt,
    When,
    run_counted,
    sweep_awaits,
)
from tests.soak import more_in_soak
from trionsq.broker.background import ThreadBackground
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame
from trionsq.wire.states import MAGIC_V2

TOPICS = ("s", "t", "u")
OPTIONS: dict[str, Any] = {
    # What is acknowledged is in a file.
    "mem_queue_size": 0,
    "sync_every": 2,
    "statsd_address": "stats:8125",
    "statsd_interval_ns": 2 * SECOND_NS,
    "statsd_udp_packet_size": 200,
}


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few topics take several turns of the event loop."""
    monkeypatch.setattr("trionsq.broker.metadata._ENTRIES_PER_TURN", 1)
    monkeypatch.setattr("trionsq.broker.statistics._ROWS_PER_TURN", 1)
    monkeypatch.setattr("trionsq.broker.checks._MAX_CHECKS", 1)
    monkeypatch.setattr("trionsq.broker.checks._INTERVAL_S", 1)
    monkeypatch.setattr("trionsq.broker.metadata._IDS_SAVE_S", 1.5)
    monkeypatch.setattr("trionsq.broker.topic._MAX_DELETE", 1)
    monkeypatch.setattr("trionsq.broker.topic_mover._MAX_SEGMENTS", 1)
    monkeypatch.setattr("trionsq.broker.client._MAX_COMMANDS", 2)
    monkeypatch.setattr("trionsq.core.in_flight.MAX_DIRECT_LOOKUPS", 0)


class Life:
    """A broker from its start to its stop, on a disk that fails now and then.

    Attributes:
        acknowledged: bodies of each topic that nsqd has confirmed.
        broker: None before the start.
    """

    def __init__(self, disk: SimulatedDisk, clock: Clock) -> None:
        self.acknowledged: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.broker: Broker | None = None
        self.statsd = Statsd()
        self.is_complete = False
        self._disk = disk
        self._clock = clock

    async def run(self) -> None:
        background = ThreadBackground()
        async with trio.open_nursery() as jobs:
            await jobs.start(background.run)
            async with nsqd_in_memory(
                disk=self._disk, background=background, clock=self._clock, **OPTIONS
            ) as self.broker:
                await self._live(self.broker)
                # The first attempt of the stop fails.
                self._disk.fail(errno.ENOSPC, name="t:c.diskqueue*")
            self.is_complete = True
            jobs.cancel_scope.cancel()

    async def _live(self, broker: Broker) -> None:
        broker.statsd.connect = self.statsd.connect
        # The metadata of the first topic.
        self._disk.fail(errno.ENOSPC, only=("create",), name="nsqd.dat*")
        talk = Conversation.begin(broker)
        for topic in TOPICS:
            broker.topic(topic).channel("c")
            bodies = [b"%b %d" % (topic.encode(), number) for number in range(3)]
            await talk.say(commands.publish_many(topic, bodies))
            await talk.response()
            self.acknowledged[topic].update(bodies)
        broker.topic("gone").channel("c")
        broker.topic("gone").channel("d")
        await talk.say(*(commands.publish("gone", b"x") for _ in range(5)))
        for _ in range(5):
            await talk.response()
        talk.close()
        await self._finish_in_vain(broker)
        await trio.sleep(2.5)
        broker.delete_topic("gone")
        await trio.sleep(2)
        # The end of the input, amid a command.
        talk = Conversation.begin(broker)
        await talk.say(b"PUB t\n\x00")
        talk.stream.end_sending()
        await talk.end()
        talk.close()

    async def _finish_in_vain(self, broker: Broker) -> None:
        """FIN for a message of another client: nsqd looks for it in turns."""
        first, second = (Conversation.begin(broker) for _ in range(2))
        await first.subscribe("gone", "c", ready=10)
        message = await first.message()
        await second.subscribe("gone", "c")
        await second.say(commands.finish(message.message_id))
        assert (await second.error()).startswith("E_FIN_FAILED")
        first.close()
        second.close()


async def live(cancel_at: CancelAt) -> None:
    disk, clock = SimulatedDisk(), Clock.from_trio()
    life = Life(disk, clock)
    await run_counted(cancel_at, life.run)
    assert life.is_complete or cancel_at.has_fired
    assert not life.statsd.open
    if life.broker is not None:
        assert life.broker._tasks is not None
        assert not life.broker._tasks.child_tasks
        check_nobody_left(life.broker)
    if life.is_complete:
        assert life.broker is not None
        assert (life.broker.unsaved, disk.open_files) == ([], 0)
    disk.heal()
    after = disk if life.is_complete else disk.after_kill()
    async with nsqd_in_memory(disk=after, clock=clock) as broker:
        for topic, acknowledged in life.acknowledged.items():
            assert acknowledged <= await received(broker, topic)


async def received(broker: Broker, topic: str) -> set[bytes]:
    """What comes out of the topic's channel; after a kill, some of it twice."""
    bodies = set()
    consumer = Conversation.begin(broker)
    await consumer.subscribe(topic, "c", ready=100)
    with trio.move_on_after(1):
        while True:
            frame = await consumer.frame()
            if isinstance(frame, MessageFrame):
                bodies.add(frame.body)
                await consumer.say(commands.finish(frame.message_id))
    consumer.close()
    await wait_all_tasks_blocked()
    return bodies


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_a_broker_cancelled_at_any_await_of_its_life(when: When) -> None:
    """It leaves no task and no socket, and the next nsqd has all that was acknowledged."""
    sweep_awaits(live, when, least=100, one_in=20)


async def stop_on_a_full_disk(cancel_at: CancelAt) -> None:
    """The first attempts to save messages and metadata fail."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    bodies = {b"1", b"2"}
    is_complete = False

    async def stop() -> None:
        nonlocal is_complete
        async with nsqd_in_memory(disk=disk, clock=clock) as broker:
            broker.topic("t").channel("c")
            await trio.sleep(1)
            publish(broker, "t", *bodies)
            await trio.sleep(1)
            disk.fail(errno.ENOSPC, only=("create",), name="t:c.diskqueue*")
            disk.fail(errno.ENOSPC, only=("create",), name="nsqd.dat*")
        assert not broker.unsaved
        is_complete = True

    await run_counted(cancel_at, stop)
    assert is_complete or cancel_at.has_fired
    if is_complete:
        assert disk.open_files == 0
    disk.heal()
    async with nsqd_in_memory(disk=disk.after_kill(), clock=clock) as broker:
        assert await received(broker, "t") in (bodies, set())
        if is_complete:
            assert broker.topic("t").core.message_count == 0
            assert broker.topic("t").channel("c").core.finish_count == len(bodies)
        publish(broker, "t", b"3")
        assert await received(broker, "t") == {b"3"}


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_stop_on_a_full_disk_cancelled_at_any_await(when: When) -> None:
    """All is saved in the end, or the stop was cancelled; the next nsqd works in any case."""
    sweep_awaits(stop_on_a_full_disk, when, least=20)


async def upgrade(cancel_at: CancelAt, options: dict[str, Any], *layers: str) -> None:
    async with nsqd_in_memory(**options) as broker:
        assert broker._connections is not None
        peer = Upgrading(broker, capacity_bytes=300)
        [cancel_at.root] = broker._connections.child_tasks
        cancel_at.cancel = peer.client.close
        bodies = [b"small", b"x" * 1000]
        is_complete = False
        with (
            suppress(AssertionError, EOFError, OSError, trio.BrokenResourceError),
            trio.fail_after(60),
        ):
            await peer.upgrade(*layers)
            await peer.say(commands.publish_many("t", bodies))
            assert await peer.frame() == b"OK"
            is_complete = True
        assert is_complete or cancel_at.has_fired
        cancel_at.root = None
        peer.stream.close()
        await trio.sleep(1)
        assert peer.transport.is_closed
        check_nobody_left(broker)
        check_balances(broker)
        assert broker.client_failures == 0
        held = broker.topic("t").core.depth
        assert held == len(bodies) if is_complete else held in (0, len(bodies))
        other = Conversation.begin(broker, magic=MAGIC_V2)
        await other.say(commands.publish("t", b"x"))
        await other.response()


@more_in_soak
@pytest.mark.parametrize("layers", [("tls", "snappy"), ("tls", "deflate"), ("snappy",)])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_an_upgrade_closed_at_any_await(
    layers: tuple[str, ...], when: When, tmp_path: Path
) -> None:
    """The connection is closed, its publish is whole or absent, and others are served."""
    options = certificate(tmp_path)
    sweep_awaits(lambda cancel_at: upgrade(cancel_at, options, *layers), when, least=5, one_in=2)
