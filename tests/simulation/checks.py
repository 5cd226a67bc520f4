"""The promises, and whether they were kept. Each check returns what was broken, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.promises import checks as promises
from tests.simulation.plan import MOODY
from tests.simulation.stories import broken_stories

if TYPE_CHECKING:
    from tests.simulation.daemons import NsqdNode
    from tests.simulation.day import Day

__all__ = [
    "BadDayError", "afterwards", "at_any_time", "at_rest", "first_error", "lost_clients",
    "state_of",
]  # fmt: skip

# Faults that let a topic keep messages for a channel that comes later, or lose them.
_LINKS_ONLY: Final = {"cut", "one-way cut", "reset", "half-open", "slow link"}
# What a consumer may do without another delivery of the message.
_HARMLESS: Final = {"RDY"}
# What a consumer may do so that it does not see a message that nsqd sent.
_LEAVING: Final = {"leave", "CLS", "half close", "ignore", "touch", "slow"}
_NO_FILES: Final = {"too many files"}


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
    lost = [text for nsqd in day.nsqds for text in _ghosts(nsqd)]
    for consumer in day.consumers:
        plan = consumer.plan
        # What a program never answers is in flight for ever, and counts.
        answers = "ignore" not in plan.habits
        if answers and not any(_rdy(nsqd, plan.name) for nsqd in day.nsqds):
            lost.append(f"{plan.name} has RDY 0")
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
                if (count := known.count(nsqd.machine.name)) != 1:
                    lost.append(f"{lookupd.machine.name} names {nsqd.machine.name} {count} times")
    if day.admin is not None:
        poller = day.admin.poller
        snapshot = poller.snapshot if poller is not None else None
        if snapshot is None or snapshot.total.nodes != len(day.nsqds):
            lost.append(f"nsqadmin sees {snapshot and snapshot.total}")
    return lost


def _ghosts(nsqd: NsqdNode) -> Iterator[str]:
    """Consumers that are gone, and that nsqd still counts."""
    assert nsqd.broker is not None
    for topic in nsqd.broker.topics.values():
        for channel in topic.channels.values():
            for client in channel.clients:
                if client not in nsqd.broker.clients:
                    yield f"{nsqd.machine.name} still has {client.peer} as a consumer"


def _rdy(nsqd: NsqdNode, name: str) -> int:
    """The RDY of all connections of a consumer."""
    assert nsqd.broker is not None
    return sum(client.consumer.rdy for client in nsqd.broker.clients if client.host == name)


# While the day goes on


def at_any_time(day: Day) -> list[str]:
    """What must hold at each moment."""
    broken = [text for nsqd in day.nsqds for text in _broken_at(day, nsqd.machine.name)]
    return [*broken, *day.watch.look(day)]


def _broken_at(day: Day, name: str) -> Iterator[str]:
    nsqd = next(nsqd for nsqd in day.nsqds if nsqd.machine.name == name)
    broker = nsqd.broker
    if broker is None or nsqd.machine.process is None:
        return
    # At the stop the state has what a channel of a log held: nsqd makes no checks any more.
    for _ in () if nsqd.has_logs and broker.exiting else broker.checks._steps():
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
            yield from _unsaved(day, nsqd)
        assert nsqd.broker is not None
        if nsqd.trouble is not None:
            yield f"{nsqd.machine.name}: health {nsqd.trouble}"
    ledger, losses, counts = day.ledger, day.losses, day.world.counts
    steady, habits = _steady(day), _habits(day)
    yield from promises.lost(ledger, losses, steady, counts)
    yield from promises.invented(ledger, losses, counts)
    yield from promises.came_early(ledger, losses)
    calm = not day.plan.faults
    # A delivery whose time-out comes before it is written, to a slow socket, counts as an attempt.
    is_wide = day.plan.buffer_bytes >= 65536
    exact = {each for each in habits if calm and is_wide and not habits[each] & _LEAVING}
    yield from promises.attempts_broken(ledger, losses, exact)
    if {fault.kind for fault in day.plan.faults} <= _LINKS_ONLY:
        yield from promises.older_than_channel(ledger, _made_s(day), slack_s=1.0)
    if calm:
        punctual = [each for each in steady if habits[each] <= _HARMLESS]
        yield from promises.repeated(ledger, punctual)
    yield from broken_stories(day)


def _unsaved(day: Day, nsqd: NsqdNode) -> Iterator[str]:
    """A stop gives up only if the disk has failed for 5 s."""
    name = nsqd.machine.name
    failing = [
        (fault.at_s, fault.at_s + fault.lasts_s)
        for fault in day.plan.faults
        if fault.target == name and (fault.kind.startswith("disk") or fault.kind in _NO_FILES)
    ]
    for stopped_s, gave_up_s in nsqd.gave_up:
        was_failing = any(begin_s < gave_up_s < end_s + 1.5 for begin_s, end_s in failing)
        if gave_up_s - stopped_s < 4.9 or not was_failing:
            yield f"{name}: gave up after {gave_up_s - stopped_s:.1f} s: {nsqd.unsaved}"


def _steady(day: Day) -> list[promises.ChannelKey]:
    """The channels that exist from the beginning, each once."""
    keys = [
        (plan.topic, plan.channel)
        for plan in day.plan.consumers
        if not plan.from_s and plan.channel != MOODY
    ]
    return list(dict.fromkeys(keys))


def _made_s(day: Day) -> dict[promises.ChannelKey, float]:
    """The channels that were made during the day, and when."""
    return {(plan.topic, plan.channel): plan.from_s for plan in day.plan.consumers if plan.from_s}


def _habits(day: Day) -> dict[promises.ChannelKey, set[str]]:
    """What the consumers of a channel do, besides finishing at once."""
    habits: dict[promises.ChannelKey, set[str]] = {}
    for consumer in day.consumers:
        plan = consumer.plan
        habits.setdefault((plan.topic, plan.channel), set()).update(plan.habits)
    return habits


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
