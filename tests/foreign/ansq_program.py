"""Publishes and consumes with ansq, unmodified: ``host:port topic count``."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import ansq
from ansq.tcp.connection import NSQConnection
from ansq.tcp.types import ConnectionFeatures, ConnectionOptions, NSQResponseSchema
from ansq.tcp.writer import Writer

from tests.foreign.accounting import Order, await_start, give_account, read_order

UNDER_WAY_MAX = 200
MAX_IN_FLIGHT = 500


async def main(order: Order) -> None:
    """Publish everything while a reader consumes it, then give the account."""
    writer, reader = await open_both(order)
    await reader.subscribe(order.topic, "ansq", MAX_IN_FLIGHT)
    received: Counter[bytes] = Counter()
    await asyncio.to_thread(await_start)
    publishing = asyncio.create_task(publish_all(order, writer))
    async for message in reader.messages():
        received[message.body] += 1
        await message.fin()
        if len(received) == order.count:
            break
    await publishing
    await reader.execute(b"CLS")  # answered once every FIN before it was read
    while late := reader.get_message():
        received[late.body] += 1
    await reader.close()
    await writer.close()
    give_account(order, received)


async def open_both(order: Order) -> tuple[Writer | NSQConnection, NSQConnection]:
    """A writer, which knows nothing of AUTH: with a secret it is a connection too; and a reader."""
    features = ConnectionFeatures(
        tls_v1=bool(order.ca),
        snappy=order.compression == "snappy",
        deflate=order.compression == "deflate",
    )
    options = ConnectionOptions(features=features)

    async def connect() -> NSQConnection:
        connection = await ansq.open_connection(order.host, order.port, connection_options=options)
        if order.secret:
            await connection.auth(order.secret)
        return connection

    if order.secret:
        return await connect(), await connect()
    address = f"{order.host}:{order.port}"
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address], connection_options=options)
    return writer, await connect()


async def publish_all(order: Order, writer: Writer | NSQConnection) -> None:
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
    if not isinstance(answer, NSQResponseSchema) or not answer.is_ok:
        raise RuntimeError(f"refused: {answer!r}")


if __name__ == "__main__":
    asyncio.run(main(read_order(sys.argv[1:])))
