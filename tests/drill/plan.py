"""What one run of the drill does, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

PublisherKind = Literal["pub", "pipelined", "mpub", "dpub", "http_pub", "http_mpub"]

PUBLISHER_KINDS: tuple[PublisherKind, ...] = (
    "pub",
    "pipelined",
    "mpub",
    "dpub",
    "http_pub",
    "http_mpub",
)
LOAD_S_MIN = 0.4
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
    ``paused_topic`` is paused shortly before the stop, so that messages wait at the topic.
    """

    seed: int
    flags: tuple[str, ...]
    channels: tuple[tuple[str, str], ...]
    publishers: tuple[PublisherPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    paused_topic: str | None
    load_s: float


def draw_plan(seed: int, load_s_max: float) -> Plan:
    """The run of this seed; the stop comes between ``LOAD_S_MIN`` and ``load_s_max``."""
    rng = Random(seed)
    topics = [f"topic{number}" for number in range(rng.choice([1, 2, 3]))]
    channels = tuple(
        (topic, f"channel{number}") for topic in topics for number in range(rng.choice([1, 2, 3]))
    )
    kinds = list(PUBLISHER_KINDS)
    rng.shuffle(kinds)
    publishers = tuple(
        PublisherPlan(f"{kind}{number}", kind, topics[number % len(topics)])
        for number, kind in enumerate(kinds)
    )
    return Plan(
        seed=seed,
        flags=_draw_flags(rng),
        channels=channels,
        publishers=publishers,
        consumers=tuple(_draw_consumers(rng, channels)),
        paused_topic=rng.choice(topics) if rng.random() < PAUSED_SHARE else None,
        load_s=rng.uniform(LOAD_S_MIN, max(LOAD_S_MIN, load_s_max)),
    )


def _draw_flags(rng: Random) -> tuple[str, ...]:
    flags = [f"--mem-queue-size={rng.choice([0, 10, 1000, 10_000])}"]
    if rng.random() < 0.5:
        flags.append(f"--max-bytes-per-file={rng.choice([5_000, 100_000])}")
    if rng.random() < 0.5:
        flags.append(f"--sync-every={rng.choice([20, 500])}")
    return tuple(flags)


def _draw_consumers(rng: Random, channels: tuple[tuple[str, str], ...]) -> list[ConsumerPlan]:
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
                hold_share=rng.choice([0.0, 0.02]) if number else 0.02,
                requeue_share=rng.choice([0.0, 0.02]) if number else 0.02,
            )
            for one in range(rng.choice([1, 2]))
        ]
    return consumers
