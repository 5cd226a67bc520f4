"""ansq, by its stream of messages."""

from __future__ import annotations

import asyncio

import ansq

from benchmarks.clients.tally import LINGER_S, MAX_IN_FLIGHT, Order, Tally, read_order


async def main(order: Order) -> None:
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


if __name__ == "__main__":
    asyncio.run(main(read_order()))
