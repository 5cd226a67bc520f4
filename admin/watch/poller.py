"""One poll of the cluster for all who look, every --poll-interval; while nobody does, a slow one.

A poll asks each nsqd at once, `Poller.requests_max` at a time, and is over when all have answered
or after `ANSWER_WAIT_S`: who answers later is part of the next poll and is not asked twice
meanwhile. Nodes that did not answer last time are hardly waited for and have places of their own
in the queue, so that they hold up neither the others nor a viewer. They stay in the list for
`GONE_S` after nsqlookupds have forgotten them, for that is how a node that died looks. Polls go on
while nobody looks, every `IDLE_EVERY_S`: a node that dies at night is missed in the morning.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio

from admin.cluster.queries import AllFailed, Cluster
from admin.cluster.shapes import Producer
from admin.options import NsqadminOptions
from admin.upstream import UpstreamError
from admin.watch.gathering import Gathering
from admin.watch.health import problems
from admin.watch.history import History
from admin.watch.node import WatchedNode
from admin.watch.requests import request_ages, request_stats
from admin.watch.snapshot import Snapshot
from trionsq.durations import SECOND_NS

__all__ = ["AGES_EVERY_S", "ANSWER_WAIT_S", "GONE_S", "IDLE_EVERY_S", "NODES_EVERY_S", "NODES_MAX",
           "SILENT_WAIT_S", "Poller", "WatchEndedError"]  # fmt: skip

log = logging.getLogger("trionsq")

ANSWER_WAIT_S: Final = 2.0
"""A poll does not wait longer for nodes, in seconds."""
SILENT_WAIT_S: Final = 0.25
"""The same if only those are missing that did not answer the last time either."""
NODES_EVERY_S: Final = 15.0
"""So often nsqlookupds are asked for nodes; at each poll if one did not answer or none is known."""
IDLE_EVERY_S: Final = 30.0
"""So often the cluster is polled while nobody looks; less often if --poll-interval is longer."""
GONE_S: Final = 86_400.0
"""So long a node is remembered, and asked, after nsqlookupds have forgotten it."""
AGES_EVERY_S: Final = 60.0
"""So often a node is asked how long its messages wait."""
NODES_MAX: Final = 1_000
"""Nodes that are asked; nsqlookupds may tell of any number."""

# Nodes that are asked for ages in one poll, at least.
_AGES_MIN: Final = 4
# Of an interval, the rest between two polls however long a poll takes.
_REST_SHARE: Final = 0.2
# Of what --http-client-max-requests allows: the rest is for pages.
_POLL_SHARE: Final = 0.5
_SILENT_SHARE: Final = 0.25


class WatchEndedError(Exception):
    """The poller has ended; there will be no more snapshots."""


class Poller:
    """Snapshots of a cluster: often while there are viewers, seldom while there are none.

    Attributes:
        interval_s: between the beginnings of two polls.
        history: what polls found in the last hour (--history).
        snapshot: what the last poll found, None before the first.
        requests_max: requests of the poller that are under way at once.
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
        self._nodes: dict[str, WatchedNode] = {}
        self._warnings: list[str] = []
        self._nodes_due_s = -math.inf
        self._learning = False
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
        """How many are looking."""
        return self._viewers

    @property
    def silent_nodes(self) -> frozenset[str]:
        """Nodes that did not answer when they were last asked, by name (``host:port``)."""
        return frozenset(name for name, node in self._nodes.items() if node.silent)

    @property
    def knows_nodes(self) -> bool:
        """Whether it has seen any node."""
        return bool(self._nodes)

    def producer(self, node: str) -> Producer | None:
        """A node that is watched or was lately, by name; without its topics."""
        known = self._nodes.get(node)
        return None if known is None else known.producer

    def producers(self, topic: str) -> list[Producer]:
        """The nodes that had a topic when they last answered; those that are silent included."""
        return [node.producer for node in self._nodes.values() if topic in node.counters.topics]

    def topics_at(self, node: str) -> Mapping[str, object]:
        """The topics that a node had when it last answered."""
        known = self._nodes.get(node)
        return {} if known is None else known.counters.topics

    def last_seen(self, node: str, topic: str) -> tuple[float, Mapping[str, int]] | None:
        """When a node last answered (seconds since 1970), and what its topic held then.

        Messages by channel; ``""`` is the topic itself. None if it never answered, or did not have
        the topic.
        """
        known = self._nodes.get(node)
        if known is None or known.answered_wall_s is None:
            return None
        held = known.counters.held(topic)
        return (known.answered_wall_s, held) if held else None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Somebody looks. Polls stay frequent for two intervals after the last one has gone."""
        self._viewers += 1
        self._looked.set()
        try:
            yield
        finally:
            self._viewers -= 1
            self._unwatched_s = trio.current_time()

    async def changed(self, after: int) -> Snapshot:
        """The newest snapshot as soon as its sequence is above ``after``.

        To be waited for within `watch`. Who is slow misses some.

        Raises:
            WatchEndedError: there will be none.
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

        If that takes longer than ``wait_s``: the last one, however old, None if there is none.
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
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_in_time, name="nsqadmin end of the poller")
                began_s = -math.inf
                while True:
                    await self._until_due(began_s)
                    began_s = trio.current_time()
                    try:
                        await self._poll(nursery)
                    except Exception:
                        # A defect of ours; the next poll may be better.
                        log.exception("poll of the cluster failed")
                    rest_until_s = trio.current_time() + _REST_SHARE * self.interval_s
                    await trio.sleep_until(max(began_s + self.interval_s, rest_until_s))
        finally:
            self._end()

    async def _end_in_time(self) -> None:
        """Viewers go before the connections that they are on are closed."""
        await self._stopping.wait()
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._published.set()

    async def _until_due(self, began_s: float) -> None:
        """Wait for a viewer, or until the poll is due that is made without one."""
        idle_until_s = began_s + self._idle_interval_s
        while not self._viewers and (
            self._unwatched_s + 2 * self.interval_s <= trio.current_time() < idle_until_s
        ):
            self._looked = trio.Event()
            with trio.move_on_at(idle_until_s):
                await self._looked.wait()

    async def _poll(self, nursery: trio.Nursery) -> None:
        began_s = trio.current_time()
        await self._learn_nodes(nursery)
        for node in self._nodes.values():
            if node.asked_s is None:
                node.asked_s = trio.current_time()
                name = f"nsqadmin poll of {node.producer.node}"
                nursery.start_soon(self._ask, node, name=name)
        self._choose_for_ages(nursery)
        sequence = self.snapshot.sequence + 1 if self.snapshot is not None else 1
        snapshot = Snapshot(sequence, 0.0, warnings=list(self._warnings))
        # In an order that does not depend on who answers first.
        snapshot.nodes = {name: node.row() for name, node in self._nodes.items()}
        gathering = Gathering(snapshot)
        await self._gather(gathering)
        await gathering.finish()
        snapshot.taken_s = self._wall()
        snapshot.poll_s = trio.current_time() - began_s
        await self.history.add(snapshot)
        snapshot.problems = await problems(snapshot, self.history)
        self.snapshot = snapshot
        self._published_s = trio.current_time()
        self._published.set()
        self._published = trio.Event()

    async def _gather(self, gathering: Gathering) -> None:
        """Add answers as they come, and at the end those nodes that gave none."""
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
                node.start_time, node.ages, node.ages_due_s = metrics.start_time, None, -math.inf
            node.answered_wall_s = row.answered_s = self._wall()
            await gathering.add(row, metrics, node.counters, answered_s, node.ages)
            node.answered = row
        else:
            await gathering.add_silent(node.silent_row(str(answer)), node.counters)

    async def _ask(self, node: WatchedNode) -> None:
        """One request for the metrics of a node. Whatever comes of it is its ``answer``."""
        name = node.producer.node
        limit = self._silent_limit if node.silent else self._limit
        try:
            async with limit:
                metrics = await request_stats(self._cluster.upstream, name, self._timeout_s)
            node.answer = metrics, trio.current_time()
        except UpstreamError as error:
            node.answer = error
        except Exception as error:
            # A defect of ours, which costs this node's row only.
            log.exception("poll of %s failed", name)
            node.answer = UpstreamError(name, f"{type(error).__name__}: {error}")
        silent = isinstance(node.answer, UpstreamError)
        if silent and not node.silent:
            log.warning("%s does not answer: %s", name, node.answer)
        elif node.silent and not silent:
            log.info("%s answers again", name)
        node.silent, node.error, node.asked_s = silent, str(node.answer) if silent else "", None
        self._news.set()

    def _choose_for_ages(self, nursery: trio.Nursery) -> None:
        """Spread over the polls, for such an answer is long."""
        now_s = trio.current_time()
        count = max(_AGES_MIN, math.ceil(len(self._nodes) * self.interval_s / AGES_EVERY_S))
        due = [
            node
            for node in self._nodes.values()
            if node.ages_due_s <= now_s and not node.silent and not node.asks_ages
        ]
        due.sort(key=lambda node: node.ages_due_s)
        for node in due[:count]:
            node.asks_ages = True
            name = f"nsqadmin poll of ages of {node.producer.node}"
            nursery.start_soon(self._ask_ages, node, name=name)

    async def _ask_ages(self, node: WatchedNode) -> None:
        """One request for ages; without an answer they are not known."""
        node.ages_due_s = trio.current_time() + AGES_EVERY_S
        try:
            async with self._limit:
                name = node.producer.node
                node.ages = await request_ages(self._cluster.upstream, name, self._timeout_s)
        except UpstreamError as error:
            node.ages = None
            if error.status == 404:
                # The original's; ask again when it was started anew.
                node.ages_due_s = math.inf
        except Exception:
            # A defect of ours.
            node.ages = None
            log.exception("request to %s for message ages failed", node.producer.node)
        finally:
            node.asks_ages = False

    async def _learn_nodes(self, nursery: trio.Nursery) -> None:
        """See to it that nodes are known; wait for it only if there are none."""
        now_s = trio.current_time()
        due = now_s >= self._nodes_due_s or bool(self._warnings) or not self._nodes
        if due and not self._learning:
            self._learning = True
            self._nodes_due_s = now_s + NODES_EVERY_S
            nursery.start_soon(self._ask_for_nodes, name="nsqadmin poll for nodes")
        while self._learning and not self._nodes:
            self._news = trio.Event()
            await self._news.wait()

    async def _ask_for_nodes(self) -> None:
        """One question for nodes. Without an answer those that are known stay."""
        try:
            found = await self._cluster.nodes()
            self._note_nodes(found.value, found.warnings)
        except AllFailed as error:
            self._warnings = [str(error)]
        except Exception as error:
            # A defect of ours.
            log.exception("request for the list of nodes failed")
            self._warnings = [f"{type(error).__name__}: {error}"]
        finally:
            self._learning = False
            self._news.set()

    def _note_nodes(self, producers: list[Producer], warnings: list[str]) -> None:
        now_s = trio.current_time()
        self._warnings = list(warnings)
        if len(producers) > NODES_MAX:
            self._warnings.append(f"{len(producers)} nodes, the first {NODES_MAX} are watched")
        listed = {producer.node: producer for producer in producers[:NODES_MAX]}
        for name, producer in listed.items():
            # A topic list of each is not needed here.
            producer.topics = producer.tombstones = None
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = WatchedNode(producer, now_s)
            node.producer, node.listed_s, node.registered = producer, now_s, True
        for name, node in list(self._nodes.items()):
            if name in listed or self._cluster.is_direct:
                continue
            # Who does not answer may have been the one who knew it.
            node.registered = node.registered and bool(warnings)
            if now_s - node.listed_s > GONE_S or len(self._nodes) > 2 * NODES_MAX:
                del self._nodes[name]
