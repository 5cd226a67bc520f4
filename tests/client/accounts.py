"""What sweeps over the client's awaits share: short turns, and what is left after a task."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.network import Network
from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation
from trionsq.wire import commands

__all__ = ["SETTLE_S", "bodies_left", "check_closed", "repeatable_turns", "short_turns"]

SETTLE_S: Final = 8.0
"""Longer than the time-outs and deferrals of messages in these tests."""


def repeatable_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator's turn ends by the test's clock, so that each run has the same steps."""
    clock = SimpleNamespace(perf_counter=trio.current_time)
    monkeypatch.setattr("trionsq.client.message.time", clock)


def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """`repeatable_turns` that are short: a few messages take several."""
    repeatable_turns(monkeypatch)
    monkeypatch.setattr("trionsq.client.connection._MAX_FRAMES_A_TURN", 1)
    monkeypatch.setattr("trionsq.client.connection._READ_BYTES", 100)
    monkeypatch.setattr("trionsq.client.flow._MAX_CONNECTIONS_A_TURN", 1)
    monkeypatch.setattr("trionsq.client.consumer._MAX_A_TURN", 1)


async def check_closed(network: Network, *brokers: Broker) -> None:
    """Neither end of a connection is left."""
    assert all(link.is_closed for link in network.links), network.links
    await wait_all_tasks_blocked()
    assert not any(broker.clients for broker in brokers)


async def bodies_left(
    brokers: Iterable[Broker], topic: str = "t", channel: str = "c"
) -> list[bytes]:
    """The messages that the next consumer gets; each broker's counts must balance afterwards."""
    bodies = []
    for broker in brokers:
        heir = Conversation.begin(broker)
        await heir.subscribe(topic, channel, ready=100)
        with trio.move_on_after(SETTLE_S):
            while True:
                message = await heir.message()
                bodies.append(message.body)
                await heir.say(commands.finish(message.message_id))
        heir.close()
        core = broker.topic(topic).channel(channel).core
        assert core.finish_count == core.message_count == broker.topic(topic).core.message_count
    return bodies
