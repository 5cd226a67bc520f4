"""Messages that a client's own commands give credit for: they go out with the answers."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, check_nobody_left, connect, numbered, publish
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands


async def test_credit_is_served_with_the_answer_in_one_write(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """FIN with a backlog behind it: the next message leaves in the same turn, not by the pump."""
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
        consumer, client, transport = connect(broker)
        await consumer.subscribe("t", "c", ready=1)
        first = await consumer.message()
        await wait_all_tasks_blocked()
        written: list[int] = []
        send = transport.send_nowait

        def counted(data: bytes | memoryview) -> int:
            written.append(len(data))
            return send(data)

        monkeypatch.setattr(transport, "send_nowait", counted)
        client.output.switch_transport(transport)
        await consumer.say(commands.finish(first.message_id) + commands.publish("other", b"x"))
        await consumer.response()
        await consumer.message()
        assert len(written) == 1
        check_balances(broker)


async def test_what_was_due_in_a_turn_that_fails_goes_back(autojump_clock: MockClock) -> None:
    """RDY and a fatal error in one read: no message was written, attempts are unchanged."""
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
        consumer, _, _ = connect(broker)
        await consumer.subscribe("t", "c")
        await consumer.say(commands.ready(10) + b"NONSENSE\n")
        assert "E_INVALID invalid command NONSENSE" in await consumer.error()
        consumer.close()
        await wait_all_tasks_blocked()
        channel = broker.topics["t"].channels["c"]
        assert (channel.core.depth, channel.core.in_flight_count) == (3, 0)
        check_balances(broker)
        other, _, _ = connect(broker)
        await other.subscribe("t", "c", ready=10)
        assert [(m.body, m.attempts) for m in await other.messages(3)] == [
            (body, 1) for body in numbered(3)
        ]
        other.close()
    check_nobody_left(broker)


async def test_answers_go_out_before_a_line_that_ends_the_connection(
    autojump_clock: MockClock,
) -> None:
    """What was accepted before a line that is too long is answered, though the line is not."""
    async with nsqd_in_memory() as broker:
        client, _, _ = connect(broker)
        await client.say(commands.publish("t", b"x") + b"A" * 20_000)
        await client.response()
        assert await client.end() == []
        assert broker.topics["t"].core.message_count == 1
