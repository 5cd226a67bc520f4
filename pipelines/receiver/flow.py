"""How much is taken from nsqds: max_in_flight shared by all consumers, or nothing for a time."""

from __future__ import annotations

from pipelines.receiver.config import ReceiverConfig
from trionsq.client import Consumer

__all__ = ["Flow"]


class Flow:
    """RDY of all consumers of a receiver. It is 0 as long as there is any reason to hold.

    Attributes:
        consumers: with a connection or on the way to one; by topic.
    """

    def __init__(self, config: ReceiverConfig) -> None:
        self.consumers: dict[Consumer, str] = {}
        self._config = config
        self._reasons: set[str] = set()

    def add(self, consumer: Consumer) -> None:
        """It takes its share from now on."""
        self.consumers[consumer] = consumer.topic
        self._tell()

    def remove(self, consumer: Consumer) -> None:
        """It takes nothing more."""
        self.consumers.pop(consumer, None)
        self._tell()

    def hold(self, reason: str) -> None:
        """RDY 0, until `release` with the same reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._tell()

    def release(self, reason: str) -> None:
        """That reason is gone."""
        if reason in self._reasons:
            self._reasons.remove(reason)
            self._tell()

    @property
    def connections(self) -> int:
        """Over all consumers, now."""
        return sum(len(consumer.flow.connections) for consumer in self.consumers)

    @staticmethod
    def is_waited_for(consumer: Consumer) -> bool:
        """Whether a connection has half of its RDY or more in flight, so that nsqd soon stops."""
        return any(
            share.in_flight * 2 >= share.rdy
            for subscription in consumer.flow.connections
            if (share := subscription.share).in_flight
        )

    def _tell(self) -> None:
        share = 0 if self._reasons else self._config.share(len(self.consumers))
        for consumer in self.consumers:
            if consumer.max_in_flight != share:
                consumer.max_in_flight = share
