"""The plan of a day: topology, options, load and faults, drawn from a seed.

A plan is data. It can be written as JSON, made smaller, and lived again: `day.live(plan)`.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from tests.engines import OPTIONS

__all__ = [
    "DELAYS",
    "FAULTS",
    "MOODY",
    "ConsumerPlan",
    "FaultPlan",
    "NsqdPlan",
    "Plan",
    "ProducerPlan",
    "draw_plan",
]


class NsqdPlan(msgspec.Struct):
    """An nsqd.

    Attributes:
        name: of its machine.
        options: those of `NsqdOptions` that differ from the default.
        clock_offset_s: by which its wall clock is wrong.
        clock_rate: of its monotonic clock; 1 is right.
    """

    name: str
    options: dict[str, int | bool | str]
    clock_offset_s: float = 0.0
    clock_rate: float = 1.0


class ProducerPlan(msgspec.Struct):
    """A program that publishes.

    Attributes:
        name: of its machine.
        nsqds: it publishes to the first of them that it can reach.
        topic: of its messages.
        count: of commands.
        gap_s: most that it waits between two commands.
        kinds: of its commands: PUB, MPUB, DPUB, pipelined, HTTP.
        body_bytes: most of a body.
        compression: "snappy", "deflate" or "" for none.
    """

    name: str
    nsqds: list[str]
    topic: str
    count: int
    gap_s: float
    kinds: list[str]
    body_bytes: int
    compression: str = ""


class ConsumerPlan(msgspec.Struct):
    """A program that consumes.

    Attributes:
        name: of its machine.
        kind: "messages", "batches" or "handler" for the ways of our client, "raw" for one that
            speaks the protocol as it likes.
        compression: "snappy", "deflate" or "" for none.
        topic, channel: what it consumes.
        nsqds: to connect to; empty: those that nsqlookupds name.
        max_in_flight: of the library, or the RDY of a raw one.
        habits: probabilities, by what is done with a message instead of a FIN at once.
        from_s: when it starts. A channel of a late consumer does not exist before.
    """

    name: str
    kind: str
    topic: str
    channel: str
    nsqds: list[str]
    max_in_flight: int
    habits: dict[str, float]
    compression: str = ""
    from_s: float = 0.0


class FaultPlan(msgspec.Struct):
    """Something bad.

    Attributes:
        at_s: when it begins.
        kind: one of `FAULTS`.
        target: a machine.
        other: another machine, for links.
        lasts_s: until it is mended.
        value: what the kind makes of it.
    """

    at_s: float
    kind: str
    target: str
    other: str = ""
    lasts_s: float = 0.0
    value: float = 0.0


class Plan(msgspec.Struct):
    """A day.

    Attributes:
        seed: of all chances of the day.
        load_s: how long faults happen.
        nsqds, lookupds, producers, consumers, faults: see there; nsqlookupds by name.
        has_admin: nsqadmin's poller watches.
        latency_s: of links: least and most.
        buffer_bytes: of a kernel's socket buffer.
    """

    seed: int
    load_s: float
    nsqds: list[NsqdPlan]
    lookupds: list[str]
    producers: list[ProducerPlan]
    consumers: list[ConsumerPlan]
    faults: list[FaultPlan]
    has_admin: bool = False
    latency_s: tuple[float, float] = (0.0001, 0.002)
    buffer_bytes: int = 65536

    def to_json(self) -> bytes:
        """The plan as text, for a file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes) -> Plan:
        """What `to_json` wrote.

        Raises:
            msgspec.ValidationError: it is something else.
        """
        return msgspec.json.decode(text, type=Plan)


DELAYS: Final = {"stop", "cut", "one-way cut", "half-open", "slow link"}
"""Faults by which one machine may know later than another what happened."""
MOODY: Final = "moody"
"""A channel that operators empty and delete."""

_COMPRESSIONS: Final = ("", "", "", "snappy", "deflate")
# By kind of target; the number is the weight of the draw.
_NSQD_FAULTS: Final = {
    "kill": 3, "restart": 3, "power loss": 3, "stop": 2, "disk full": 2, "disk write error": 2,
    "disk sync error": 2, "disk slow": 2, "clock jump": 1, "too many files": 1,
    "too many connections": 1, "kill twice": 1, "bit flip": 1, "disk read error": 1,
    "pause topic": 1, "pause channel": 1,
}  # fmt: skip
# Only for the channel that nobody relies on.
_MOODY_FAULTS: Final = {"empty channel": 2, "delete channel": 2}
_LINK_FAULTS: Final = {
    "cut": 2, "one-way cut": 2, "reset": 3, "half-open": 2, "slow link": 2,
}  # fmt: skip
_CLIENT_FAULTS: Final = {"kill": 2, "restart": 2, "stop": 2, "power loss": 1}
_LOOKUPD_FAULTS: Final = {"kill": 2, "restart": 1, "stop": 1, "power loss": 1}
# In the middle of the next job of the disk.
_JOB_FAULTS: Final = {"kill in a job": 1, "power loss in a job": 2}

FAULTS: Final = frozenset(
    {*_NSQD_FAULTS, *_MOODY_FAULTS, *_LINK_FAULTS, *_CLIENT_FAULTS, *_LOOKUPD_FAULTS, *_JOB_FAULTS}
)
"""All kinds of faults."""


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(f"plan {seed}")
    load_s = random.choice((4.0, 8.0, 12.0))
    nsqds = [_draw_nsqd(random, number) for number in range(random.choice((1, 1, 2, 3)))]
    names = [nsqd.name for nsqd in nsqds]
    has_lookupd = random.random() < 0.25
    lookupds = (
        [f"lookupd{number}" for number in range(random.choice((1, 2)))] if has_lookupd else []
    )
    topics = ["orders", "events"][: random.choice((1, 1, 2))]
    producers = [
        _draw_producer(random, number, names, random.choice(topics), load_s)
        for number in range(random.choice((1, 1, 2)))
    ]
    consumers: list[ConsumerPlan] = []
    for topic in topics:
        for channel in ("billing", "search")[: random.choice((1, 1, 2))]:
            for _ in range(random.choice((1, 1, 2))):
                number = len(consumers)
                nodes = [] if lookupds and random.random() < 0.7 else names
                consumers.append(_draw_consumer(random, number, topic, channel, nodes))
    if random.random() < 0.15:
        late = _draw_consumer(random, len(consumers), topics[0], "late", names)
        late.from_s = load_s * random.uniform(0.5, 0.8)
        consumers.append(late)
    has_moody = random.random() < 0.15
    if has_moody:
        consumers.append(_draw_consumer(random, len(consumers), topics[0], MOODY, names))
    has_admin = random.random() < 0.06
    plan = Plan(
        seed, load_s, nsqds, lookupds, producers, consumers, [], has_admin,
        latency_s=random.choice(((0.00005, 0.0005), (0.0001, 0.005), (0.001, 0.03))),
        buffer_bytes=random.choice((2048, 65536, 65536)),
    )  # fmt: skip
    clients = [each.name for each in producers] + [each.name for each in consumers]
    if random.random() < 0.88:
        for _ in range(random.choice((1, 2, 2, 3, 5))):
            plan.faults.append(_draw_fault(random, load_s, names, lookupds, clients))
    if has_moody:
        for _ in range(random.choice((1, 3))):
            kind = _draw(random, _MOODY_FAULTS)
            at_s = random.uniform(0.2, load_s)
            plan.faults.append(FaultPlan(at_s, kind, random.choice(names)))
    more = Random(f"more {seed}")
    for nsqd in nsqds:
        if more.random() < 0.3:
            nsqd.options["sync_timeout_ns"] = 200_000_000
    if more.random() < 0.1:
        fault = FaultPlan(more.uniform(0.2, load_s), _draw(more, _JOB_FAULTS), more.choice(names))
        fault.lasts_s, fault.value = more.choice((0.05, 0.5, 2.0)), more.random()
        plan.faults.append(fault)
    if more.random() < 0.06:
        _draw_night(more, plan)
    elif more.random() < 0.05:
        _draw_pause(more, plan)
    elif not plan.faults and more.random() < 0.4:
        _set_touches(plan)
    plan.faults.sort(key=lambda fault: fault.at_s)
    _set_no_clock_back_over_a_restart(plan)
    for nsqd in nsqds:
        nsqd.options |= OPTIONS
    return plan


def _set_no_clock_back_over_a_restart(plan: Plan) -> None:
    """Due times on disk are wall times: nobody could say what they mean then."""
    for jump in plan.faults:
        ends = {"restart", "kill", "bit flip", "power loss"}
        if jump.kind == "clock jump" and any(
            fault.target == jump.target and any(fault.kind.startswith(end) for end in ends)
            for fault in plan.faults
        ):
            jump.value = abs(jump.value)


def _draw_night(random: Random, plan: Plan) -> None:
    """A backlog on the disk, nothing that asks for a sync but time, and then no power."""
    nsqd = plan.nsqds[0]
    nsqd.options |= {
        "mem_queue_size": 0, "max_bytes_per_file": 100_000, "sync_every": 2500,
        "sync_timeout_ns": 200_000_000,
    }  # fmt: skip
    if random.random() < 0.4:
        _let_a_sync_fail(random, plan)
    load_s, name = plan.load_s, nsqd.name
    plan.faults += [
        FaultPlan(0.2, "pause channel", name, "", load_s),
        FaultPlan(load_s * random.uniform(0.7, 0.95), "power loss", name),
    ]


def _let_a_sync_fail(random: Random, plan: Plan) -> None:
    """While much is published, and long before the power fails.

    Consumers hold little, because as many old messages may be lost.
    """
    nsqd = plan.nsqds[0]
    plan.load_s = max(plan.load_s, 8.0)
    at_s = plan.load_s * random.uniform(0.1, 0.2)
    plan.faults.append(FaultPlan(at_s, "disk sync error", nsqd.name, "", 1.0))
    nsqd.options["sync_timeout_ns"] = 600_000_000
    _publish_steadily(plan, 0.3)
    for producer in plan.producers:
        producer.kinds = ["PUB", "MPUB", "HTTP"]
    for consumer in plan.consumers:
        consumer.max_in_flight, consumer.habits = 1, {}


def _draw_pause(random: Random, plan: Plan) -> None:
    """Messages come to a topic while it is paused."""
    at_s = plan.load_s * random.uniform(0.1, 0.4)
    plan.faults.append(FaultPlan(at_s, "pause topic", plan.nsqds[0].name, "", 2.0))
    _publish_steadily(plan, 0.8)


def _publish_steadily(plan: Plan, share: float) -> None:
    """In the first ``share`` of the day, to the first nsqd as long as it runs."""
    first = plan.nsqds[0].name
    for producer in plan.producers:
        producer.count, producer.gap_s = 80, 2 * share * plan.load_s / 80
        producer.nsqds = [first, *(name for name in producer.nsqds if name != first)]


def _set_touches(plan: Plan) -> None:
    """Messages are worked on for longer than their time-out, one after the other."""
    plan.load_s = 12.0
    for nsqd in plan.nsqds:
        nsqd.options["msg_timeout_ns"] = 3 * 10**9
    for consumer in plan.consumers:
        consumer.kind = "messages" if consumer.kind == "raw" else consumer.kind
        consumer.max_in_flight, consumer.habits = 1, {"touch": 0.2}


def _draw_nsqd(random: Random, number: int) -> NsqdPlan:
    options: dict[str, int | bool | str] = {
        "mem_queue_size": random.choice((0, 1, 5, 30, 10_000)),
        "max_bytes_per_file": random.choice((600, 3000, 100_000)),
        "sync_every": random.choice((1, 5, 2500)),
        "msg_timeout_ns": random.choice((1, 3, 20)) * 10**9,
        "queue_scan_selection_count": random.choice((1, 20)),
        "requeue_on_disconnect": random.random() < 0.8,
    }
    return NsqdPlan(
        f"nsqd{number}",
        options,
        clock_offset_s=random.choice((0.0, 0.0, 3600.0, -86400.0, 0.25)),
        clock_rate=random.choice((1.0, 1.0, 1.0002, 0.9998)),
    )


def _draw_producer(
    random: Random, number: int, nsqds: list[str], topic: str, load_s: float
) -> ProducerPlan:
    count = random.choice((20, 40, 80))
    kinds = random.choice(
        (["PUB"], ["PUB", "MPUB"], ["PUB", "DPUB"], ["pipelined"], ["HTTP", "PUB"],
         ["PUB", "MPUB", "DPUB", "pipelined"])
    )  # fmt: skip
    return ProducerPlan(
        f"producer{number}",
        random.sample(nsqds, random.randint(1, len(nsqds))),
        topic,
        count,
        gap_s=random.choice((0.0, 1.5 * load_s / count, 1.5 * load_s / count)),
        kinds=kinds,
        body_bytes=random.choice((20, 20, 300, 2000)),
        compression=random.choice(_COMPRESSIONS),
    )


def _draw_consumer(
    random: Random, number: int, topic: str, channel: str, nsqds: list[str]
) -> ConsumerPlan:
    ways = ("messages", "batches", "handler")
    kind = random.choice((*ways, "raw")) if nsqds else random.choice(ways)
    habits = {}
    if random.random() < 0.5:
        for habit in random.sample(("requeue", "requeue later", "touch", "ignore", "slow"), 2):
            habits[habit] = random.choice((0.02, 0.1))
    if kind == "raw":
        for habit in random.sample(("RDY", "leave", "CLS", "half close"), 2):
            habits[habit] = 0.03
    nodes = [random.choice(nsqds)] if kind == "raw" else list(nsqds)
    return ConsumerPlan(
        f"consumer{number}", kind, topic, channel, nodes, random.choice((1, 3, 20, 200)), habits,
        random.choice(_COMPRESSIONS),
    )  # fmt: skip


def _draw_fault(
    random: Random, load_s: float, nsqds: list[str], lookupds: list[str], clients: list[str]
) -> FaultPlan:
    at_s = random.uniform(0.2, load_s)
    lasts_s = random.choice((0.05, 0.5, 2.0, 5.0))
    where = random.choice(("nsqd", "nsqd", "nsqd", "link", "link", "client", "lookupd"))
    if where == "lookupd" and not lookupds:
        where = "nsqd"
    if where == "link":
        kind = _draw(random, _LINK_FAULTS)
        ends = [random.choice(nsqds), random.choice([*clients, *lookupds])]
        random.shuffle(ends)
        value = random.choice((0.05, 0.5))
        return FaultPlan(at_s, kind, ends[0], ends[1], lasts_s, value)
    if where == "client":
        return FaultPlan(at_s, _draw(random, _CLIENT_FAULTS), random.choice(clients), "", lasts_s)
    if where == "lookupd":
        return FaultPlan(at_s, _draw(random, _LOOKUPD_FAULTS), random.choice(lookupds), "", lasts_s)
    kind = _draw(random, _NSQD_FAULTS)
    value = (
        random.choice((3600.0, -3600.0, 0.01, -0.01)) if kind == "clock jump" else random.random()
    )
    return FaultPlan(at_s, kind, random.choice(nsqds), "", lasts_s, value)


def _draw(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]
