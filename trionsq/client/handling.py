"""Consuming by a handler that is called with each message: `trionsq.client.Consumer.run`.

Spec: client, section 5 (handlers).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from trionsq.client.batches import Messages
from trionsq.client.message import Message

__all__ = ["Handler", "handle_all"]

log = logging.getLogger("trionsq.client")

Handler: TypeAlias = Callable[[Message], Awaitable[object]]


async def handle_all(messages: Messages, handler: Handler, concurrency: int, name: str) -> None:
    """Call the handler with each message, in so many tasks, and answer for it, to the last one.

    ``name`` is the consumer's, for the log. Cancelling gives back what is being handled.
    """
    turn = trio.Lock()
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(_handle, messages, handler, turn, name)


async def _handle(messages: Messages, handler: Handler, turn: trio.Lock, name: str) -> None:
    while True:
        message = messages.take_nowait()
        if message is None:
            try:
                # One task waits, or the others would not see that a batch came.
                async with turn:
                    message = await anext(messages)
            except StopAsyncIteration:
                return
        try:
            await handler(message)
        except Exception:
            log.exception("%s: a handler failed", name)
            if message.auto_response:
                message.requeue()
        except BaseException:
            message.requeue(0, backoff=False)
            raise
        else:
            if message.auto_response:
                message.finish()
