"""pynsq, by a handler."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq  # type: ignore[import-untyped]

from benchmarks.clients.tally import LINGER_S, MAX_IN_FLIGHT, Order, Tally, read_order


async def main(order: Order) -> None:
    """Finish each message by what the handler returns."""
    tally = Tally(order)
    mark, count, nbytes = tally.mark, 0, 0

    def handle(message: Any) -> bool:
        nonlocal mark, count, nbytes
        count += 1
        nbytes += len(message.body)
        if count >= mark:
            mark = tally.reached(count, nbytes)
        return True

    reader = nsq.Reader(
        topic=order.topic,
        channel=order.channel,
        message_handler=handle,
        nsqd_tcp_addresses=[order.address],
        max_in_flight=MAX_IN_FLIGHT,
    )
    await asyncio.sleep(LINGER_S)
    reader.close()


if __name__ == "__main__":
    asyncio.run(main(read_order()))
