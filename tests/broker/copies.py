"""What the tests share that bring disk queues into a log."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trio.testing import wait_all_tasks_blocked

from tests.broker.support import finish
from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk

__all__ = ["Images", "drained", "record"]


async def drained(broker: Broker, channel: str, topic: str = "t") -> Counter[bytes]:
    """The bodies that a channel gives until it has none left, each with how often it came."""
    core = broker.topics[topic].channel(channel).core
    consumer = Conversation.begin(broker, capacity_bytes=2**20)
    await consumer.subscribe(topic, channel, ready=100)
    bodies: Counter[bytes] = Counter()
    await wait_all_tasks_blocked()
    while core.depth or core.in_flight_count or core.deferred_count:
        message = await consumer.message()
        bodies[message.body] += 1
        await finish(consumer, message)
    consumer.close()
    return bodies


class Images(SimulatedDisk):
    """A disk that keeps what a crash would leave, before each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[tuple[SimulatedDisk, SimulatedDisk]] | None = None

    def _perform(self, *arguments: Any, **named: Any) -> Any:
        if self.images is not None:
            self.images.append((self.after_kill(), self.after_power_loss()))
        return super()._perform(*arguments, **named)


def record(body: bytes) -> bytes:
    """A message as a disk queue has it."""
    message = bytes(8) + b"\0\1" + b"0" * 16 + body
    return len(message).to_bytes(4) + message
