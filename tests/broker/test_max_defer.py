"""--max-defer-timeout: publishes may wait for longer than requeued messages, or less long."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trionsq.broker.runtime import Clock
from trionsq.durations import HOUR_NS, SECOND_NS
from trionsq.http.app import create_app
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands


@pytest.mark.parametrize("options", [{}, {"storage": "log"}], ids=["default", "log"])
async def test_a_message_may_wait_for_longer_and_over_a_restart(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    """Beyond --max-req-timeout, which the start does not shorten it to."""
    options = {**options, "max_req_timeout_ns": SECOND_NS, "max_defer_timeout_ns": HOUR_NS}
    disk, clock = SimulatedDisk(), Clock.from_trio()
    start_s = trio.current_time()
    async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
        talk = Conversation.begin(broker)
        broker.topic("t").channel("c")
        await talk.say(commands.publish_deferred("t", 30_000, b"x"))
        await talk.response()
        await trio.sleep(1)
    async with nsqd_in_memory(disk=disk, clock=clock, **options) as broker:
        broker.topic("t").channel("c")
        await trio.sleep(20)
        talk = Conversation.begin(broker)
        await talk.subscribe("t", "c", ready=1)
        assert (await talk.message()).body == b"x"
        assert 29 <= trio.current_time() - start_s <= 35


async def test_it_bounds_both_ways_of_publishing() -> None:
    """Without it --max-req-timeout does; REQ follows that one in any case."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({"max_defer_timeout_ns": 5 * SECOND_NS}, 5),
        ({"max_req_timeout_ns": 7 * SECOND_NS}, 7),
        ({"max_req_timeout_ns": 7 * SECOND_NS, "max_defer_timeout_ns": 9 * SECOND_NS}, 9),
    ]
    for options, limit_s in cases:
        async with nsqd_in_memory(**options) as broker:
            client, talk = create_app(broker).test_client(), Conversation.begin(broker)
            for over, status in ((0, 200), (1, 400)):
                target = f"/pub?topic=t&defer={limit_s * 1000 + over}"
                assert (await client.post(target, data=b"x")).status_code == status
            await talk.say(commands.publish_deferred("t", limit_s * 1000, b"x"))
            await talk.response()
            await talk.say(commands.publish_deferred("t", limit_s * 1000 + 1, b"x"))
            text = f"DPUB timeout {limit_s * 1000 + 1} out of range 0-{limit_s * 1000}"
            assert await talk.error() == f"E_INVALID {text}"
