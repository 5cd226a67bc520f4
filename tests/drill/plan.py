"""What one run of the drill does, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.drill.kinds import Kind

PublisherKind = Literal["pub", "pipelined", "mpub", "dpub", "http_pub", "http_mpub"]

PUBLISHER_KINDS: tuple[PublisherKind, ...] = (
    "pub",
    "pipelined",
    "mpub",
    "dpub",
    "http_pub",
    "http_mpub",
)
PAUSED_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """A connection that publishes in one way, as fast as it is answered."""

    name: str
    kind: PublisherKind
    topic: str


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """A subscription; it keeps ``hold_share`` of its messages in flight, and requeues some."""

    name: str
    topic: str
    channel: str
    ready_count: int
    hold_share: float
    requeue_share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: nsqd's flags, who publishes and consumes, and when the stop comes.

    ``channels`` are pairs of topic and channel, some of them without a consumer;
    ``paused_topic`` is paused shortly before the stop, so that messages wait at the topic;
    ``late`` consumes a channel that is made amid the load. Clients keep still before a stop that
    ``is_quiet``.
    """

    seed: int
    kind: Kind
    flags: tuple[str, ...]
    channels: tuple[tuple[str, str], ...]
    publishers: tuple[PublisherPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    paused_topic: str | None
    load_s: float
    late: ConsumerPlan
    is_quiet: bool


def draw_plan(seed: int, load_s_max: float, kind: Kind) -> Plan:
    """The run of this seed; the stop comes between ``kind.load_s_min`` and ``load_s_max``."""
    rng = Random(seed)
    topics = [f"topic{number}" for number in range(rng.choice([1, 2, 3]))]
    channels = tuple(
        (topic, f"channel{number}") for topic in topics for number in range(rng.choice([1, 2, 3]))
    )
    kinds = list(PUBLISHER_KINDS)
    rng.shuffle(kinds)
    if kind.defers_all:
        kinds = ["dpub", "http_pub", "dpub", "mpub"]
    publishers = tuple(
        PublisherPlan(f"{kind}{number}", kind, topics[number % len(topics)])
        for number, kind in enumerate(kinds)
    )
    return Plan(
        seed=seed,
        kind=kind,
        flags=_draw_flags(rng, kind),
        channels=channels,
        publishers=publishers,
        consumers=tuple(_draw_consumers(rng, channels, kind)),
        paused_topic=rng.choice(topics) if rng.random() < PAUSED_SHARE else None,
        load_s=rng.uniform(kind.load_s_min, max(kind.load_s_min, load_s_max)),
        late=ConsumerPlan(f"{topics[0]}:late", topics[0], "late", 50, 0.0, 0.0),
        is_quiet=rng.random() < 0.5,
    )


def _draw_flags(rng: Random, kind: Kind) -> tuple[str, ...]:
    flags = [
        f"--mem-queue-size={rng.choice(kind.memory)}",
        f"--msg-timeout={kind.msg_timeout_s:g}s",
        f"--sync-timeout={kind.sync_timeout_s:g}s",
        *kind.flags,
    ]
    if rng.random() < 0.5:
        flags.append(f"--max-bytes-per-file={rng.choice([5_000, 100_000])}")
    if rng.random() < 0.5:
        flags.append(f"--sync-every={rng.choice([20, 500])}")
    return tuple(flags)


def _draw_consumers(
    rng: Random, channels: tuple[tuple[str, str], ...], kind: Kind
) -> list[ConsumerPlan]:
    """One to two consumers for each channel, but none for a quarter of the channels."""
    consumers: list[ConsumerPlan] = []
    for number, (topic, channel) in enumerate(channels):
        if number and rng.random() < 0.25:
            continue
        consumers += [
            ConsumerPlan(
                name=f"{topic}:{channel}:{one}",
                topic=topic,
                channel=channel,
                ready_count=rng.choice([2, 50, 2500]),
                hold_share=rng.choice([0.0, kind.hold_share]) if number else kind.hold_share,
                requeue_share=rng.choice([0.0, kind.requeue_share])
                if number
                else kind.requeue_share,
            )
            for one in range(rng.choice([1, 2]))
        ]
    return consumers
