"""The poller: statistics of all nodes, every --poll-interval while a page is open, else less often.

A poll requests /stats from every nsqd, `Poller.requests_max` at a time. It ends when all have
answered, or after `ANSWER_WAIT_S`; a later answer is part of the next poll, and the node gets no
second request meanwhile. Nodes that did not answer the last time are waited for only briefly and
have a request limit of their own, so that they hold up neither other nodes nor a viewer. Without
viewers the cluster is polled every `IDLE_EVERY_S`, so that a death at night shows in the morning.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio

from admin.cluster.queries import Cluster
from admin.cluster.shapes import Producer
from admin.cluster.turns import compute
from admin.options import NsqadminOptions
from admin.upstream import UpstreamError
from admin.watch.archive import Archive
from admin.watch.gathering import Gathering
from admin.watch.health import problems
from admin.watch.history import History
from admin.watch.incidents import Incidents, grouped
from admin.watch.known import KnownNodes
from admin.watch.marks import Mark, Marks
from admin.watch.node import Counted, WatchedNode
from admin.watch.requests import reason, request_stats
from admin.watch.snapshot import Snapshot, WatchEndedError
from admin.watch.state import StateFile
from admin.watch.vitals import request_reading, vitals_of
from trionsq.durations import SECOND_NS

__all__ = [
    "ANSWER_WAIT_S", "IDLE_EVERY_S", "LATE_INTERVALS", "SILENT_WAIT_S", "VITALS_EVERY_S", "Poller",
    "WatchEndedError",
]  # fmt: skip

log = logging.getLogger("trionsq")

ANSWER_WAIT_S: Final = 2.0
"""Maximum wait of a poll for nodes, in seconds."""
SILENT_WAIT_S: Final = 0.25
"""The same if all missing nodes did not answer the last poll either."""
LATE_INTERVALS: Final = 3
"""Intervals of polls after which a snapshot is late, in addition to `ANSWER_WAIT_S`."""
IDLE_EVERY_S: Final = 30.0
"""Interval of polls without viewers; longer if --poll-interval is."""
VITALS_EVERY_S: Final = 60.0
"""Interval of requests to a node for its /metrics, with the ages of its messages."""

# Minimum number of nodes per poll that are asked for /metrics.
_VITALS_MIN: Final = 4
# Share of an interval that is left between two polls, however long a poll takes.
_REST_SHARE: Final = 0.2
# Shares of --http-client-max-requests; the rest is for pages.
_POLL_SHARE: Final = 0.5
_SILENT_SHARE: Final = 0.25


class Poller:
    """Takes snapshots of a cluster: often while there are viewers, otherwise less often.

    Attributes:
        interval_s: between the beginnings of two polls.
        history: depths and rates of the polls (--history).
        nodes: the nodes that are polled.
        marks: restarts and user actions.
        incidents: since when problems exist.
        observers: are called with each snapshot; they must not wait.
        snapshot: of the last poll, None before the first.
        requests_max: maximum concurrent requests of the poller.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: NsqadminOptions,
        *,
        stopping: trio.Event | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``stopping`` ends the wait for changes; ``wall`` is in seconds since 1970."""
        self.interval_s = options.poll_interval_ns / SECOND_NS
        self._idle_interval_s = max(IDLE_EVERY_S, self.interval_s)
        self.history = History(
            options.history_ns / SECOND_NS, self.interval_s, idle_interval_s=self._idle_interval_s
        )
        self.snapshot: Snapshot | None = None
        self._cluster = cluster
        self._timeout_s = options.http_client_request_timeout_ns / SECOND_NS
        self._wall = wall
        most = options.http_client_max_requests
        self._limit = trio.CapacityLimiter(max(1, int(most * _POLL_SHARE)))
        self._silent_limit = trio.CapacityLimiter(max(1, int(most * _SILENT_SHARE)))
        self.requests_max = int(self._limit.total_tokens + self._silent_limit.total_tokens)
        self.nodes = KnownNodes(cluster, options.expect_nsqd)
        self._nodes = self.nodes.by_name
        self.marks, self.incidents = Marks(), Incidents()
        self._state = StateFile(options.state_file, self.nodes, self.marks, self.incidents)
        archived = f"{options.state_file}.history" if options.state_file else ""
        self._archive = Archive(archived, self.history, wall=wall)
        self.observers: list[Callable[[Snapshot], None]] = []
        self._news = trio.Event()
        self._viewers = 0
        self._unwatched_s = -math.inf
        self._looked = trio.Event()
        self._published = trio.Event()
        self._published_s = -math.inf
        self._stopping = trio.Event() if stopping is None else stopping
        self._ended = False

    @property
    def viewers(self) -> int:
        """Number of viewers."""
        return self._viewers

    @property
    def age_s(self) -> float | None:
        """The age of the snapshot, in seconds; None before the first."""
        return None if self.snapshot is None else trio.current_time() - self._published_s

    @property
    def is_late(self) -> bool:
        """Whether the snapshot is older than polls for a viewer let it become."""
        age_s = self.age_s
        return age_s is not None and age_s > LATE_INTERVALS * self.interval_s + ANSWER_WAIT_S

    @property
    def silent_nodes(self) -> frozenset[str]:
        """Nodes that did not answer their last request, by name (``host:port``)."""
        return frozenset(name for name, node in self._nodes.items() if node.silent)

    @property
    def knows_nodes(self) -> bool:
        """Whether any node is known."""
        return bool(self._nodes)

    def producer(self, node: str) -> Producer | None:
        """A node that is or was recently polled, by name; without its topics."""
        known = self._nodes.get(node)
        return None if known is None else known.producer

    def producers(self, topic: str) -> list[Producer]:
        """The nodes that had a topic at their last answer, silent ones included."""
        return [node.producer for node in self._nodes.values() if topic in node.counters.topics]

    def topics_at(self, node: str) -> Mapping[str, object]:
        """The topics of a node at its last answer."""
        known = self._nodes.get(node)
        return {} if known is None else known.counters.topics

    def forget(self, node: str) -> bool:
        """Forget a node, by name; False if it answers, is registered or expected, or unknown."""
        return self.nodes.forget(node)

    def last_seen(self, node: str, topic: str) -> tuple[float, Mapping[str, Counted]] | None:
        """When a node last answered (seconds since 1970), and the figures of a topic there.

        They are by channel; ``""`` is the topic itself. None if it never answered, or did not have
        the topic.
        """
        known = self._nodes.get(node)
        if known is None or known.answered_wall_s is None:
            return None
        last = known.counters.topics.get(topic)
        return (known.answered_wall_s, last) if last else None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """A viewer, inside the context. Polls stay frequent for two intervals after the last."""
        self._viewers += 1
        self._looked.set()
        try:
            yield
        finally:
            self._viewers -= 1
            self._unwatched_s = trio.current_time()

    async def changed(self, after: int) -> Snapshot:
        """The newest snapshot as soon as its sequence is above ``after``.

        To be called inside `watch`. A slow caller misses snapshots.

        Raises:
            WatchEndedError: the poller has ended.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self._ended:
                raise WatchEndedError
            if self.snapshot is not None and self.snapshot.sequence > after:
                return self.snapshot
            await self._published.wait()

    async def current(self, wait_s: float = 3.0) -> Snapshot | None:
        """A snapshot for a page: the last one if it is fresh, else the next.

        After ``wait_s`` without a new one: the last snapshot, however old, or None.
        """
        with self.watch():
            age_s = trio.current_time() - self._published_s
            if self.snapshot is None or age_s > 2 * self.interval_s:
                after = self.snapshot.sequence if self.snapshot is not None else 0
                with trio.move_on_after(wait_s):
                    try:
                        return await self.changed(after)
                    except WatchEndedError:
                        pass
        return self.snapshot

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            await self._state.load()
            await self._archive.load()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._state.run, name="nsqadmin state file")
                nursery.start_soon(self._archive.run, name="nsqadmin history file")
                nursery.start_soon(self._end_in_time, name="nsqadmin end of the poller")
                began_s = -math.inf
                while True:
                    await self._until_due(began_s)
                    began_s = trio.current_time()
                    try:
                        await self._poll(nursery)
                    except Exception:
                        # A bug; the next poll may succeed.
                        log.exception("poll of the cluster failed")
                    rest_until_s = trio.current_time() + _REST_SHARE * self.interval_s
                    await trio.sleep_until(max(began_s + self.interval_s, rest_until_s))
        finally:
            self._end()

    async def _end_in_time(self) -> None:
        """End streams at shutdown, before their connections are closed."""
        await self._stopping.wait()
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._published.set()

    async def _until_due(self, began_s: float) -> None:
        """Wait for a viewer, or until the next poll without viewers is due."""
        idle_until_s = began_s + self._idle_interval_s
        while not self._viewers and (
            self._unwatched_s + 2 * self.interval_s <= trio.current_time() < idle_until_s
        ):
            self._looked = trio.Event()
            with trio.move_on_at(idle_until_s):
                await self._looked.wait()

    async def _poll(self, nursery: trio.Nursery) -> None:
        began_s = trio.current_time()
        await self.nodes.update(nursery)
        for node in self._nodes.values():
            if node.asked_s is None:
                node.asked_s = trio.current_time()
                name = f"nsqadmin poll of {node.producer.node}"
                nursery.start_soon(self._request_stats, node, name=name)
        self._choose_for_vitals(nursery)
        sequence = self.snapshot.sequence + 1 if self.snapshot is not None else 1
        snapshot = Snapshot(sequence, 0.0, warnings=list(self.nodes.warnings))
        snapshot.all_failed = self.nodes.all_failed
        # In an order that does not depend on the order of the answers.
        snapshot.nodes = {name: node.row() for name, node in self._nodes.items()}
        gathering = Gathering(snapshot)
        await self._gather(gathering)
        await gathering.finish()
        snapshot.taken_s = self._wall()
        snapshot.poll_s = trio.current_time() - began_s
        await self.history.add_snapshot(snapshot)
        for name, node in self._nodes.items():
            if node.restart is not None:
                snapshot.restarts[name] = node.restart
            if node.vitals is not None:
                snapshot.vitals[name] = node.vitals
        found = await problems(snapshot, self.history)
        dated = await self.incidents.date(found, snapshot.taken_s)
        snapshot.problems = await compute(len(dated), lambda: grouped(dated))
        self.snapshot = snapshot
        for observer in self.observers:
            observer(snapshot)
        self._published_s = trio.current_time()
        self._published.set()
        self._published = trio.Event()

    async def _gather(self, gathering: Gathering) -> None:
        """Add answers as they arrive, and at the end the nodes without an answer."""
        began_s = trio.current_time()
        missing = dict(self._nodes)
        while True:
            self._news = trio.Event()
            for name, node in [each for each in missing.items() if each[1].answer is not None]:
                del missing[name]
                await self._add(gathering, node)
            silent = all(node.silent for node in missing.values())
            wait_s = min(SILENT_WAIT_S if silent else ANSWER_WAIT_S, self.interval_s)
            until_s = began_s + wait_s
            if not missing or trio.current_time() >= until_s:
                break
            with trio.move_on_at(until_s):
                await self._news.wait()
        for node in missing.values():
            error = node.error if node.silent else f"no answer within {ANSWER_WAIT_S:g} s"
            await gathering.add_silent(node.silent_row(error), node.counters)

    async def _add(self, gathering: Gathering, node: WatchedNode) -> None:
        answer, node.answer = node.answer, None
        if isinstance(answer, tuple):
            row = node.row()
            metrics, answered_s = answer
            if metrics.start_time != node.start_time:
                node.start_time, node.vitals = metrics.start_time, None
                node.vitals_due_s = -math.inf
            node.answered_wall_s = row.answered_s = self._wall()
            counters, ages = node.counters, node.ages
            lost = await gathering.add_answer(row, metrics, counters, answered_s, ages)
            if lost is not None:
                node.note_restart(lost, metrics.start_time)
                missing = node.restart.missing if node.restart is not None else 0
                what = f"restart of {row.node}" + (f", {missing:,} lost" if missing else "")
                self.marks.add(Mark(row.answered_s, what, node=row.node))
            node.answered = row
        else:
            await gathering.add_silent(node.silent_row(reason(answer)), node.counters)

    async def _request_stats(self, node: WatchedNode) -> None:
        """Request /stats from a node; the result or error becomes its ``answer``."""
        name = node.producer.node
        limit = self._silent_limit if node.silent else self._limit
        try:
            async with limit:
                metrics = await request_stats(self._cluster.upstream, name, self._timeout_s)
            node.answer = metrics, trio.current_time()
        except UpstreamError as error:
            node.answer = error
        except Exception as error:
            # A bug; it costs this node's row only.
            log.exception("poll of %s failed", name)
            node.answer = UpstreamError(name, f"{type(error).__name__}: {error}")
        silent = isinstance(node.answer, UpstreamError)
        if silent and not node.silent:
            log.warning("%s does not answer: %s", name, node.answer)
            self.marks.add(Mark(self._wall(), f"{name} does not answer", node=name))
        elif node.silent and not silent:
            log.info("%s answers again", name)
            self.marks.add(Mark(self._wall(), f"{name} answers again", node=name))
        node.silent, node.error, node.asked_s = silent, reason(node.answer) if silent else "", None
        self._news.set()

    def _choose_for_vitals(self, nursery: trio.Nursery) -> None:
        """Start requests for /metrics; a few per poll, because such an answer is long."""
        now_s = trio.current_time()
        count = max(_VITALS_MIN, math.ceil(len(self._nodes) * self.interval_s / VITALS_EVERY_S))
        due = [
            node
            for node in self._nodes.values()
            if node.vitals_due_s <= now_s
            # Answered once, so that its readings are of one run.
            and node.start_time
            and not node.silent
            and not node.requests_vitals
        ]
        due.sort(key=lambda node: node.vitals_due_s)
        for node in due[:count]:
            node.requests_vitals = True
            name = f"nsqadmin poll of metrics of {node.producer.node}"
            nursery.start_soon(self._request_vitals, node, name=name)

    async def _request_vitals(self, node: WatchedNode) -> None:
        """Request /metrics from a node; without an answer its vitals are unknown."""
        now_s = trio.current_time()
        node.vitals_due_s = now_s + VITALS_EVERY_S
        name, start_time, upstream = node.producer.node, node.start_time, self._cluster.upstream
        vitals = None
        try:
            async with self._limit:
                reading = await request_reading(upstream, name, self._timeout_s, now_s)
            before = node.vitals.reading if node.vitals is not None else None
            vitals = vitals_of(reading, before, self._wall())
        except UpstreamError as error:
            if error.status == 404:
                # An original nsqd; ask again after its restart.
                node.vitals_due_s = math.inf
        except Exception:
            # A bug.
            log.exception("request to %s for metrics failed", name)
        finally:
            node.requests_vitals = False
        if node.start_time == start_time:
            node.vitals = vitals
