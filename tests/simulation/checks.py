"""The promises, and whether they were kept. Each check returns what was broken, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.ledger import Delivery, Sent
from tests.simulation.plan import MOODY

if TYPE_CHECKING:
    from tests.simulation.day import Day

__all__ = [
    "BadDayError", "afterwards", "at_any_time", "at_rest", "first_error", "lost_clients",
    "state_of",
]  # fmt: skip

_TOLERANCE_S: Final = 0.01
# Faults that let a topic keep messages for a channel that comes later, or lose them.
_LINKS_ONLY: Final = {"cut", "one-way cut", "reset", "half-open", "slow link"}
# What a consumer may do without another delivery of the message.
_HARMLESS: Final = {"RDY"}
# What a consumer may do so that it does not see a message that nsqd sent.
_LEAVING: Final = {"leave", "CLS", "half close"}


class BadDayError(Exception):
    """A promise was broken; the ledger says which."""


def first_error(error: BaseException) -> str:
    """An error in one line: the first of a group, and where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{code.co_filename.rsplit('/', 3)[-1]}:{trace.tb_lineno} {code.co_name}"
        trace = trace.tb_next
    return f"{error!r} at {place}"


def state_of(day: Day) -> str:
    """Where messages are now."""
    lines = []
    for nsqd in day.nsqds:
        if nsqd.broker is None:
            continue
        for topic in nsqd.broker.topics.values():
            lines.append(f"{nsqd.machine.name} {topic.name}: {topic.core.depth}")
            lines += [f"{channel.core}" for channel in topic.channels.values()]
        lines.append(f"health {nsqd.broker.health}")
    return "; ".join([*lines, *lost_clients(day)])


def lost_clients(day: Day) -> list[str]:
    """Consumers without a connection to an nsqd that they should have found, and the like."""
    lost = []
    for consumer in day.consumers:
        plan = consumer.plan
        names = plan.nsqds or [nsqd.machine.name for nsqd in day.nsqds]
        lost += [
            f"{plan.name} is not connected to {name}"
            for name in names
            if not day.network.connections(plan.name, name)
        ]
    for lookupd in day.lookupds:
        assert lookupd.lookupd is not None
        registry, process = lookupd.lookupd.registry, lookupd.machine.process
        assert process is not None
        with process.entered():
            now_ns = lookupd.lookupd.now_ns()
        for nsqd in day.nsqds:
            assert nsqd.broker is not None
            for topic in nsqd.broker.topics:
                known = [
                    producer.announced.broadcast_address
                    for producer in registry.lookup(topic, now_ns)
                    if producer is not None
                ]
                if nsqd.machine.name not in known:
                    lost.append(f"{lookupd.machine.name} does not know {nsqd.machine.name}")
    if day.admin is not None:
        poller = day.admin.poller
        snapshot = poller.snapshot if poller is not None else None
        if snapshot is None or snapshot.total.nodes != len(day.nsqds):
            lost.append(f"nsqadmin sees {snapshot and snapshot.total}")
    return lost


# While the day goes on


def at_any_time(day: Day) -> list[str]:
    """What must hold at each moment."""
    return [text for nsqd in day.nsqds for text in _broken_at(day, nsqd.machine.name)]


def _broken_at(day: Day, name: str) -> Iterator[str]:
    nsqd = next(nsqd for nsqd in day.nsqds if nsqd.machine.name == name)
    broker = nsqd.broker
    if broker is None or nsqd.machine.process is None:
        return
    for _ in broker.checks._steps():
        pass
    for queue, text in broker.checks.broken.items():
        yield f"{name}: counters of {queue}: {text}"
    for part, count in broker.defect_counts.items():
        if count:
            yield f"{name}: {count} defects of {part}: {broker.folder.background.defects.last}"
    for topic in broker.topics.values():
        for queue_name, store in (
            (topic.name, topic.core.store),
            *((channel.name, channel.core.store) for channel in topic.channels.values()),
        ):
            if store.memory.depth > store.limit + 600:
                yield f"{name}: {queue_name} has {store.memory.depth} messages in memory"
    if broker.queued_output_bytes > 4 << 20:
        yield f"{name}: {broker.queued_output_bytes} bytes of output"


# When all has come to rest


def at_rest(day: Day) -> list[str]:
    """What must hold after the last fault, when all channels are empty."""
    return list(_broken_at_rest(day))


def _broken_at_rest(day: Day) -> Iterator[str]:
    for nsqd in day.nsqds:
        if nsqd.unsaved:
            day.losses.unsaved.add(nsqd.machine.name)
        assert nsqd.broker is not None
        if nsqd.broker.health != "OK":
            yield f"{nsqd.machine.name}: health {nsqd.broker.health}"
    yield from _lost(day)
    habits = _habits(day)
    for (topic, channel), bodies in day.ledger.delivered.items():
        for body, deliveries in bodies.items():
            sent = day.ledger.sent.get(body)
            where = f"{topic}/{channel} {body[:20]!r}"
            if sent is None and day.losses.may_invent(deliveries[0].nsqd):
                day.world.counts["damaged with leave"] += 1
                continue
            if sent is None or sent.topic != topic:
                yield f"{where}: nobody published it"
                continue
            yield from _early(day, where, sent, deliveries)
            yield from _attempts(day, where, deliveries, habits[topic, channel])
            if channel == "late":
                yield from _older_than_channel(day, where, sent)
    yield from _repeated(day)


def _lost(day: Day) -> Iterator[str]:
    losses = day.losses
    for (topic, channel), bodies in _steady(day).items():
        lost: Counter[str] = Counter()
        for body, sent in day.ledger.sent.items():
            if not sent.nsqd or sent.topic != topic or body in bodies:
                continue
            if losses.may_lose_anything(sent.nsqd):
                day.world.counts["lost with leave: damaged"] += 1
            elif losses.may_lose_as_late(sent.nsqd, sent.acked_s):
                day.world.counts["lost with leave: not synced"] += 1
            else:
                lost[sent.nsqd] += 1
        for nsqd, count in lost.items():
            most = losses.most(nsqd, topic, channel)
            day.world.counts["lost with leave: in memory"] += count
            if count > most:
                yield f"{topic}/{channel}: {nsqd} lost {count} messages, {most} allowed"


def _steady(day: Day) -> dict[tuple[str, str], dict[bytes, list[Delivery]]]:
    """Deliveries of the channels that exist from the beginning."""
    return {
        (plan.topic, plan.channel): day.ledger.delivered.get((plan.topic, plan.channel), {})
        for plan in day.plan.consumers
        if not plan.from_s and plan.channel != MOODY
    }


def _early(day: Day, where: str, sent: Sent, deliveries: list[Delivery]) -> Iterator[str]:
    first = min(deliveries, key=lambda delivery: delivery.at_s)
    due_s = sent.sent_s + sent.delay_s * 0.999 - _TOLERANCE_S
    # After a jump of the clock, or if the file of due times was lost, nobody knows better.
    knows = first.nsqd not in day.losses.clocks_jumped | day.losses.damaged
    knows = knows and not day.losses.may_lose_as_late(first.nsqd, sent.acked_s)
    if first.at_s < due_s and knows:
        yield f"{where}: delivered {due_s - first.at_s:.3f} s too early"


def _habits(day: Day) -> dict[tuple[str, str], set[str]]:
    """What the consumers of a channel do, besides finishing at once."""
    habits: dict[tuple[str, str], set[str]] = {}
    for consumer in day.consumers:
        plan = consumer.plan
        habits.setdefault((plan.topic, plan.channel), set()).update(plan.habits)
    return habits


def _attempts(day: Day, where: str, deliveries: list[Delivery], habits: set[str]) -> Iterator[str]:
    can_know = not day.plan.faults and not habits & _LEAVING
    attempts: dict[tuple[str, bytes], list[int]] = {}
    for delivery in deliveries:
        attempts.setdefault((delivery.nsqd, delivery.message_id), []).append(delivery.attempts)
    for (nsqd, _), numbers in attempts.items():
        if min(numbers) < 1:
            yield f"{where}: attempts {numbers}"
        if nsqd in day.losses.killed or day.losses.may_lose_anything(nsqd):
            continue
        if len(set(numbers)) < len(numbers):
            yield f"{where}: attempts {numbers} repeat"
        if can_know and sorted(numbers) != list(range(1, len(numbers) + 1)):
            yield f"{where}: attempts {numbers} without a fault"


def _older_than_channel(day: Day, where: str, sent: Sent) -> Iterator[str]:
    made_s = next(plan.from_s for plan in day.plan.consumers if plan.from_s)
    links_only = {fault.kind for fault in day.plan.faults} <= _LINKS_ONLY
    if links_only and sent.nsqd and sent.acked_s + sent.delay_s < made_s - 1.0:
        yield f"{where}: older than its channel"


def _repeated(day: Day) -> Iterator[str]:
    """Without faults, and if consumers finish at once, each message comes once."""
    if day.plan.faults:
        return
    habits = _habits(day)
    for (topic, channel), bodies in _steady(day).items():
        if habits[topic, channel] <= _HARMLESS:
            for body, deliveries in bodies.items():
                if len(deliveries) > 1:
                    yield f"{topic}/{channel} {body[:20]!r}: {len(deliveries)} deliveries"


# When everything has stopped


def afterwards(day: Day) -> list[str]:
    """What must hold when all processes have been told to stop."""
    return list(_broken_afterwards(day))


def _broken_afterwards(day: Day) -> Iterator[str]:
    for name in day.saboteur.hung:
        yield f"{name} did not end after SIGTERM"
    for nsqd in day.nsqds:
        name, disk = nsqd.machine.name, nsqd.machine.disk
        if nsqd.unsaved and not day.losses.may_lose_anything(name):
            yield f"{name}: not saved: {nsqd.unsaved}"
        if disk.open_files:
            yield f"{name}: {disk.open_files} files are open"
        assert nsqd.broker is not None
        queues = sum(1 + len(topic.channels) for topic in nsqd.broker.topics.values())
        # Files set aside stay for the operator.
        files = [name for name in disk.files() if not name.endswith(".bad")]
        if len(files) > 3 + 2 * queues:
            yield f"{name}: {len(files)} files for {queues} queues: {files}"
    for name in day.world.machines:
        # A kernel waits for the FIN of a vanished peer for some time.
        ends = [end for end in day.network.ends_at(name) if not end.peer_end.has_vanished]
        if ends:
            yield f"{name}: {len(ends)} connections are open after its end"
