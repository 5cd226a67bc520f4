"""An nsqd whose topics say when messages are safe: a test ends their rounds by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.core.helpers import MemoryBackend, RoundBackend
from trionsq.broker.broker import Broker
from trionsq.testing.memory import nsqd_in_memory

__all__ = ["Rounds", "nsqd_with_rounds", "use_rounds"]


class Rounds(dict[str, RoundBackend]):
    """The backends of the topics, by name."""

    def finish(self, topic: str = "t", error: str | None = None, place: int = 0) -> None:
        """End one of the rounds of a topic."""
        self[topic].finish(error, place)

    def finish_all(self) -> None:
        for backend in self.values():
            while backend.rounds:
                backend.finish()

    @property
    def open_count(self) -> int:
        """Rounds that have not ended."""
        return sum(len(backend.rounds) for backend in self.values())


def use_rounds(broker: Broker, new_backend: Callable[[], RoundBackend] = RoundBackend) -> Rounds:
    """Give all topics that are made from now on a backend with rounds, and their channels one
    that has what its topic publishes."""
    rounds = Rounds()

    def backend(name: str, queue: str) -> MemoryBackend:
        if ":" in queue:
            return MemoryBackend(has_published=True)
        return rounds.setdefault(queue, new_backend())

    broker.registry._backend = backend  # type: ignore[method-assign]
    return rounds


@asynccontextmanager
async def nsqd_with_rounds(
    new_backend: Callable[[], RoundBackend] = RoundBackend, **options: Any
) -> AsyncIterator[tuple[Broker, Rounds]]:
    """An nsqd in memory; rounds that are open at the end are ended then."""
    async with nsqd_in_memory(**options) as broker:
        rounds = use_rounds(broker, new_backend)
        yield broker, rounds
        rounds.finish_all()
