"""What clients know for sure: what was sent, acknowledged, delivered, answered, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Delivery", "Ledger", "Sent"]


@dataclass(slots=True)
class Sent:
    """A message that a producer sent; it may have arrived or not.

    Attributes:
        topic: of it.
        sent_s: when it was sent.
        delay_s: it must not be delivered earlier than this after that.
        nsqd: that acknowledged it; empty: nobody did.
        acked_s: when.
    """

    topic: str
    sent_s: float
    delay_s: float = 0.0
    nsqd: str = ""
    acked_s: float = 0.0


@dataclass(slots=True)
class Delivery:
    """A message that a consumer received.

    Attributes:
        at_s: when.
        nsqd: from which.
        message_id, attempts: as nsqd said.
        consumer: who.
        answer: what the consumer did with it: FIN, REQ, or nothing yet.
        requeue_s: when it was requeued.
        delay_s: for how long.
        answered_s: when it was finished.
        touched_s: when it was touched last.
        taken_s: when the consumer knew that nsqd had taken its answer; 0: it doesn't know.
    """

    at_s: float
    nsqd: str
    message_id: bytes
    attempts: int
    consumer: str
    answer: str = ""
    requeue_s: float = 0.0
    delay_s: float = 0.0
    answered_s: float = 0.0
    touched_s: float = 0.0
    taken_s: float = 0.0


@dataclass
class Ledger:
    """All messages of a run.

    Attributes:
        sent: by body; each body is one message.
        delivered: by topic and channel, then by body, in order.
        violations: broken promises that were seen at once.
        uncertain: publishes that failed or were not answered.
    """

    sent: dict[bytes, Sent] = field(default_factory=dict)
    delivered: dict[tuple[str, str], dict[bytes, list[Delivery]]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    uncertain: int = 0
    _number: int = 0

    def new_body(self, topic: str, size: int) -> bytes:
        """A body like no other, at least ``size`` bytes long."""
        self._number += 1
        return b"%b/%0*d" % (topic.encode(), max(1, size - len(topic) - 1), self._number)

    def deliver(self, topic: str, channel: str, body: bytes, delivery: Delivery) -> None:
        """Enter a delivery."""
        bodies = self.delivered.setdefault((topic, channel), {})
        bodies.setdefault(body, []).append(delivery)

    def violate(self, text: str) -> None:
        """Enter a broken promise."""
        if len(self.violations) < 20:
            self.violations.append(text)

    @property
    def acknowledged(self) -> int:
        """Messages that were acknowledged."""
        return sum(bool(sent.nsqd) for sent in self.sent.values())

    @property
    def deliveries(self) -> int:
        """Deliveries of all channels."""
        return sum(len(each) for bodies in self.delivered.values() for each in bodies.values())
