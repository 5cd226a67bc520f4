"""Our own client, message by message."""

from __future__ import annotations

import anyio

from benchmarks.clients.tally import LINGER_S, MAX_IN_FLIGHT, Order, Tally, run_in_world
from trionsq.client import Config, Consumer


async def main(order: Order) -> None:
    """Finish each message by itself."""
    tally, count, nbytes = Tally(order), 0, 0
    mark = tally.mark
    config = Config(max_in_flight=MAX_IN_FLIGHT)
    where = [order.address]
    async with Consumer(
        order.topic, order.channel, nsqd_tcp_addresses=where, config=config
    ) as consumer:
        with anyio.move_on_after(LINGER_S) as scope:
            async for message in consumer:
                count += 1
                nbytes += len(message.body)
                message.finish()
                if count >= mark:
                    scope.deadline = anyio.current_time() + LINGER_S
                    mark = tally.reached(count, nbytes)


if __name__ == "__main__":
    run_in_world(main)
