"""Prints the messages of a channel that pynsq, unmodified, gets: ``host:port topic channel count``.

As a JSON list of id, body and attempts, when there are so many.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import nsq  # type: ignore[import-untyped]

from tests.foreign.pynsq_program import close_after_the_last_finish


async def main(address: str, topic: str, channel: str, number: str) -> None:
    """Consume so many messages."""
    count = int(number)
    found: list[tuple[str, str, int]] = []
    all_there = asyncio.Event()

    def handle(message: Any) -> bool:
        found.append((message.id.decode(), message.body.decode(), message.attempts))
        if len(found) == count:
            all_there.set()
        return True

    reader = nsq.Reader(
        topic=topic,
        channel=channel,
        message_handler=handle,
        nsqd_tcp_addresses=[address],
        max_in_flight=100,
    )
    await all_there.wait()
    await close_after_the_last_finish(reader)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
