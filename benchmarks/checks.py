"""What a server itself must say before or after a load: counts that add up, or no result."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.generator import CONSUMED, TOPIC, MeasureError
from benchmarks.servers import Server

SETTLE_S = 120.0


def _await(what: str, check: Callable[[], str | None]) -> None:
    """Asks until `check` has nothing left to complain of."""
    end = time.monotonic() + SETTLE_S
    while (complaint := check()) is not None:
        if time.monotonic() > end:
            raise MeasureError(f"{what}: {complaint}")
        time.sleep(0.05)


def await_quiet(server: Server) -> None:
    """Waits until work that goes on after the answer (writing metadata, say) is done."""

    def check() -> str | None:
        before = server.cpu_s()
        time.sleep(0.5)
        return "still busy" if server.cpu_s() - before > 0.15 else None

    _await("after creating channels", check)


def await_counts(server: Server, *, published: int, waiting: int) -> None:
    """Waits for the server's own figures: all published, all in the channel, so many left.

    Raises `MeasureError` when they have not come true within 120 s.
    """

    def check() -> str | None:
        topic = server.topic_stats(TOPIC, CONSUMED)
        if topic is None:
            return "the channel is missing"
        channel = topic["channels"][0]
        seen = (topic["message_count"], topic["depth"], channel["message_count"])
        if seen != (published, 0, published):
            return f"topic and channel say {seen}, published were {published}"
        left = (channel["depth"], channel["in_flight_count"])
        return None if left == (waiting, 0) else f"waiting and in flight: {left}, not {waiting}, 0"

    _await("after the load", check)


def await_topic(server: Server, published: int) -> None:
    """Waits until a topic without channel holds all that was published.

    Raises `MeasureError` when it does not within 120 s.
    """

    def check() -> str | None:
        topic = server.topic_stats(TOPIC)
        if topic is None:
            return "the topic is missing"
        seen = (topic["message_count"], topic["depth"])
        return None if seen == (published, published) else f"{seen}, published were {published}"

    _await("count and depth of the topic", check)


def await_depth(server: Server, channel: str, waiting: int) -> None:
    """Waits until a channel holds so many messages, in flight or not.

    Raises `MeasureError` when it does not within 120 s.
    """

    def check() -> str | None:
        topic = server.topic_stats(TOPIC, channel)
        if topic is None:
            return "it is missing"
        stats = topic["channels"][0]
        seen = stats["depth"] + stats["in_flight_count"]
        return None if seen == waiting else f"it holds {seen} messages, not {waiting}"

    _await(f"channel {channel}", check)


def check_on_disk(server: Server, channel: str | None, least: int) -> None:
    """The server says that at least so many messages of a channel (None: the topic) are on disk.

    Raises `MeasureError` when they are not: the row would measure memory.
    """
    topic = server.topic_stats(TOPIC, channel)
    queue = topic["channels"][0] if topic and channel else topic
    on_disk = queue["backend_depth"] if queue else 0
    if on_disk < least:
        raise MeasureError(f"of {least} messages that should be on disk {on_disk} are")
