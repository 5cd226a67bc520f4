"""The nodes that the poller knows: listed by nsqlookupds, named by --expect-nsqd, or remembered.

A node stays when nsqlookupds have forgotten it, because a dead node looks like this: until an admin
forgets it, over restarts of nsqadmin (--state-file).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Final

import trio

from admin.cluster.queries import AllFailed, Cluster
from admin.cluster.shapes import Producer
from admin.watch.node import WatchedNode
from trionsq.hostport import split_address

__all__ = ["MAX_NODES", "NODES_EVERY_S", "KnownNodes"]

log = logging.getLogger("trionsq")

NODES_EVERY_S: Final = 15.0
"""Interval of requests to nsqlookupds for nodes; each poll if one failed or no node is known."""
MAX_NODES: Final = 1_000
"""Maximum nodes that are polled; nsqlookupds may list any number."""


class KnownNodes:
    """The nodes, by name (``host:port`` of HTTP).

    Attributes:
        by_name: the nodes.
        warnings: errors of nsqlookupds (or of listed nsqds) at the last request.
        all_failed: whether none of them answered.
    """

    def __init__(self, cluster: Cluster, expected: Iterable[str] = ()) -> None:
        self.by_name: dict[str, WatchedNode] = {}
        self.warnings: list[str] = []
        self.all_failed = False
        self._cluster = cluster
        self._due_s = -math.inf
        self._updating = False
        self._updated = trio.Event()
        for name in expected:
            target = split_address(name)
            assert target is not None  # `admin.options.validated` has checked it
            producer = Producer(broadcast_address=target[0], http_port=target[1])
            node = WatchedNode(producer, registered=cluster.is_direct, expected=True)
            self.by_name[producer.node] = node

    def restore(self, nodes: Iterable[WatchedNode]) -> None:
        """Add remembered nodes. Nobody lists them until nsqlookupds say so."""
        for node in nodes:
            name = node.producer.node
            node.expected = name in self.by_name
            self.by_name[name] = node

    def forget(self, name: str) -> bool:
        """Forget a node; False if it is not known, answers, or is still listed or expected."""
        node = self.by_name.get(name)
        if node is None or not node.silent or node.registered or node.expected:
            return False
        del self.by_name[name]
        return True

    async def update(self, nursery: trio.Nursery) -> None:
        """Request the list of nodes if it is due; wait for it only if no node is known."""
        now_s = trio.current_time()
        due = now_s >= self._due_s or bool(self.warnings) or not self.by_name
        if due and not self._updating:
            self._updating = True
            self._due_s = now_s + NODES_EVERY_S
            nursery.start_soon(self._request, name="nsqadmin poll for nodes")
        while self._updating and not self.by_name:
            await self._updated.wait()

    async def _request(self) -> None:
        """Request the list of nodes; without an answer the known nodes stay."""
        try:
            result = await self._cluster.nodes()
            self._note(result.value, result.warnings)
        except AllFailed as failure:
            self.warnings, self.all_failed = list(map(str, failure.errors)), True
            self.warnings = self.warnings or [str(failure)]
        except Exception as error:
            # A bug.
            log.exception("request for the list of nodes failed")
            self.warnings = [f"{type(error).__name__}: {error}"]
        finally:
            self._updating = False
            self._updated.set()
            self._updated = trio.Event()

    def _note(self, producers: list[Producer], warnings: list[str]) -> None:
        self.warnings, self.all_failed = list(warnings), False
        if len(producers) > MAX_NODES:
            self.warnings.append(f"{len(producers)} nodes; only the first {MAX_NODES} are polled")
        listed = {producer.node: producer for producer in producers[:MAX_NODES]}
        for name, producer in listed.items():
            # The topics of a node are not needed here.
            producer.topics = producer.tombstones = None
            node = self.by_name.get(name)
            if node is None:
                node = self.by_name[name] = WatchedNode(producer)
            node.producer, node.registered = producer, True
        for name, node in list(self.by_name.items()):
            if name in listed or self._cluster.is_direct:
                continue
            # An nsqlookupd that did not answer may know the node.
            node.registered = node.registered and bool(warnings)
            if len(self.by_name) > 2 * MAX_NODES and not node.expected:
                del self.by_name[name]
