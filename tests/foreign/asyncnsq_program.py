"""Publishes and consumes with asyncnsq, unmodified: ``host:port topic count``."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import asyncnsq  # type: ignore[import-untyped]

from tests.foreign.accounting import Order, await_start, give_account, read_order

UNDER_WAY_MAX = 200
MAX_IN_FLIGHT = 500


async def main(order: Order) -> None:
    """Publish everything while a reader consumes it, then give the account."""
    address = f"{order.host}:{order.port}"
    options: dict[str, Any] = {"tls_v1": bool(order.ca)}  # whom it trusts can't be said
    if order.compression:
        options[order.compression] = True
    if order.secret:
        options["auth_secret"] = order.secret
    writer = await asyncnsq.create_writer(order.host, order.port, **options)
    reader = await asyncnsq.create_reader([address], max_in_flight=MAX_IN_FLIGHT, **options)
    await reader.subscribe(order.topic, "asyncnsq")
    received: Counter[bytes] = Counter()
    await asyncio.to_thread(await_start)
    publishing = asyncio.create_task(publish_all(order, writer))
    async for message in reader.messages():
        received[message.body] += 1
        await message.fin()
        if len(received) == order.count:
            break
    await publishing
    (connection,) = reader._connections.values()
    await connection.execute(b"CLS")  # answered once every FIN before it was read
    reader.close()
    writer.close()
    give_account(order, received)


async def publish_all(order: Order, writer: Any) -> None:
    """Publish with a bounded number of commands under way; raises what nsqd refused."""
    singles = order.singles
    for first in range(0, len(singles), UNDER_WAY_MAX):
        under_way = [writer.pub(order.topic, body) for body in singles[first:][:UNDER_WAY_MAX]]
        for answer in await asyncio.gather(*under_way):
            check_answer(answer)
    for batch in order.batches:
        check_answer(await writer.mpub(order.topic, *batch))


def check_answer(answer: object) -> None:
    """Raises RuntimeError unless nsqd said OK."""
    if answer != b"OK":
        raise RuntimeError(f"refused: {answer!r}")


if __name__ == "__main__":
    asyncio.run(main(read_order(sys.argv[1:])))
