"""Prints the bodies that pynsq, unmodified, gets of a cluster: ``lookupd topic channel count``.

As a JSON list, when there are so many different ones.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import nsq  # type: ignore[import-untyped]


async def main(lookupd: str, topic: str, channel: str, number: str) -> None:
    """Consume so many messages."""
    count = int(number)
    found: set[str] = set()
    all_there = asyncio.Event()

    def handle(message: Any) -> bool:
        found.add(message.body.decode())
        if len(found) == count:
            all_there.set()
        return True

    reader = nsq.Reader(
        topic=topic,
        channel=channel,
        message_handler=handle,
        lookupd_http_addresses=[lookupd],
        lookupd_poll_interval=1,
        max_in_flight=50,
    )
    await all_there.wait()
    while any(connection.in_flight for connection in reader.conns.values()):  # noqa: ASYNC110 no event
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # until the last FIN has left
    reader.close()
    json.dump(sorted(found), sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
