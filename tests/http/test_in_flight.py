"""/channel/finish and /channel/requeue: one message in flight, by an operator."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.broker.support import check_balances, consume, numbered, publish
from trionsq.http.app import create_app
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

ENGINES = pytest.mark.parametrize("storage", ["default", "log"])


@ENGINES
@pytest.mark.parametrize("verb", ["finish", "requeue"])
async def test_a_message_in_flight_is_finished_or_returns(
    storage: str, verb: str, autojump_clock: MockClock
) -> None:
    """It leaves its client, whose FIN fails then; the others stay there."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        channel = broker.topic("t").channel("c")
        publish(broker, "t", *numbered(3))
        consumer, messages = await consume(broker, "t", "c", 3)
        id_ = messages[1].message_id
        client = app.test_client()
        path = f"/channel/{verb}?topic=t&channel=c&id={id_.decode()}"
        answer = await client.post(path)
        assert answer.status_code == 200
        if verb == "finish":
            assert channel.core.in_flight_count == 2
            assert (channel.core.finish_count, channel.core.requeue_count) == (1, 0)
            again = await client.post(path)
            assert again.status_code == 404
            assert await again.get_json() == {"message": "MESSAGE_NOT_IN_FLIGHT"}
            await consumer.say(commands.finish(id_))
            assert "E_FIN_FAILED" in await consumer.error()
        else:
            # Its client is ready for it, so it comes again.
            (again_there,) = await consumer.messages(1)
            assert (again_there.message_id, again_there.attempts) == (id_, 2)
            assert channel.core.requeue_count == 1
        check_balances(broker)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("topic=t&channel=c&id=1", 400, "INVALID_ARG_ID"),
        ("topic=t&channel=c", 400, "INVALID_ARG_ID"),
        ("topic=t&channel=none&id=0000000000000000", 404, "CHANNEL_NOT_FOUND"),
        ("topic=t&channel=c&id=0000000000000000", 404, "MESSAGE_NOT_IN_FLIGHT"),
    ],
)
@pytest.mark.parametrize("verb", ["finish", "requeue"])
async def test_refusals(
    verb: str, query: str, status: int, code: str, autojump_clock: MockClock
) -> None:
    """What is not there is said by name."""
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        answer = await create_app(broker).test_client().post(f"/channel/{verb}?{query}")
        assert answer.status_code == status
        assert await answer.get_json() == {"message": code}
