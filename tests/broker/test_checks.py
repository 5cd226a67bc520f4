"""What queues count is checked while nsqd runs, and a find costs nothing but a line in the log."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from tests.broker.support import connect, finish, numbered, publish
from trionsq.broker.checks import _MAX_CHECKS
from trionsq.core.queue import Store
from trionsq.testing.memory import nsqd_in_memory


async def test_all_adds_up_after_some_life(autojump_clock: MockClock) -> None:
    """Publishing, delivery, FIN, time-outs, delays, overflow to disk, restarts of consumers."""
    async with nsqd_in_memory(mem_queue_size=5, msg_timeout_ns=10**9) as broker:
        for _ in range(3):
            consumer, _, _ = connect(broker)
            await consumer.subscribe("t", "c", ready=7)
            for body in numbered(20):
                publish(broker, "t", body)
            publish(broker, "t", b"later", defer_ms=700)
            await finish(consumer, *(await consumer.messages(5)))
            await trio.sleep(11)
            consumer.close()
        assert broker.checks.checks_count >= 6
        assert (broker.checks.broken, broker.defects.counts["check"]) == ({}, 0)


@pytest.mark.parametrize("what", ["topic", "channel", "memory", "disk"])
async def test_what_does_not_add_up_is_told_once(
    what: str,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each queue, in the log and on the debug page; nsqd goes on."""
    async with nsqd_in_memory() as broker:
        topic = broker.topic("t")
        channel = topic.channel("c")
        publish(broker, "t", b"1", b"2")
        await trio.sleep(1)
        if what == "topic":
            topic.core.message_count += 1
        elif what == "channel":
            channel.core.finish_count += 1
        elif what == "memory":
            monkeypatch.setattr(Store, "check", lambda self: "negative depth")
        else:
            monkeypatch.setattr(
                type(channel.core.store.backend), "check", lambda self: "read past its end"
            )
        with caplog.at_level(logging.ERROR):
            await trio.sleep(60)
        lines = [line for line in caplog.messages if "do not add up" in line]
        assert len(lines) == len(broker.checks.broken) == broker.checks.broken_count >= 1
        assert ("t" if what == "topic" else "t:c") in broker.checks.broken
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c", ready=5)
        assert len(await consumer.messages(2)) == 2
        # It is put right again, so that the end of the test finds nothing.
        if what == "topic":
            topic.core.message_count -= 1


async def test_a_check_that_fails_itself_costs_that_check(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted, and the next one is made in its time."""
    async with nsqd_in_memory() as broker:
        broker.topic("t")
        monkeypatch.setattr(type(broker.topics["t"]), "check", lambda self: 1 / 0)
        await trio.sleep(35)
        assert broker.defects.counts["check"] == 3


@pytest.mark.parametrize("what", ["topics", "channels", "clients"])
async def test_checks_are_made_in_turns(what: str, autojump_clock: MockClock) -> None:
    """A turn ends after some checks, whatever is checked."""
    async with nsqd_in_memory() as broker:
        for number in range(250):
            if what == "topics":
                topic = broker.topic(f"t{number}")
                if not number:
                    topic.channel("c")
            elif what == "channels":
                broker.topic("t").channel(f"c{number}")
            else:
                connect(broker)
        checks, counts = broker.checks, [broker.checks.checks_count]
        counts.extend(checks.checks_count for _ in checks._steps())
        counts.append(checks.checks_count)
        assert counts[-1] - counts[0] >= 250
        assert max(after - before for before, after in pairwise(counts)) <= 2 * _MAX_CHECKS
        for client in list(broker.clients):
            client.close()


async def test_what_a_client_is_sent_is_checked(autojump_clock: MockClock) -> None:
    """Bytes that are pending nowhere, or that are held and not counted, are found."""
    async with nsqd_in_memory() as broker:
        _, _, _ = connect(broker)
        await trio.sleep(1)
        [client] = broker.clients
        assert client.output.check() is None
        client.output.pending = 5
        await trio.sleep(11)
        assert list(broker.checks.broken) == [f"client({client.peer})"]
        client.output.pending = 0
