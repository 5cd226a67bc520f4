"""Invariants, looked at while nsqd runs: what a queue counts must add up.

Each check costs the same whatever a queue holds. One that fails is a defect of ours; nsqd goes on.
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

# All queues are checked that often.
_INTERVAL_S: Final = 10.0
# Queues that are checked in one turn: a fraction of a millisecond.
_CHECKS_MAX: Final = 100
# Queues whose broken invariants are kept to be shown.
_SHOWN_MAX: Final = 100


class CheckedClient(Protocol):
    """A client connection, as `Checks` sees it."""

    peer: str
    output: Output


class Checks:
    """The invariants of all topics and channels, and of what is written to each client.

    Attributes:
        broken: what does not add up, by the name of the queue or client; the first find of each.
        broken_count: of how many of them something was found since the start.
        checks_count: how many were looked at since the start.
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
        """Check all queues now and then, for ever."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self.check_all()

    async def check_all(self) -> None:
        """Check all queues now, some in each turn of the event loop."""
        for _ in self._steps():
            await trio.lowlevel.checkpoint()

    def _steps(self) -> Iterator[None]:
        """Yield where a turn ends."""
        checks = 0
        for topic in list(self._topics.values()):
            self._check(topic.name, topic.check())
            for core in topic.core.walk_channels():
                channel = topic.channels[core.name]
                self._check(f"{topic.name}:{channel.name}", channel.check())
                checks += 1
                if checks % _CHECKS_MAX == 0:
                    yield
            checks += 1
            if checks % _CHECKS_MAX == 0:
                yield
        for client in list(self._clients):
            self._check(f"client({client.peer})", client.output.check())
            checks += 1
            if checks % _CHECKS_MAX == 0:
                yield

    def _check(self, queue: str, text: str | None) -> None:
        self.checks_count += 1
        if text is None or queue in self.broken:
            return
        self.broken_count += 1
        if len(self.broken) < _SHOWN_MAX:
            self.broken[queue] = text
            log.error("NSQ: what %s counts does not add up: %s", queue, text)
