"""Shared by the source's tests: nsqd's HTTP API, and a wait with a limit."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

# nsqd takes 5 MiB at a time.
PART = 1000
PART_NBYTES = 4 << 20


def publish(http_address: str, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish by /mpub, in binary form."""
    step = max(1, min(PART, PART_NBYTES // max(map(len, bodies))))
    for first in range(0, len(bodies), step):
        part = bodies[first : first + step]
        data = b"".join(
            [len(part).to_bytes(4, "big"), *(len(b).to_bytes(4, "big") + b for b in part)]
        )
        url = f"http://{http_address}/mpub?topic={topic}&binary=true"
        with urllib.request.urlopen(url, data, timeout=60) as answer:
            assert answer.read() == b"OK"


def channel_at_rest(http_address: str, topic: str, channel: str) -> dict[str, Any]:
    """What /stats says of a channel, once it has no client and the topic has handed all over.

    A client that has ended stays connected until nsqd has read the end of its connection.
    """
    url = f"http://{http_address}/stats?format=json&topic={topic}&channel={channel}"
    stats: dict[str, Any] = {}

    def is_at_rest() -> bool:
        with urllib.request.urlopen(url, timeout=60) as answer:
            (of_topic,) = json.load(answer)["topics"]
        stats.update(of_topic["channels"][0])
        return not of_topic["depth"] and not stats["client_count"]

    wait_until(is_at_rest)
    return stats


def wait_until(condition: Callable[[], bool], limit_s: float = 180.0) -> None:
    """Wait for a condition. AssertionError after the limit."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)
