"""A program on asyncio or uvloop that handles messages until Ctrl-C: ``address topic loop``."""

from __future__ import annotations

import asyncio
import sys

from trionsq.client import Config, Consumer, Message


async def main(address: str, topic: str) -> None:
    """Hold ten messages, and print that it does."""

    async def hold(message: Message) -> None:
        holding.append(message)
        if len(holding) == 10:
            print("holds", flush=True)
        await asyncio.sleep(3600)

    holding: list[Message] = []
    config = Config(max_in_flight=20)
    async with Consumer(topic, "c", nsqd_tcp_addresses=[address], config=config) as consumer:
        await consumer.run(hold, concurrency=10)


if __name__ == "__main__":
    _, address, topic, loop = sys.argv
    if loop == "uvloop":
        import uvloop

        uvloop.run(main(address, topic))
    else:
        asyncio.run(main(address, topic))
