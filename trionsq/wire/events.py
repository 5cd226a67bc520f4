"""Commands of a client, as the parser gives them to the broker.

One event stands for all equal commands that were read together: a run of FINs, or a run of PUBs to
one topic. NOP has no event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trionsq.wire.bodies import Bodies

__all__ = [
    "Auth",
    "Event",
    "Finish",
    "GiveUp",
    "Identify",
    "Publish",
    "PublishDeferred",
    "PublishMany",
    "PublishManyBegins",
    "PublishOnce",
    "Ready",
    "Requeue",
    "StartClose",
    "Subscribe",
    "Touch",
]


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY with its JSON body, not yet decoded (see `trionsq.wire.identify`)."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH with its secret, which no log may show."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUB. After this event the parser treats the connection as subscribed."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class Ready:
    """RDY."""

    count: int


@dataclass(slots=True)
class Finish:
    """A run of FINs; each id has 16 bytes."""

    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class Requeue:
    """REQ; the delay is already capped at --max-req-timeout."""

    id: bytes
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """REQ with a reason, of a client that asked for this: the message becomes a dead letter.

    If none can be kept, it is requeued with the delay.
    """

    id: bytes
    delay_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Touch:
    """TOUCH."""

    id: bytes


@dataclass(frozen=True, slots=True)
class StartClose:
    """CLS."""


@dataclass(slots=True, init=False)
class Publish:
    """A run of PUBs to one topic: each body is one command with an answer of its own."""

    topic: str
    bodies: Bodies

    # Compiled, a method of the class takes a quarter of the time of one that dataclass makes.
    def __init__(self, topic: str, bodies: Bodies) -> None:
        self.topic = topic
        self.bodies = bodies


@dataclass(frozen=True, slots=True)
class PublishDeferred:
    """DPUB: one body."""

    topic: str
    delay_ms: int
    bodies: Bodies


@dataclass(frozen=True, slots=True)
class PublishManyBegins:
    """The line of an MPUB whose body has not arrived whole, or is refused.

    nsqd creates the topic before it reads the body, so the broker needs this event.
    """

    topic: str


@dataclass(slots=True)
class PublishMany:
    """MPUB, whole and valid: all messages are queued or none, with one answer."""

    topic: str
    bodies: Bodies


@dataclass(frozen=True, slots=True)
class PublishOnce:
    """PUB, MPUB or DPUB with a key: all messages are queued or none, and not a second time.

    Attributes:
        command: ``PUB``, ``MPUB`` or ``DPUB``.
        delay_ms: of a DPUB, else 0.
        epoch: of the nsqd that may have got it before; empty if it was not sent before.
    """

    command: str
    topic: str
    key: bytes
    delay_ms: int
    bodies: Bodies
    epoch: bytes = b""


Event = (
    Identify
    | Auth
    | Subscribe
    | Ready
    | Finish
    | Requeue
    | GiveUp
    | Touch
    | StartClose
    | Publish
    | PublishDeferred
    | PublishManyBegins
    | PublishMany
    | PublishOnce
)
