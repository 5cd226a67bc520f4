"""Invariants checked while nsqd runs: the counters of each queue must add up.

A check has constant cost. A failed check is a defect of nsqd, which goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import trio

from trionsq.broker.output import Output
from trionsq.broker.topic import Topic

__all__ = ["Checks"]

log = logging.getLogger("trionsq")

# Time between two checks of all queues.
_INTERVAL_S: Final = 10.0
# Queues checked in one turn: a fraction of a millisecond.
_MAX_CHECKS: Final = 100
# Queues whose broken invariants are kept for the debug page.
_MAX_SHOWN: Final = 100


class CheckedClient(Protocol):
    """A client connection, as `Checks` sees it."""

    peer: str
    output: Output


class Checks:
    """The invariants of all topics, channels and client outputs.

    Attributes:
        broken: the first broken invariant of each queue or client, by its name.
        broken_count: queues and clients with a broken invariant since the start.
        checks_count: checks since the start.
    """

    def __init__(self, topics: Mapping[str, Topic], clients: Iterable[CheckedClient]) -> None:
        self.broken: dict[str, str] = {}
        self.broken_count = 0
        self.checks_count = 0
        self._topics = topics
        self._clients = clients

    def __repr__(self) -> str:
        return f"<Checks {self.checks_count} made, {self.broken_count} failed>"

    async def run(self) -> None:
        """Check all queues every 10 seconds, forever."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self.check_all()

    async def check_all(self) -> None:
        """Check all queues now, in turns of the event loop."""
        for _ in self._steps():
            await trio.lowlevel.checkpoint()

    def _steps(self) -> Iterator[None]:
        """Check all queues; yields where a turn ends."""
        checks = 0
        for topic in list(self._topics.values()):
            self._check(topic.name, topic.check())
            for core in topic.core.walk_channels():
                channel = topic.channels[core.name]
                self._check(f"{topic.name}:{channel.name}", channel.check())
                checks += 1
                if checks % _MAX_CHECKS == 0:
                    yield
            checks += 1
            if checks % _MAX_CHECKS == 0:
                yield
        for client in list(self._clients):
            self._check(f"client({client.peer})", client.output.check())
            checks += 1
            if checks % _MAX_CHECKS == 0:
                yield

    def _check(self, queue: str, text: str | None) -> None:
        self.checks_count += 1
        if text is None or queue in self.broken:
            return
        self.broken_count += 1
        if len(self.broken) < _MAX_SHOWN:
            self.broken[queue] = text
            log.error("NSQ: counters of %s do not add up: %s", queue, text)
