"""RDY of a receiver's consumers (max_in_flight shared by all, or 0), and its counters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pipelines.receiver.config import ReceiverConfig
from trionsq.client import Consumer
from trionsq.client.subscribed_connection import SubscribedConnection

__all__ = ["FlowControl", "ReceiverStatistics"]


class FlowControl:
    """RDY of all consumers of a receiver; 0 while there is any reason to pause.

    Attributes:
        consumers: the connected and connecting ones, with their topics.
    """

    def __init__(self, config: ReceiverConfig) -> None:
        self.consumers: dict[Consumer, str] = {}
        self._config = config
        self._reasons: set[str] = set()

    def add_consumer(self, consumer: Consumer) -> None:
        """Give the consumer its share of max_in_flight; the shares of the others change."""
        self.consumers[consumer] = consumer.topic
        self._set_shares()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Share max_in_flight among the others."""
        self.consumers.pop(consumer, None)
        self._set_shares()

    def pause(self, reason: str) -> None:
        """Set RDY to 0 until `resume` is called with the same reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._set_shares()

    def resume(self, reason: str) -> None:
        """Remove a reason to pause."""
        if reason in self._reasons:
            self._reasons.remove(reason)
            self._set_shares()

    @property
    def connections(self) -> int:
        """The number of open connections of all consumers."""
        return sum(len(consumer.flow.connections) for consumer in self.consumers)

    @property
    def nsqds(self) -> set[str]:
        """The addresses of the nsqds to which any consumer has an open connection."""
        return {
            connection.address
            for consumer in self.consumers
            for connection in consumer.flow.connections
            if isinstance(connection, SubscribedConnection)
        }

    @staticmethod
    def is_half_in_flight(consumer: Consumer) -> bool:
        """Whether half of a connection's RDY or more is in flight, so that nsqd soon stops."""
        return any(
            share.in_flight * 2 >= share.rdy
            for connection in consumer.flow.connections
            if (share := connection.share).in_flight
        )

    def _set_shares(self) -> None:
        share = 0 if self._reasons else self._config.share(len(self.consumers))
        for consumer in self.consumers:
            if consumer.max_in_flight != share:
                consumer.max_in_flight = share


@dataclass(slots=True)
class ReceiverStatistics:
    """Counters since the start, and some current values. Written in trio's thread, read in any.

    Attributes:
        received: messages received from nsqds; each delivery counts.
        stored: messages written to the log.
        segments: segments written.
        duplicates_dropped: messages that were in the log already; finished, not stored again.
        requeued: messages requeued because the log had no room.
        pauses: how often the log had no room.
        is_paused: 1 while RDY is 0 because the log has no room.
        pending: messages received and not stored yet.
        pending_bytes: size of their bodies.
        connections, topics: current numbers.
    """

    received: int = 0
    stored: int = 0
    segments: int = 0
    duplicates_dropped: int = 0
    requeued: int = 0
    pauses: int = 0
    is_paused: int = 0
    pending: int = 0
    pending_bytes: int = 0
    connections: int = 0
    topics: int = 0

    def as_dict(self) -> dict[str, int]:
        """The names and values."""
        return dataclasses.asdict(self)
