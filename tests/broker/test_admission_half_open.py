"""Clients that connect and then say nothing, or half of something: bounded, and in nobody's way.

The same for HTTP is in tests/http/test_slow_peers.py.
"""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tests.broker.support import check_balances, finish
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryStream, memory_connection
from trionsq.wire import commands
from trionsq.wire.states import MAGIC_V2

COUNT = 200
# Without IDENTIFY the heartbeat interval is 30 s, and two of them without a command are the end.
LIMIT_S = 60.0
# A client is looked at eight times in each interval.
LATE_S = 5.0

# The last byte of each never comes.
HALVES = (
    b"",
    MAGIC_V2[:3],
    MAGIC_V2,
    MAGIC_V2 + b"PUB t",
    MAGIC_V2 + b"PUB t\n\0\0\0\4xxx",
    MAGIC_V2 + b"IDENTIFY\n\0\0\0\2{",
    MAGIC_V2 + b"MPUB t\n\0\0\0\x11\0\0\0\2\0\0\0\1x\0\0\0",
)


async def trickle(stream: MemoryStream, data: bytes) -> None:
    """Send byte by byte, slowly, as long as the broker takes it."""
    for place in range(len(data)):
        try:
            stream.send_nowait(data[place : place + 1])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        await trio.sleep(7)


async def test_half_open_connections_go_while_others_are_served(
    autojump_clock: MockClock,
) -> None:
    """200 that never finish their first command, some of them dripping bytes, are gone in time.

    A publisher and a consumer beside them miss nothing, and no topic, channel or message of the
    200 is left.
    """
    async with nsqd_in_memory(mem_queue_size=10_000) as broker, trio.open_nursery() as nursery:
        for number in range(COUNT):
            stream, transport = memory_connection()
            broker.accept(transport)
            half = HALVES[number % len(HALVES)]
            if number % 2:
                nursery.start_soon(trickle, stream, half)
            elif half:
                stream.send_nowait(half)
        publisher, consumer = Conversation.begin(broker), Conversation.begin(broker)
        await consumer.subscribe("other", "c", ready=1)
        start_s = trio.current_time()
        assert len(broker.clients) == COUNT + 2
        while trio.current_time() < start_s + LIMIT_S + LATE_S:
            await publisher.say(commands.publish("other", b"x"))
            await publisher.response()
            await finish(consumer, await consumer.message())
            await trio.sleep(1)
            if trio.current_time() < start_s + LIMIT_S - LATE_S:
                assert len(broker.clients) == COUNT + 2
        assert len(broker.clients) == 2
        assert broker.admission.connections == 2
        channel = broker.topics["other"].channels["c"].core
        assert channel.message_count == channel.finish_count >= 60
        # The half MPUB and PUB made no message; whether they made their topic is nsqd's own way.
        assert all(topic.core.message_count == 0 for name, topic in broker.topics.items()
                   if name != "other")  # fmt: skip
        check_balances(broker)
        nursery.cancel_scope.cancel()
