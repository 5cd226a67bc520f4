"""The poller: statistics of all nodes, every --poll-interval while a page is open, else less often.

A poll requests /stats from every nsqd, `Poller.requests_max` at a time. It ends when all have
answered, or after `ANSWER_WAIT_S`; a later answer is part of the next poll, and the node gets no
second request meanwhile. Nodes that did not answer the last time are waited for only briefly and
have a request limit of their own, so that they hold up neither other nodes nor a viewer. A node
stays in the list for `GONE_S` after nsqlookupds have forgotten it: it may have died. Without
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

from admin.cluster.queries import AllFailed, Cluster
from admin.cluster.shapes import Producer
from admin.options import NsqadminOptions
from admin.upstream import UpstreamError
from admin.watch.gathering import Gathering
from admin.watch.health import problems
from admin.watch.history import History
from admin.watch.node import WatchedNode
from admin.watch.requests import request_ages, request_stats
from admin.watch.snapshot import Snapshot, WatchEndedError
from trionsq.durations import SECOND_NS

__all__ = [
    "AGES_EVERY_S", "ANSWER_WAIT_S", "GONE_S", "IDLE_EVERY_S", "MAX_NODES", "NODES_EVERY_S",
    "SILENT_WAIT_S", "Poller", "WatchEndedError",
]  # fmt: skip

log = logging.getLogger("trionsq")

ANSWER_WAIT_S: Final = 2.0
"""Maximum wait of a poll for nodes, in seconds."""
SILENT_WAIT_S: Final = 0.25
"""The same if all missing nodes did not answer the last poll either."""
NODES_EVERY_S: Final = 15.0
"""Interval of requests to nsqlookupds for nodes; each poll if one failed or no node is known."""
IDLE_EVERY_S: Final = 30.0
"""Interval of polls without viewers; longer if --poll-interval is."""
GONE_S: Final = 86_400.0
"""Time for which a node is polled after nsqlookupds have forgotten it."""
AGES_EVERY_S: Final = 60.0
"""Interval of requests to a node for the ages of its messages."""
MAX_NODES: Final = 1_000
"""Maximum nodes that are polled; nsqlookupds may list any number."""

# Minimum number of nodes per poll that are asked for ages.
_AGES_MIN: Final = 4
# Share of an interval that is left between two polls, however long a poll takes.
_REST_SHARE: Final = 0.2
# Shares of --http-client-max-requests; the rest is for pages.
_POLL_SHARE: Final = 0.5
_SILENT_SHARE: Final = 0.25


class Poller:
    """Takes snapshots of a cluster: often while there are viewers, otherwise less often.

    Attributes:
        interval_s: between the beginnings of two polls.
        history: the polls of the last hour (--history).
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
        self._nodes: dict[str, WatchedNode] = {}
        self._warnings: list[str] = []
        self._nodes_due_s = -math.inf
        self._updating = False
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

    def last_seen(self, node: str, topic: str) -> tuple[float, Mapping[str, int]] | None:
        """When a node last answered (seconds since 1970), and the messages of a topic there.

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
            async with trio.open_nursery() as nursery:
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
        await self._update_nodes(nursery)
        for node in self._nodes.values():
            if node.asked_s is None:
                node.asked_s = trio.current_time()
                name = f"nsqadmin poll of {node.producer.node}"
                nursery.start_soon(self._request_stats, node, name=name)
        self._choose_for_ages(nursery)
        sequence = self.snapshot.sequence + 1 if self.snapshot is not None else 1
        snapshot = Snapshot(sequence, 0.0, warnings=list(self._warnings))
        # In an order that does not depend on the order of the answers.
        snapshot.nodes = {name: node.row() for name, node in self._nodes.items()}
        gathering = Gathering(snapshot)
        await self._gather(gathering)
        await gathering.finish()
        snapshot.taken_s = self._wall()
        snapshot.poll_s = trio.current_time() - began_s
        await self.history.add_snapshot(snapshot)
        snapshot.problems = await problems(snapshot, self.history)
        self.snapshot = snapshot
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
                node.start_time, node.ages, node.ages_due_s = metrics.start_time, None, -math.inf
            node.answered_wall_s = row.answered_s = self._wall()
            await gathering.add_answer(row, metrics, node.counters, answered_s, node.ages)
            node.answered = row
        else:
            await gathering.add_silent(node.silent_row(str(answer)), node.counters)

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
        elif node.silent and not silent:
            log.info("%s answers again", name)
        node.silent, node.error, node.asked_s = silent, str(node.answer) if silent else "", None
        self._news.set()

    def _choose_for_ages(self, nursery: trio.Nursery) -> None:
        """Start requests for ages; a few per poll, because such an answer is long."""
        now_s = trio.current_time()
        count = max(_AGES_MIN, math.ceil(len(self._nodes) * self.interval_s / AGES_EVERY_S))
        due = [
            node
            for node in self._nodes.values()
            if node.ages_due_s <= now_s and not node.silent and not node.requests_ages
        ]
        due.sort(key=lambda node: node.ages_due_s)
        for node in due[:count]:
            node.requests_ages = True
            name = f"nsqadmin poll of ages of {node.producer.node}"
            nursery.start_soon(self._request_ages, node, name=name)

    async def _request_ages(self, node: WatchedNode) -> None:
        """Request the ages from a node; without an answer they are unknown."""
        node.ages_due_s = trio.current_time() + AGES_EVERY_S
        try:
            async with self._limit:
                name = node.producer.node
                node.ages = await request_ages(self._cluster.upstream, name, self._timeout_s)
        except UpstreamError as error:
            node.ages = None
            if error.status == 404:
                # An original nsqd; ask again after its restart.
                node.ages_due_s = math.inf
        except Exception:
            # A bug.
            node.ages = None
            log.exception("request to %s for message ages failed", node.producer.node)
        finally:
            node.requests_ages = False

    async def _update_nodes(self, nursery: trio.Nursery) -> None:
        """Request the list of nodes if it is due; wait for it only if no node is known."""
        now_s = trio.current_time()
        due = now_s >= self._nodes_due_s or bool(self._warnings) or not self._nodes
        if due and not self._updating:
            self._updating = True
            self._nodes_due_s = now_s + NODES_EVERY_S
            nursery.start_soon(self._request_nodes, name="nsqadmin poll for nodes")
        while self._updating and not self._nodes:
            self._news = trio.Event()
            await self._news.wait()

    async def _request_nodes(self) -> None:
        """Request the list of nodes; without an answer the known nodes stay."""
        try:
            result = await self._cluster.nodes()
            self._note_nodes(result.value, result.warnings)
        except AllFailed as error:
            self._warnings = [str(error)]
        except Exception as error:
            # A bug.
            log.exception("request for the list of nodes failed")
            self._warnings = [f"{type(error).__name__}: {error}"]
        finally:
            self._updating = False
            self._news.set()

    def _note_nodes(self, producers: list[Producer], warnings: list[str]) -> None:
        now_s = trio.current_time()
        self._warnings = list(warnings)
        if len(producers) > MAX_NODES:
            self._warnings.append(f"{len(producers)} nodes; only the first {MAX_NODES} are polled")
        listed = {producer.node: producer for producer in producers[:MAX_NODES]}
        for name, producer in listed.items():
            # The topics of a node are not needed here.
            producer.topics = producer.tombstones = None
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = WatchedNode(producer, now_s)
            node.producer, node.listed_s, node.registered = producer, now_s, True
        for name, node in list(self._nodes.items()):
            if name in listed or self._cluster.is_direct:
                continue
            # An nsqlookupd that did not answer may know the node.
            node.registered = node.registered and bool(warnings)
            if now_s - node.listed_s > GONE_S or len(self._nodes) > 2 * MAX_NODES:
                del self._nodes[name]
