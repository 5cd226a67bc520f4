"""Messages that a handler never sees: delivered too often, or not to be decoded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from trionsq.client.message import Batch, Message
from trionsq.transports.runtime import checkpoint

__all__ = ["GiveUp", "Undeliverable"]

log = logging.getLogger("trionsq.client")

GiveUp: TypeAlias = Callable[[Message], Awaitable[object]]

# In one turn of the event loop.
_MAX_A_TURN: Final = 128


class Undeliverable:
    """Hands such messages to ``on_give_up``, if there is one, and finishes them.

    Attributes:
        finished: how many.
    """

    def __init__(self, name: str, on_give_up: GiveUp | None) -> None:
        """Begin with none.

        Args:
            name: the consumer's, for the log.
            on_give_up: awaited with each message. If it raises, the message is requeued.
        """
        self.finished = 0
        self._name = name
        self._on_give_up = on_give_up

    async def give_up(self, batch: Batch) -> None:
        """Give up the messages of a batch. A cancellation returns the open ones to nsqd."""
        try:
            for number, message in enumerate(batch, 1):
                # Each message is a line of the log, and on_give_up need not be a checkpoint.
                if number % _MAX_A_TURN == 0 or number == len(batch):
                    await checkpoint()
                await self._give_up_one(message, "")
        except BaseException:
            batch.requeue(0, backoff=False)
            raise

    async def give_up_undecodable(self, message: Message, error: Exception) -> None:
        """Give up a message whose body the codec refuses; a cancellation returns it to nsqd."""
        try:
            await self._give_up_one(message, f", which can't be decoded: {error!r}")
        except BaseException:
            message.requeue(0, backoff=False)
            raise

    async def _give_up_one(self, message: Message, why: str) -> None:
        try:
            if self._on_give_up is not None:
                await self._on_give_up(message)
        except Exception:
            log.exception("%s: on_give_up failed", self._name)
            message.requeue()
        else:
            log.warning("%s: giving up %r%s", self._name, message, why)
            self.finished += message.finish()
