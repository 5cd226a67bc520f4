"""With a disk that takes its time: each await of clients, tasks and the stop is cancelled once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.session import Ledger, until_cut_off
from tests.broker.support import check_balances, check_nobody_left, connect, numbered, publish
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.engines import ON_LOG
from tests.soak import more_in_soak
from trionsq.broker.broker import Broker
from trionsq.broker.runtime import Clock
from trionsq.core.channel import ChannelState
from trionsq.core.topic import TopicState
from trionsq.disk import DiskFile
from trionsq.storage.folder import Job, JobDefects, JobDone, NextJob
from trionsq.testing.background import submit_as_job, submit_in_turn
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

SEED = 1
DISK_DELAY_S = 0.05


class LateBackground:
    """Does each job some time after it was submitted."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.defects = JobDefects()
        self.writes_directly = True
        self._nursery = nursery
        self._under_way = 0
        self._idle = trio.Event()

    def submit(self, job: Job, done: JobDone) -> None:
        self._under_way += 1
        self._nursery.start_soon(self._run, job, done)

    def submit_series(self, next_job: NextJob) -> None:
        submit_in_turn(self.submit, next_job)

    def submit_write(
        self, file: DiskFile, data: bytes, offset: int, room: int, done: JobDone
    ) -> None:
        submit_as_job(self.submit, file, data, offset, room, done)

    async def _run(self, job: Job, done: JobDone) -> None:
        await trio.sleep(DISK_DELAY_S)
        job()
        await trio.sleep(DISK_DELAY_S)
        done(None)
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()
            self._idle = trio.Event()

    async def wait_idle(self) -> None:
        while self._under_way:
            await self._idle.wait()


def task_named(nursery: trio.Nursery | None, name: str) -> trio.lowlevel.Task:
    """The newest child task whose name begins so."""
    assert nursery is not None
    return [task for task in nursery.child_tasks if task.name.startswith(name)][-1]


async def bodies_after_restart(disk: SimulatedDisk, clock: Clock, *queues: str) -> list[set[bytes]]:
    """What comes out of each queue (``topic:channel``) in the next nsqd; then nothing is open."""
    found: list[set[bytes]] = []
    async with nsqd_in_memory(disk=disk, clock=clock) as broker:
        for queue in queues:
            bodies: set[bytes] = set()
            found.append(bodies)
            topic, _, channel = queue.partition(":")
            consumer = Conversation.begin(broker, capacity_bytes=2**20)
            await consumer.subscribe(topic, channel, ready=100)
            with trio.move_on_after(70):
                while True:
                    message = await consumer.message()
                    bodies.add(message.body)
                    await consumer.say(commands.finish(message.message_id))
    assert (broker.unsaved, disk.open_files) == ([], 0)
    return found


# The stop


@contextmanager
def in_memory(core: TopicState | ChannelState) -> Iterator[set[bytes]]:
    """The bodies that are in memory when the block is left."""
    bodies: set[bytes] = set()
    yield bodies
    segments = list(core.store.memory._segments)
    if isinstance(core, ChannelState):
        segments += [segment for _, segment in core.deferred]
        for consumer in (*core.in_flight.subscriptions, *core.in_flight._disconnected):
            segments += [delivery.extract([id_]) for id_, delivery in consumer.in_flight.items()]
    for one in segments:
        bodies.update(one.batch.bodies.slice(one.first, one.last))


async def fill(broker: Broker) -> None:
    """Messages that wait in memory and on disk, in flight, deferred, and at a topic alone."""
    for channel in ("a", "b"):
        broker.topic("t").channel(channel)
    publish(broker, "u", *numbered(8))
    await trio.sleep(1)
    consumer = Conversation.begin(broker)
    await consumer.subscribe("t", "a", ready=3)
    for body in numbered(12):
        publish(broker, "t", body)
        await wait_all_tasks_blocked()
    first, *_ = await consumer.messages(3)
    await consumer.say(commands.ready(0), commands.requeue(first.message_id, 30_000))
    await trio.sleep(1)
    core = broker.topics["t"].channels["a"].core
    assert (core.in_flight_count, core.deferred_count) == (2, 1)
    assert core.store.memory.depth
    assert core.store.backend.depth


async def cancel_the_stop(cancel_at: CancelAt) -> None:
    """A stop that is cancelled at one await."""
    disk, clock = SimulatedDisk(), Clock.from_trio()
    async with trio.open_nursery() as jobs:
        with trio.CancelScope() as scope:
            async with nsqd_in_memory(
                disk=disk,
                background=LateBackground(jobs),
                clock=clock,
                mem_queue_size=5,
                sync_every=4,
            ) as broker:
                await fill(broker)
                assert broker._tasks is not None
                cancel_at.root = broker._tasks.parent_task
                cancel_at.cancel = scope.cancel
        killed = disk.after_kill()
        check_nobody_left(broker)
        assert broker._tasks is not None
        assert not broker._tasks.child_tasks
        if not cancel_at.has_fired:
            assert (broker.unsaved, disk.open_files) == ([], 0)
        with (
            in_memory(broker.topics["u"].core) as of_u,
            in_memory(broker.topics["t"].channels["a"].core) as of_a,
            in_memory(broker.topics["t"].channels["b"].core) as of_b,
        ):
            pass
        jobs.cancel_scope.cancel()
    if not cancel_at.has_fired:
        assert not of_u | of_a | of_b
    u, a, b = await bodies_after_restart(killed, clock, "u:new", "t:a", "t:b")
    assert set(numbered(8)) - of_u <= u <= set(numbered(8))
    for found, unsaved in ((a, of_a), (b, of_b)):
        assert set(numbered(12)) - unsaved <= found <= set(numbered(12))


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_stop_cancelled_at_any_await(when: When) -> None:
    """No task is left, and a restart finds all that had left memory; a whole stop saves all."""
    sweep_awaits(cancel_the_stop, when, seed=SEED, least=15)


# Clients and tasks


async def session(broker: Broker, talk: Conversation, ledger: Ledger) -> None:
    """Publish to a disk that makes publishers wait, and consume; stops where it is cut off."""
    with until_cut_off():
        await talk.subscribe("t", "c")
        for number in range(4):
            bodies = [b"%d.%d" % (number, place) for place in range(3)]
            ledger.sent.update(bodies)
            await talk.say(commands.publish_many("t", bodies))
            await talk.response()
            ledger.acknowledged.update(bodies)
        await talk.say(commands.ready(5))
        first, second, *rest = await talk.messages(5)
        await talk.say(commands.ready(2), commands.requeue(first.message_id, 300))
        await talk.say(commands.requeue(second.message_id, 0))
        for message in rest:
            ledger.finished.add(message.body)
            await talk.say(commands.finish(message.message_id))
        await trio.sleep(1)
        talk.close()


async def end_amid_a_session(cancel_at: CancelAt, task: str, how: str) -> None:
    """A session in which something ends at one await of some task."""
    disk, clock, ledger = SimulatedDisk(), Clock.from_trio(), Ledger()
    async with trio.open_nursery() as jobs:
        with trio.CancelScope() as scope:
            async with nsqd_in_memory(
                disk=disk,
                background=LateBackground(jobs),
                clock=clock,
                mem_queue_size=0 if task == "client" else 2,
                sync_every=1,
            ) as broker:
                topic = broker.topic("t")
                topic.channel("c")
                await trio.sleep(1)
                talk, client, transport = connect(broker, 4096)
                await wait_all_tasks_blocked()
                nursery = broker._connections if task == "client" else broker._tasks
                cancel_at.root = task_named(nursery, task)

                def delete() -> None:
                    if broker.topics.get("t") is topic:
                        if how == "delete topic":
                            broker.delete_topic("t")
                        else:
                            topic.delete_channel("c")

                cancel_at.cancel = {
                    "close": client.close,
                    "stop": broker.stop,
                    "cancel": scope.cancel,
                }.get(how, delete)
                with trio.fail_after(60):
                    await session(broker, talk, ledger)
                await trio.lowlevel.checkpoint()
                check_balances(broker)
        killed = disk.after_kill()
        check_nobody_left(broker)
        assert broker._tasks is not None
        assert not broker._tasks.child_tasks
        assert transport.is_closed
        assert broker.client_failures == 0
        if not scope.cancelled_caught:
            assert (broker.unsaved, disk.open_files) == ([], 0)
        jobs.cancel_scope.cancel()
    if how != "cancel":
        [found] = await bodies_after_restart(killed, clock, "t:c")
        assert found <= ledger.sent
        if not how.startswith("delete"):
            assert ledger.acknowledged <= found | ledger.finished


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
@pytest.mark.parametrize(
    ("task", "how", "steps_min"),
    [
        ("client", "close", 20),
        ("topic t", "stop", 4),
        ("topic t", "delete topic", 4),
        # A log reads in jobs: the channel's task just waits.
        ("channel t:c", "stop", 1 if ON_LOG else 4),
        ("channel t:c", "delete channel", 1 if ON_LOG else 4),
        ("metadata", "stop", 1),
        ("message id reserve", "cancel", 1),
        ("disk syncs", "stop", 1),
        ("disk retries", "stop", 1),
        ("queue scan", "cancel", 5),
    ],
)
def test_anything_ended_at_any_await(task: str, how: str, steps_min: int, when: When) -> None:
    """Counters balance, no task or file is left, and what was acknowledged is found again."""
    sweep_awaits(partial(end_amid_a_session, task=task, how=how), when, seed=SEED, least=steps_min)
