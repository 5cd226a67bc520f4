"""Our own client publishes, from 100 tasks."""

from __future__ import annotations

import anyio

from benchmarks.clients.tally import BODY, LINGER_S, UNDER_WAY, Order, Publishes, run_in_world
from trionsq.client import Producer


async def main(order: Order) -> None:
    """Each task waits for nsqd's OK."""
    work = Publishes(order)

    async def publish() -> None:
        while work.begin():
            await producer.publish(order.topic, BODY)
            work.confirm()

    async with Producer(order.address) as producer:
        async with anyio.create_task_group() as tasks:
            for _ in range(UNDER_WAY):
                tasks.start_soon(publish)
        await anyio.sleep(LINGER_S)


if __name__ == "__main__":
    run_in_world(main)
