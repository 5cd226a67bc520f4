"""A day: a plan is lived, its faults happen, and in the end all promises are checked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

from prometheus_client import ProcessCollector

from tests.promises.ledger import Ledger
from tests.simulation import checks
from tests.simulation.clients import ConsumerNode, ProducerNode
from tests.simulation.daemons import AdminNode, LookupdNode, NsqdNode
from tests.simulation.faults import STOP_S, Node, Saboteur
from tests.simulation.losses import Losses
from tests.simulation.plan import DELAYS, ConsumerPlan, Plan
from tests.simulation.watch import Watch
from trionsq.durations import SECOND_NS
from trionsq.testing.simulation import Network, World

__all__ = ["Day", "Outcome", "live"]

_SAMPLE_S: Final = 0.5
_DRAIN_S: Final = 90.0
"""Within this time after the last fault every message has come to every channel."""
_QUIET_S: Final = 25.0
_REUNION_S: Final = 60.0
"""Within this time after the last fault every client has found every nsqd again."""


@dataclass
class Outcome:
    """What became of a day.

    Attributes:
        seed: of the plan.
        violations: broken promises; empty if the day was good.
        trace_hash: two runs of one plan have the same.
        counts: faults by kind, and what else happened.
        simulated_s, steps: how long it was.
        messages, deliveries: acknowledged, and received by consumers.
        lines: the trace, if it was wanted.
    """

    seed: int
    violations: list[str]
    trace_hash: str
    counts: Counter[str]
    simulated_s: float
    steps: int
    messages: int
    deliveries: int
    lines: list[str] = field(default_factory=list, repr=False)


def live(plan: Plan, *, traced: bool = False) -> Outcome:
    """Live a plan. Errors of the simulated programs are violations; none is raised."""
    world = World(plan.seed, traced=traced)
    ledger = Ledger()
    with _alone():
        try:
            day = Day(world, plan, ledger)
            day.live()
        except Exception as error:  # whatever it is, it belongs to this seed
            ledger.violate(f"{type(error).__name__}: {checks.first_error(error)}")
            if traced:
                logging.getLogger("tests.simulation").exception("day of seed %d", plan.seed)
        finally:
            world.close()
    return Outcome(
        plan.seed,
        ledger.violations,
        world.trace_hash,
        world.counts,
        world.now_s,
        world.steps,
        ledger.acknowledged,
        ledger.deliveries,
        world.lines,
    )


@contextmanager
def _alone() -> Iterator[None]:
    """Without a log, and without metrics of the real process, which differ between two runs."""
    log = logging.getLogger("trionsq")
    level, log.level = log.level, logging.CRITICAL + 1
    log.manager._clear_cache()  # type: ignore[attr-defined]
    try:
        with mock.patch.object(ProcessCollector, "collect", return_value=()):
            yield
    finally:
        log.setLevel(level)


class Day:
    """Everything of one day."""

    def __init__(self, world: World, plan: Plan, ledger: Ledger) -> None:
        self.world = world
        self.plan = plan
        self.ledger = ledger
        self.losses = Losses()
        for consumer in plan.consumers:
            self.losses.held[consumer.topic, consumer.channel] += consumer.max_in_flight
        for nsqd in plan.nsqds:
            if (sync_timeout_ns := nsqd.options.get("sync_timeout_ns")) is not None:
                self.losses.sync_timeouts_s[nsqd.name] = int(sync_timeout_ns) / SECOND_NS
        self.watch = Watch()
        self.network = Network(
            world, latency_s=plan.latency_s, capacity_bytes=plan.buffer_bytes, user_timeout_s=12.0
        )
        self.nsqds = [
            NsqdNode(world, self.network, nsqd, plan.lookupds, _queues(plan)) for nsqd in plan.nsqds
        ]
        self.lookupds = [LookupdNode(world, self.network, name) for name in plan.lookupds]
        self.producers = [
            ProducerNode(world, self.network, producer, ledger) for producer in plan.producers
        ]
        self._promise_producers()
        self.consumers = [self._consumer(consumer) for consumer in plan.consumers]
        names = [nsqd.machine.name for nsqd in self.nsqds]
        self.admin = (
            AdminNode(world, self.network, names, plan.lookupds) if plan.has_admin else None
        )
        nodes: list[Node] = [*self.lookupds, *self.nsqds, *self.producers, *self.consumers]
        self.nodes = {node.machine.name: node for node in nodes}
        self.saboteur = Saboteur(world, self.network, self.nodes, self.losses)

    def _consumer(self, plan: ConsumerPlan) -> ConsumerNode:
        timeouts = [int(nsqd.options["msg_timeout_ns"]) / SECOND_NS for nsqd in self.plan.nsqds]
        node = ConsumerNode(
            self.world, self.network, plan, self.ledger, self.plan.lookupds, min(timeouts)
        )
        node.is_disturbed = self.losses.is_disturbed
        # What it answers too late nsqd sends again, within its RDY; meanwhile both count.
        node.is_in_time = not plan.habits.keys() & {"ignore", "slow", "touch"} and not any(
            fault.kind in DELAYS for fault in self.plan.faults
        )
        return node

    def _promise_producers(self) -> None:
        faults = self.plan.faults
        troubled = {fault.target for fault in faults} | {fault.other for fault in faults}
        for plan, producer in zip(self.plan.producers, self.producers, strict=True):
            if plan.name not in troubled:
                producer.can_always_connect = not troubled.issuperset(plan.nsqds)
                producer.is_undisturbed = troubled.isdisjoint(plan.nsqds)

    def live(self) -> None:
        """Live it."""
        self._begin()
        self._wait(lambda: False, self.plan.load_s, "the day")
        self._end_of_faults()
        self._wait(self._is_drained, _DRAIN_S, "every channel is empty", must=True)
        self._wait(self._is_reunited, _REUNION_S, "every client is connected", must=True)
        if self.lookupds or not self.plan.faults:
            self._stay_quiet()
        self.ledger.violations += checks.at_rest(self)
        self._stop_all()
        self.ledger.violations += checks.afterwards(self)

    def _begin(self) -> None:
        world = self.world
        daemons: list[Node] = [*self.lookupds, *self.nsqds]
        for node in daemons:
            node.boot()
        world.run(0.05)
        for fault in self.plan.faults:
            self.saboteur.plan(fault)
        for producer in self.producers:
            producer.boot()
        for consumer in self.consumers:
            world.at(consumer.plan.from_s, self._boot_first, consumer)
        if self.admin is not None:
            self.admin.boot()

    def _boot_first(self, consumer: ConsumerNode) -> None:
        if consumer.machine.process is None:
            consumer.boot()

    def _end_of_faults(self) -> None:
        world = self.world
        self.saboteur.mend_all(list(world.machines))
        world.run(0.1)
        for producer in self.producers:
            self._terminate(producer)
        for consumer in self.consumers:
            consumer.behave()
        # Whatever the others do, somebody takes what is left.
        names = [nsqd.machine.name for nsqd in self.nsqds]
        for number, queue in enumerate(_queues(self.plan)):
            topic, *channels = queue.split("/")
            for place, channel in enumerate(channels):
                plan = ConsumerPlan(
                    f"sweeper{number}.{place}", "messages", topic, channel, names, 500, {}
                )
                sweeper = self._consumer(plan)
                self.consumers.append(sweeper)
                self.nodes[plan.name] = sweeper
                sweeper.boot()

    # Waiting

    def _wait(
        self, is_done: Callable[[], bool], most_s: float, what: str, *, must: bool = False
    ) -> None:
        end_s = self.world.now_s + most_s
        while self.world.now_s < end_s:
            self.world.run(min(_SAMPLE_S, end_s - self.world.now_s))
            self.ledger.violations += checks.at_any_time(self)
            if self.ledger.violations:
                raise checks.BadDayError
            if is_done():
                return
        if must:
            self.ledger.violate(f"not within {most_s:g} s: {what}; {checks.state_of(self)}")
            raise checks.BadDayError

    def _is_drained(self) -> bool:
        return all(
            nsqd.broker is not None
            and nsqd.trouble is None
            and all(
                topic.core.depth == 0
                and all(
                    (core := channel.core).depth + core.in_flight_count + core.deferred_count == 0
                    and core.store.backend.depth == 0
                    for channel in topic.channels.values()
                )
                for topic in nsqd.broker.topics.values()
            )
            for nsqd in self.nsqds
        )

    def _is_reunited(self) -> bool:
        return checks.lost_clients(self) == []

    def _stay_quiet(self) -> None:
        """Heartbeats and PINGs keep what nothing else is sent on."""
        self._wait(lambda: False, _QUIET_S, "a quiet time")
        self._wait(self._is_reunited, 2.0, "every client is connected as before", must=True)

    # The end

    def _terminate(self, node: Node) -> None:
        process = node.machine.process
        if process is None:
            return
        process.terminate()
        end_s = self.world.now_s + STOP_S
        while node.machine.process is process and self.world.now_s < end_s:
            self.world.run(0.05)
        if node.machine.process is process:
            self.saboteur.hung.append(node.machine.name)

    def _stop_all(self) -> None:
        self.saboteur.is_closing = True
        nodes: list[Node] = [*self.consumers, *self.nsqds, *self.lookupds]
        for node in [*nodes, self.admin] if self.admin is not None else nodes:
            self._terminate(node)
        self.world.run(20.0)


def _queues(plan: Plan) -> list[str]:
    """The topics and channels that exist from the beginning, as ``topic/channel/...``."""
    queues: dict[str, list[str]] = {}
    for producer in plan.producers:
        queues.setdefault(producer.topic, [])
    for consumer in plan.consumers:
        channels = queues.setdefault(consumer.topic, [])
        if not consumer.from_s and consumer.channel not in channels:
            channels.append(consumer.channel)
    return ["/".join((topic, *channels)) for topic, channels in queues.items()]
