"""Promises that need two looks at a cluster: nothing leaves what is paused, and the like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.plan import DELAYS

if TYPE_CHECKING:
    from tests.simulation.daemons import NsqdNode
    from tests.simulation.day import Day

__all__ = ["Watch"]


class Watch:
    """What was seen at the last look."""

    def __init__(self) -> None:
        # Messages that left each paused queue, by subscription; and how often a pause was changed.
        self._left: dict[object, dict[object, int]] = {}
        self._pauses = 0
        # Since when an nsqd is down, in which of its lives.
        self._down: dict[str, tuple[int, float]] = {}
        # Which nsqlookupd named which nsqd more than once.
        self._twice: set[tuple[str, str]] = set()

    def look(self, day: Day) -> Iterator[str]:
        """Yield what is broken."""
        yield from self._paused(day)
        yield from self._dead(day)
        yield from self._named_twice(day)
        yield from _overcommitted(day)

    def _paused(self, day: Day) -> Iterator[str]:
        before, self._left = self._left, {}
        unchanged = self._pauses == day.losses.pauses
        self._pauses = day.losses.pauses
        for nsqd in day.nsqds:
            for name, queue, left in _paused_queues(nsqd):
                self._left[queue] = left
                for source, count in before.get(queue, {}).items():
                    if unchanged and left.get(source, count) > count:
                        yield f"{nsqd.machine.name}: {name} is paused, and messages leave it"

    def _named_twice(self, day: Day) -> Iterator[str]:
        """nsqlookupd forgets an nsqd as soon as it hears of its end."""
        before, self._twice = self._twice, set()
        if any(
            fault.kind in DELAYS or fault.kind.startswith("power loss") for fault in day.plan.faults
        ):
            return
        for lookupd in day.lookupds:
            if lookupd.lookupd is None or lookupd.machine.process is None:
                continue
            names = [
                producer.announced.broadcast_address
                for producer in lookupd.lookupd.registry.active_producers(0)
                if producer is not None
            ]
            self._twice |= {(lookupd.machine.name, name) for name in names if names.count(name) > 1}
        for name, nsqd in sorted(before & self._twice):
            yield f"{name} names {nsqd} more than once"

    def _dead(self, day: Day) -> Iterator[str]:
        """nsqadmin does not count an nsqd that was down during the whole poll."""
        now_s = day.world.now_s
        for nsqd in day.nsqds:
            name = nsqd.machine.name
            if nsqd.machine.process is not None:
                self._down.pop(name, None)
            elif self._down.setdefault(name, (nsqd.lives, now_s))[0] != nsqd.lives:
                self._down[name] = nsqd.lives, now_s
        poller = day.admin.poller if day.admin is not None else None
        if poller is None or poller.snapshot is None or day.admin is None:
            return
        snapshot = poller.snapshot
        taken_s = snapshot.taken_s - day.admin.machine.wall_ns() / 1e9 + now_s
        down = sum(since_s < taken_s - snapshot.poll_s for _, since_s in self._down.values())
        if snapshot.total.nodes > len(day.nsqds) - down:
            yield f"nsqadmin counts {snapshot.total.nodes} nodes while {down} are down"


def _overcommitted(day: Day) -> Iterator[str]:
    """The RDY that a consumer has sent to all nsqds is no more than its max_in_flight."""
    if any(fault.kind in DELAYS for fault in day.plan.faults):
        return
    names = {nsqd.machine.name for nsqd in day.nsqds}
    if any(
        fault.kind.startswith("power") and fault.target not in names for fault in day.plan.faults
    ):
        return  # for nsqd a client without power is there for some time
    ready: Counter[str] = Counter()
    for nsqd in day.nsqds:
        if nsqd.broker is not None and nsqd.machine.process is not None:
            for client in nsqd.broker.clients:
                ready[client.host] += client.consumer.rdy
    for consumer in day.consumers:
        plan = consumer.plan
        if plan.kind != "raw" and ready[plan.name] > plan.max_in_flight:
            yield f"{plan.name} has RDY {ready[plan.name]}, max_in_flight {plan.max_in_flight}"


def _paused_queues(nsqd: NsqdNode) -> Iterator[tuple[str, object, dict[object, int]]]:
    """Each paused queue with its name, and how many messages left it to whom."""
    broker, process = nsqd.broker, nsqd.machine.process
    if broker is None or process is None or broker.not_ready_reason is not None:
        return
    for topic in broker.topics.values():
        if topic.core.paused:
            yield topic.name, topic, {None: topic.core.fanned_out_count}
        for channel in topic.channels.values():
            if channel.core.paused:
                subscriptions = channel.core.in_flight.subscriptions.walk()
                left: dict[object, int] = {each: each.message_count for each in subscriptions}
                yield channel.name, channel, left
