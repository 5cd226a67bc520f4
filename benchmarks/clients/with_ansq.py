"""ansq, by its stream of messages, and its writer."""

from __future__ import annotations

import asyncio

import ansq

from benchmarks.clients.tally import (
    BODY,
    LINGER_S,
    MAX_IN_FLIGHT,
    UNDER_WAY,
    Order,
    Publishes,
    Tally,
    is_publisher,
    read_order,
)


async def consume(order: Order) -> None:
    """Finish each message."""
    tally, count, nbytes = Tally(order), 0, 0
    mark = tally.mark
    connection = await ansq.open_connection(order.host, order.port)
    await connection.subscribe(order.topic, order.channel, MAX_IN_FLIGHT)
    async for message in connection.messages():
        count += 1
        nbytes += len(message.body)
        await message.fin()
        if count >= mark:
            mark = tally.reached(count, nbytes)
            if count == order.messages:
                await asyncio.sleep(LINGER_S)


async def publish(order: Order) -> None:
    """Each of 100 tasks waits for nsqd's OK."""
    work = Publishes(order)
    writer = await ansq.create_writer(nsqd_tcp_addresses=[order.address])

    async def publish_some() -> None:
        while work.begin():
            await writer.pub(order.topic, BODY)
            work.confirm()

    await asyncio.gather(*(publish_some() for _ in range(UNDER_WAY)))
    await asyncio.sleep(LINGER_S)


if __name__ == "__main__":
    asyncio.run((publish if is_publisher() else consume)(read_order()))
