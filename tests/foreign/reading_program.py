"""Prints what a client, unmodified, gets of a channel: ``client host:port topic channel``.

As a JSON list of id, body and attempts in the order in which they come, when the body ``last`` is
among them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

LAST = "last"
MAX_IN_FLIGHT = 100


class Receipts:
    """The messages that have come."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, int]] = []

    def note(self, message: Any) -> bool:
        """Note a message; whether it is the last one."""
        id_ = getattr(message, "id", None) or message.message_id
        id_ = id_ if isinstance(id_, str) else bytes(id_).decode()
        body = bytes(message.body).decode()
        self.all.append((id_, body, int(message.attempts)))
        return body == LAST


def with_pynsq(address: str, topic: str, channel: str) -> Receipts:
    """Handlers are called in the order of the messages."""
    import nsq  # type: ignore[import-untyped]

    from tests.foreign.pynsq_program import close_after_the_last_finish

    receipts = Receipts()

    async def read() -> None:
        done = asyncio.Event()

        def handle(message: Any) -> bool:
            if receipts.note(message):
                done.set()
            return True

        reader = nsq.Reader(
            topic=topic,
            channel=channel,
            message_handler=handle,
            nsqd_tcp_addresses=[address],
            max_in_flight=MAX_IN_FLIGHT,
        )
        await done.wait()
        await close_after_the_last_finish(reader)

    asyncio.run(read())
    return receipts


def with_gnsq(address: str, topic: str, channel: str) -> Receipts:
    """Without a pool, messages are handled one after the other."""
    import gnsq  # type: ignore[import-untyped]
    from gevent.event import Event  # type: ignore[import-untyped]

    from tests.foreign.gnsq_program import close_after_the_last_finish

    receipts, done = Receipts(), Event()

    def handle(_consumer: Any, message: Any) -> None:
        if receipts.note(message):
            done.set()

    consumer = gnsq.Consumer(
        topic,
        channel,
        nsqd_tcp_addresses=[address],
        message_handler=handle,
        max_in_flight=MAX_IN_FLIGHT,
    )
    consumer.start(block=False)
    done.wait()
    close_after_the_last_finish(consumer)
    return receipts


def with_ansq(address: str, topic: str, channel: str) -> Receipts:
    """A connection, and an iterator over its messages."""
    import ansq

    receipts = Receipts()

    async def read() -> None:
        host, _, port = address.rpartition(":")
        reader = await ansq.open_connection(host, int(port))
        await reader.subscribe(topic, channel, MAX_IN_FLIGHT)
        async for message in reader.messages():
            is_last = receipts.note(message)
            await message.fin()
            if is_last:
                break
        await reader.execute(b"CLS")  # answered once every FIN before it was read
        await reader.close()

    asyncio.run(read())
    return receipts


def with_asyncnsq(address: str, topic: str, channel: str) -> Receipts:
    """A reader, and an iterator over its messages."""
    import asyncnsq  # type: ignore[import-untyped]

    receipts = Receipts()

    async def read() -> None:
        reader = await asyncnsq.create_reader([address], max_in_flight=MAX_IN_FLIGHT)
        await reader.subscribe(topic, channel)
        async for message in reader.messages():
            is_last = receipts.note(message)
            await message.fin()
            if is_last:
                break
        (connection,) = reader._connections.values()
        await connection.execute(b"CLS")
        reader.close()

    asyncio.run(read())
    return receipts


READING: dict[str, Callable[[str, str, str], Receipts]] = {
    "pynsq": with_pynsq,
    "gnsq": with_gnsq,
    "ansq": with_ansq,
    "asyncnsq": with_asyncnsq,
}

if __name__ == "__main__":
    json.dump(READING[sys.argv[1]](*sys.argv[2:]).all, sys.stdout)
