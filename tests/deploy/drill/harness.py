"""One drill: start the topology, put load on it, break something, drain, judge.

To add one, make a `Drill` of a function that is given the `Site` and breaks something on it::

    async def unplugged(site: Site) -> None:
        async with site.fault("nsqd-1"):
            site.cluster.network.set_link("nsqd-1", up=False)
            await site.flow(without=["nsqd-1"])
            site.cluster.network.set_link("nsqd-1", up=True)
        await site.flow()

and name it in `tests.deploy.drill.faults.DRILLS`. Every wait is for something that must come, and
bounded by the drill's limit: what hangs fails, with what was seen and the ends of the logs.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from tests.deploy.cluster import Cluster, cluster
from tests.deploy.drill.account import Fault, History, judge
from tests.deploy.drill.load import CHANNELS, CONSUMERS, TOPIC, Load, wait_until
from tests.deploy.topology import Service

__all__ = ["Drill", "DrillError", "Outcome", "Setting", "Site", "run_drill", "with_flags"]

_WAIT_S: Final = 0.02
_FLOW: Final = 20  # messages of a node that show that it works
_DRAINED_S: Final = 0.25
_LOG_CHARS: Final = 1500
# A killed node is not back sooner; by then its last words are read.
_ABSENT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """How much of everything.

    Attributes:
        rate: messages in a second.
        hold_s: how long a fault lasts at least, where that is a choice.
        limit_s: for the whole run, after which it has failed.
        seed: of what is left to chance.
    """

    rate: int = 2000
    hold_s: float = 3.0
    limit_s: float = 120.0
    seed: int = 0


class Site:
    """What a drill works with.

    Attributes:
        cluster: running; its nsqds are ``nsqds``.
        history: told of faults by `fault`.
        load: publishers and consumers, at work.
        setting: see there.
        tasks: for what a drill starts beside, such as further consumers; cancelled in the end.
        remarks: what else the drill has to tell, printed at the end of its line.
        wrong: promises that the drill itself saw broken.
    """

    def __init__(
        self,
        made: Cluster,
        history: History,
        setting: Setting,
        tasks: trio.Nursery,
        *,
        may_lose: bool = False,
    ) -> None:
        """``may_lose``: see `Drill`."""
        self.random = random.Random(setting.seed)
        self.cluster = made
        self.history = history
        self.load = Load(made, history, rate=setting.rate, chance=self.random)
        self.setting = setting
        self.tasks = tasks
        self.remarks: list[str] = []
        self.wrong: list[str] = []
        self._may_lose = may_lose

    @property
    def nsqds(self) -> list[str]:
        """The names of the nodes."""
        return self.cluster.nsqds

    @asynccontextmanager
    async def fault(self, node: str = "") -> AsyncIterator[Fault]:
        """Break the node within; it must be whole again at the end of it."""
        fault = self.history.fault_began(node)
        yield fault
        self.history.fault_ended(fault)

    async def kill(self, node: str) -> None:
        """SIGKILL an nsqd whose consumers are paused."""
        allowance, asked_s = self.history.allowance, self.history.clock()
        topics = await _stats(self.cluster, node)
        self.cluster.kill(node)
        allowance.killed.add(node)
        if self._may_lose:
            allowance.note_stats(node, topics, ready={})
            # Publishers go on meanwhile.
            allowance.note_late(node, asked_s, self.history.clock() + _ABSENT_S)

    async def hold(self) -> None:
        """Let a fault last."""
        await trio.sleep(self.setting.hold_s)

    async def flow(
        self, nodes: Sequence[str] = (), *, without: Sequence[str] = (), count: int = _FLOW
    ) -> None:
        """Wait until each of these nodes, by default all, has delivered so many from now on.

        Consumers find the nodes again by themselves, but publishers stay where they went; so each
        node is published to for the time being.
        """
        wanted = [node for node in nodes or self.nsqds if node not in without]
        before = self.history.delivered_by.copy()
        async with trio.open_nursery() as nursery:
            for node in wanted:
                nursery.start_soon(self.load.publish_to, node)
            await self.until(
                lambda: all(
                    self.history.delivered_by[node] >= before[node] + count for node in wanted
                )
            )
            nursery.cancel_scope.cancel()

    async def progress(self, count: int = _FLOW) -> None:
        """Wait until every channel got so many more, from whatever node."""
        before = {channel: self.history.delivered_count(channel) for channel in CHANNELS}
        await self.until(
            lambda: all(
                self.history.delivered_count(one) >= before[one] + count for one in CHANNELS
            )
        )

    async def backlog(self, node: str) -> None:
        """Stop consumers and wait until the node has what is published in half a second.

        They go on with ``load.resume()``.
        """
        await self.load.pause()
        acknowledged = self.history.acknowledged_by[node] + self.setting.rate // 2 // len(
            self.nsqds
        )
        await self.until(lambda: self.history.acknowledged_by[node] >= acknowledged)

    async def connected(self, count: int) -> None:
        """Wait until so many consumers run, each with a connection to every nsqd."""
        wanted = len(self.nsqds)
        await self.until(
            lambda: (
                len(self.load.consumers) >= count
                and all(one.stats().connections == wanted for one in self.load.consumers)
            )
        )

    async def found(self) -> None:
        """Wait until each nsqlookupd knows the topic of every nsqd."""
        for node in self.cluster.nsqlookupds:
            while True:
                answer = await self.cluster.get(node, 4161, f"/lookup?topic={TOPIC}")
                producers = json.loads(answer.body)["producers"] if answer.status == 200 else ()
                if len(producers) >= len(self.nsqds):
                    break
                await trio.sleep(_WAIT_S)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that this process can see."""
        await wait_until(is_so)


@dataclass(frozen=True, slots=True)
class Drill:
    """Something that is broken.

    Attributes:
        name: on the command line.
        run: breaks it, and makes it whole again; see the module.
        about: a line for users.
        may_lose: what /stats says a killed node has in memory may be lost.
        is_long: not for `make test`.
        flags: further words of the nsqds' command lines.
        prepared: entered before the start, left after everything has ended.
    """

    name: str
    run: Callable[[Site], Awaitable[None]]
    about: str
    may_lose: bool = False
    is_long: bool = False
    flags: Sequence[str] = ()
    prepared: Callable[[Cluster], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went.

    Attributes:
        counts: figures, see `tests.deploy.drill.account`.
        failures: of publishes, by error; each was cured unless ``counts`` says otherwise.
        wrong: the promises that were broken, as lines of text.
        remarks: what else the drill has to tell.
        duration_s: of all of it.
    """

    counts: Counter[str]
    failures: Counter[str]
    wrong: tuple[str, ...]
    remarks: tuple[str, ...]
    duration_s: float


class DrillError(Exception):
    """A drill could not go on; what it had seen, and the ends of the logs, are in the text."""


async def run_drill(drill: Drill, folder: Path, setting: Setting | None = None) -> Outcome:
    """Run it once, in an empty folder.

    Raises:
        NetworkError: there can be no namespaces here.
        DrillError: it hung, or something ended that should not.
    """
    setting = setting or Setting()
    began_s = trio.current_time()
    with cluster(folder) as made, drill.prepared(made):
        made.services = with_flags(made, drill.flags)
        history = History(made.nsqds, CHANNELS)
        stage = ["start"]
        try:
            with trio.fail_after(setting.limit_s):
                await made.start(*made.nsqlookupds, *made.nsqds)
                async with trio.open_nursery() as tasks:
                    site = Site(made, history, setting, tasks, may_lose=drill.may_lose)
                    await _run(site, drill, stage)
                    tasks.cancel_scope.cancel()
        except Exception as error:
            raise DrillError(_told(drill, error, stage[-1], history, made)) from error
    judged = judge(history)
    return Outcome(
        judged.counts,
        history.failures,
        (*judged.wrong, *site.wrong),
        tuple(site.remarks),
        trio.current_time() - began_s,
    )


def with_flags(made: Cluster, flags: Sequence[str], *nodes: str) -> Mapping[str, Service]:
    """The cluster's services, with further flags for these nodes, by default for all nsqds."""
    changed = {
        node: dataclasses.replace(service, command=(*service.command, *flags))
        for node, service in made.services.items()
        if node in (nodes or made.nsqds)
    }
    return {**made.services, **changed}


async def _run(site: Site, drill: Drill, stage: list[str]) -> None:
    """All of it on a running cluster; ``stage`` is told where it is."""
    stage.append("channels")
    await site.load.make_channels()
    await site.found()
    stage.append("consumers")
    for channel in CONSUMERS:
        site.tasks.start_soon(site.load.consume, channel)
    await site.connected(len(CONSUMERS))
    stage.append("publishers")
    site.tasks.start_soon(site.load.publish)
    await site.flow()
    stage.append(drill.name)
    await drill.run(site)
    stage.append("drain")
    await site.load.stop_publishing()
    await _drained(site.cluster)


async def _drained(made: Cluster) -> None:
    """Wait until no nsqd has anything left, seen twice."""
    times = 0
    while times < 2:
        left = [await _left(made, node) for node in made.nsqds]
        times = 0 if any(left) else times + 1
        await trio.sleep(_DRAINED_S)


async def _left(made: Cluster, node: str) -> int:
    """Messages of the topic on a node: waiting, in flight, deferred."""
    left = 0
    for topic in await _stats(made, node):
        left += topic["depth"]
        for channel in topic["channels"]:
            left += channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return left


async def _stats(made: Cluster, node: str) -> list[dict[str, Any]]:
    """Of the topic on a node."""
    answer = await made.get(node, 4151, f"/stats?format=json&topic={TOPIC}")
    assert answer.status == 200, answer
    topics: list[dict[str, Any]] = json.loads(answer.body)["topics"]
    return topics


def _told(drill: Drill, error: Exception, stage: str, history: History, made: Cluster) -> str:
    """Everything that helps to see why a drill did not go on."""
    lines = [f"{drill.name}: {error!r} at the stage {stage!r}"]
    lines += [f"seen: {dict(history.counts())}", f"failed: {dict(history.failures)}"]
    lines += [f"faults: {history.faults}", f"delivered by: {dict(history.delivered_by)}"]
    lines += [f"--- {node}\n{made.log(node)[-_LOG_CHARS:]}" for node in made.nsqds]
    return "\n".join(lines)
