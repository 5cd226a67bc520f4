"""Each await of a lookup task is cancelled once: nothing is left, and a new one does its work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.lookupds import Lookupd, cluster
from tests.cancellation import CancelAt, When, sweep_awaits
from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.wire import commands

LISTED = ("a:4160",)


async def live(broker: Broker, lookupd: Lookupd) -> None:
    """Everything that a lookup task does, and a topic that is made with its help."""
    if broker.exiting:
        return
    lookupd.channels = ["c"]
    talk = Conversation.begin(broker)
    try:
        await talk.say(commands.publish("t", b"x"))
        await talk.response()
    except (UnexpectedFrame, trio.BrokenResourceError):
        return  # the broker was stopped
    await trio.sleep(16)
    lookupd.drop()
    await trio.sleep(16)
    broker.delete_topic("t")
    await trio.sleep(16)


async def remove_the_lookupd(cancel_at: CancelAt) -> None:
    """The address is taken from the list at one await, and put there again."""
    async with cluster("a", topics=["s"]) as (broker, [lookupd]):
        broker.live_options.change_lookupds(())
        await wait_all_tasks_blocked()
        assert broker.lookups._nursery is not None
        cancel_at.root = broker.lookups._nursery.parent_task
        cancel_at.cancel = lambda: broker.live_options.change_lookupds(())
        broker.live_options.change_lookupds(LISTED)
        await live(broker, lookupd)
        assert len(broker.lookups.peers) == (not cancel_at.has_fired)
        assert lookupd.open_connections == (not cancel_at.has_fired)
        cancel_at.root = None
        broker.live_options.change_lookupds(())
        await wait_all_tasks_blocked()
        lookupd.take_seen()
        broker.live_options.change_lookupds(LISTED)
        await wait_all_tasks_blocked()
        assert lookupd.take_seen() == ["(magic)", "IDENTIFY", "REGISTER s"]
        assert lookupd.open_connections == 1


async def stop_the_broker(cancel_at: CancelAt) -> None:
    """The broker is stopped at one await of it, or of a topic that is being made."""
    async with cluster("a", topics=["s"]) as (broker, [lookupd]):
        assert broker._tasks is not None
        cancel_at.root = broker._tasks.parent_task
        cancel_at.cancel = broker.stop
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live, broker, lookupd)
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        cancel_at.root = None
    assert lookupd.open_connections == 0
    assert not broker._tasks.child_tasks
    assert not broker.unsaved


@pytest.mark.parametrize("how", [remove_the_lookupd, stop_the_broker])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_lookup_task_that_ends_at_any_await(
    how: Callable[[CancelAt], Awaitable[None]], when: When
) -> None:
    """Its connection is closed, no task is left, and the next one begins anew."""
    sweep_awaits(how, when)
