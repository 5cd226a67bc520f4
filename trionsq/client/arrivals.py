"""The batches that wait for the program."""

from __future__ import annotations

from collections import deque

from trionsq.client.errors import StoppedError
from trionsq.client.message import Batch
from trionsq.transports.runtime import Event, checkpoint, new_event

__all__ = ["Arrivals"]


class Arrivals:
    """Batches in the order in which they came, each with whether it had more than max_attempts.

    RDY bounds their number: see `trionsq.client.subscribed_connection`. Any number of tasks may
    take them.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[Batch, bool]] = deque()
        self._waiting: deque[Event] = deque()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Arrivals {len(self._batches)} batches, {len(self._waiting)} tasks wait>"

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: Batch, *, is_given_up: bool) -> None:
        """Add a batch."""
        self._batches.append((batch, is_given_up))
        self._wake_one()

    def close(self) -> None:
        """Add no more: `take` raises StoppedError once all are taken. May be called again."""
        self._is_closed = True
        while self._waiting:
            self._wake_one()

    def drop_lost(self) -> None:
        """Drop the batches of ended connections: nsqd delivers their messages again."""
        self._batches = deque(entry for entry in self._batches if entry[0].is_answerable)

    def drop_all(self) -> None:
        """Drop all batches."""
        self._batches.clear()

    async def take(self) -> tuple[Batch, bool]:
        """Wait for the next batch and remove it. A checkpoint; cancelling loses nothing.

        Raises:
            StoppedError: closed, and no batch is left.
        """
        if self._batches or self._is_closed:
            await checkpoint()
        while not self._batches:
            if self._is_closed:
                raise StoppedError("the consumer was stopped")
            await self._wait()
        return self._batches.popleft()

    async def _wait(self) -> None:
        event = new_event()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self._wake_one()  # another task has to take what this one was woken for
            else:
                self._waiting.remove(event)
            raise

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
