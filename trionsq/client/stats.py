"""What a consumer counts. Spec: client, section 8."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ConsumerStats"]


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counts since the start, and two of now.

    Attributes:
        received: messages; again for each delivery.
        finished, requeued: answers.
        given_up: of the finished, those that had come more than max_attempts times.
        refused: answers that nsqd did not take, most often for being late.
        in_flight: messages received and not answered, now.
        connections: now.
    """

    received: int
    finished: int
    requeued: int
    given_up: int
    refused: int
    in_flight: int
    connections: int
