"""pynsq, by a handler, and its writer."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq  # type: ignore[import-untyped]

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


async def publish(order: Order) -> None:
    """100 publishes are under way: the callback of each begins the next one."""
    work = Publishes(order)
    writer = nsq.Writer([order.address])
    while not any(conn.connected() for conn in writer.conns.values()):  # noqa: ASYNC110 no event
        await asyncio.sleep(0.01)

    def publish_one() -> None:
        if work.begin():
            writer.pub(order.topic, BODY, callback=proceed)

    def proceed(_connection: Any, answer: Any) -> None:
        if answer != b"OK":
            raise RuntimeError(f"refused: {answer!r}")
        work.confirm()
        publish_one()

    for _ in range(UNDER_WAY):
        publish_one()
    await asyncio.sleep(LINGER_S)


if __name__ == "__main__":
    asyncio.run((publish if is_publisher() else consume)(read_order()))
