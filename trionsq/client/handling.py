"""Calling a handler with each message, and answering for it.

Spec: client, section 5 (handlers).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio

from trionsq.client.codecs import T
from trionsq.client.message import Message, MessageIterator

__all__ = ["Handler", "handle_messages"]

log = logging.getLogger("trionsq.client")

Handler: TypeAlias = Callable[[Message[T]], Awaitable[object]]


async def handle_messages(
    messages: MessageIterator[T], handler: Handler[T], concurrency: int, name: str
) -> None:
    """Call the handler with each message, in ``concurrency`` tasks, and answer for it.

    Returns after the last message. Cancelling returns the messages in progress to nsqd. ``name``
    is the consumer's, for the log.
    """
    turn = anyio.Lock()
    async with anyio.create_task_group() as tasks:
        for _ in range(concurrency):
            tasks.start_soon(_handle_in_turn, messages, handler, turn, name)


async def _handle_in_turn(
    messages: MessageIterator[T], handler: Handler[T], turn: anyio.Lock, name: str
) -> None:
    while True:
        message = messages.next_message_nowait()
        if message is None:
            try:
                # Only one task waits for a batch; the others wait for the lock, and then find the
                # messages of that batch.
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
