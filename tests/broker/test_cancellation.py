"""Each await of a client's life, and of the broker's, is cancelled once.

Scheduling is made repeatable, so that the k-th await is the same one in each run; each sweep is
done for several seeds of it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.session import (
    MEM_QUEUE_SIZE,
    VICTIM_CAPACITY_NBYTES,
    Session,
)
from tests.broker.support import check_balances, check_nobody_left
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.soak import more_in_soak
from trionsq.broker.broker import Broker
from trionsq.durations import SECOND_NS
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame

SEEDS = (1, 2)
OPTIONS: dict[str, Any] = {"mem_queue_size": MEM_QUEUE_SIZE, "msg_timeout_ns": 3 * SECOND_NS}
# Far beyond every time-out and deferral of the session.
SETTLE_S = 8.0


async def cancel_the_client(cancel_at: CancelAt) -> None:
    """A session whose victim is closed at one await; then nothing is left of it, nor lost."""
    async with nsqd_in_memory(**OPTIONS) as broker, trio.open_nursery() as bystanders:
        session = Session(broker)
        session.prepare()
        for topic in ("t", "u"):
            bystanders.start_soon(session.bystander, topic)
        await wait_all_tasks_blocked()
        assert broker._connections is not None
        others = set(broker._connections.child_tasks)
        talk, client = session.connect(VICTIM_CAPACITY_NBYTES)
        [cancel_at.root] = set(broker._connections.child_tasks) - others
        cancel_at.cancel = client.close
        with trio.fail_after(60):
            await session.victim(talk)
            assert session.is_complete or cancel_at.has_fired
            talk.close()
            await trio.sleep(1.1)
        assert client not in broker.clients
        assert len(broker._connections.child_tasks) == 2
        assert session.transports[-1].is_closed
        check_balances(broker)
        await check_nothing_lost(session)
        bystanders.cancel_scope.cancel()
    assert broker.client_failures == 0


async def check_nothing_lost(session: Session) -> None:
    """What was acknowledged comes to whoever subscribes next, or was finished."""
    ledger = session.ledger
    heir, _ = session.connect()
    await heir.subscribe("t", "victim", ready=100)
    bodies = []
    with trio.move_on_after(SETTLE_S):
        while True:
            message = await heir.frame()
            assert isinstance(message, MessageFrame)
            bodies.append(message.body)
            await heir.say(commands.finish(message.message_id))
    check_balances(session.broker)
    of_t = {body for body in ledger.acknowledged if not body.startswith(b"full")}
    assert of_t <= set(bodies) | ledger.finished
    assert set(bodies) <= ledger.sent
    assert len(bodies) == len(set(bodies))
    assert ledger.acknowledged <= set(ledger.seen) <= ledger.sent
    assert len(ledger.seen) == len(set(ledger.seen))
    for topic in session.broker.topics.values():
        assert topic.core.depth == 0
        for channel in topic.channels.values():
            assert channel.core.finish_count == channel.core.message_count


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_cancelled_at_any_await(seed: int, when: When) -> None:
    """No task is left, counters balance, and nothing that was acknowledged is lost."""
    sweep_awaits(cancel_the_client, when, seed=seed, least=50)


async def cancel_the_broker(cancel_at: CancelAt) -> None:
    """A session whose broker is cancelled, or stopped, at one await."""
    session: Session | None = None
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as clients, nsqd_in_memory(**OPTIONS) as broker:
            session = Session(broker)
            session.prepare()
            cancel_at.root = _task_of(broker)
            cancel_at.cancel = scope.cancel
            for topic in ("t", "u"):
                clients.start_soon(session.bystander, topic)
            talk, _ = session.connect(VICTIM_CAPACITY_NBYTES)
            await session.victim(talk)
            assert session.is_complete or cancel_at.has_fired
            clients.cancel_scope.cancel()
    assert session is not None
    check_ended(session)


async def stop_the_broker(cancel_at: CancelAt) -> None:
    """The same, with the broker told to stop."""
    async with trio.open_nursery() as clients, nsqd_in_memory(**OPTIONS) as broker:
        session = Session(broker)
        session.prepare()
        cancel_at.root = _task_of(broker)
        cancel_at.cancel = broker.stop
        for topic in ("t", "u"):
            clients.start_soon(session.bystander, topic)
        talk, _ = session.connect(VICTIM_CAPACITY_NBYTES)
        with trio.fail_after(60):
            await session.victim(talk)
        assert session.is_complete or cancel_at.has_fired
        clients.cancel_scope.cancel()
    check_ended(session)


def _task_of(broker: Broker) -> trio.lowlevel.Task:
    assert broker._tasks is not None
    return broker._tasks.parent_task


def check_ended(session: Session) -> None:
    """Nothing runs, all connections are closed, and each message is where it was."""
    broker = session.broker
    check_nobody_left(broker)
    check_balances(broker)
    assert broker._tasks is not None
    assert not broker._tasks.child_tasks
    assert broker.client_failures == 0
    assert all(transport.is_closed for transport in session.transports)
    for topic in broker.topics.values():
        for channel in topic.channels.values():
            handed_over = topic.core.message_count - topic.core.depth
            assert channel.core.message_count == handed_over
    published = sum(topic.core.message_count for topic in broker.topics.values())
    assert len(session.ledger.acknowledged) <= published <= len(session.ledger.sent)


@more_in_soak
@pytest.mark.parametrize("how", [cancel_the_broker, stop_the_broker])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_broker_ended_at_any_await(how: Any, when: When) -> None:
    """It takes its clients along, leaves no task, and every message is accounted for."""
    sweep_awaits(how, when, seed=SEEDS[0], least=50)
