"""What ``async for`` goes over: batches, or the messages in them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

import trio

from trionsq.client.errors import StoppedError
from trionsq.client.message import Batch, Message

__all__ = ["BatchSource", "Batches", "Messages"]

# A loop over messages that awaits nothing lets other tasks run at least so often.
_TURN_S: Final = 0.01


class BatchSource(Protocol):
    """Where they come from: the consumer."""

    async def next_batch(self) -> Batch:
        """The next one; raises StoppedError after the last."""


class Batches:
    """See `trionsq.client.Consumer.batches`."""

    def __init__(self, source: BatchSource, *, finish: bool) -> None:
        self._source = source
        self._finish = finish
        self._last: Batch | None = None

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        """Each step is a checkpoint."""
        if self._finish and self._last is not None:
            self._last.finish()
        self._last = None
        try:
            self._last = batch = await self._source.next_batch()
        except StoppedError:
            raise StopAsyncIteration from None
        return batch


class Messages:
    """The messages of all batches. Several tasks may take from it.

    A checkpoint for each batch, and whenever there was none for 10 ms.
    """

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._waiting: deque[tuple[Batch, Iterator[Message]]] = deque()
        self._turn_ends_s = 0.0

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Message:
        message = self.take_nowait()
        while message is None:
            if self._waiting:
                await trio.lowlevel.checkpoint()
            else:
                try:
                    batch = await self._source.next_batch()
                except StoppedError:
                    raise StopAsyncIteration from None
                self._waiting.append((batch, iter(batch)))
            self._turn_ends_s = time.perf_counter() + _TURN_S
            message = self.take_nowait()
        return message

    def take_nowait(self) -> Message | None:
        """The next message if there is one and no checkpoint is due."""
        if time.perf_counter() > self._turn_ends_s:
            return None
        while self._waiting:
            batch, messages = self._waiting[0]
            # After its connection has broken, the rest of a batch comes again anyway.
            if batch.is_answerable:
                for message in messages:
                    if message.is_open:
                        return message
            self._waiting.popleft()
        return None
