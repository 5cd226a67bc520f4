"""Middleware for handlers in threads: see `trionsq.client.middleware`, which has the async ones.

::

    handler = compose(handle, log_messages("orders:billing"), retry([1, 10, 60]))
    consumer.run(handler, concurrency=10)

There is no time limit among them, as nothing can end a thread: give the libraries that a handler
calls their own. `around` takes the context manager of others, for instance
``around(lambda message: transaction.atomic())`` in Django.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from trionsq.client.blocking.consumer import Handler
from trionsq.client.blocking.message import Message
from trionsq.client.decisions import (
    HandlerContext,
    HandlerPace,
    RecentKeys,
    RetrySchedule,
    is_handled,
    logging_context,
)

__all__ = [
    "Middleware",
    "around",
    "compose",
    "deduplicate",
    "log_messages",
    "rate_limit",
    "retry",
]

M = TypeVar("M")
"""What the messages of a handler have as body."""


class Middleware(Protocol):
    """A function that takes a handler and returns one for the same messages."""

    def __call__(self, handler: Handler[M], /) -> Handler[M]: ...


def compose(handler: Handler[M], *middlewares: Middleware) -> Handler[M]:
    """The handler inside of all of these; the first is the outermost."""
    for middleware in reversed(middlewares):
        handler = middleware(handler)
    return handler


def around(context: HandlerContext) -> Middleware:
    """Run the handler in a context manager, which is made for each message.

    Args:
        context: is called with the message; returns a context manager.
    """

    def wrap(handler: Handler[M]) -> Handler[M]:
        def surrounded(message: Message[M]) -> None:
            with context(message):
                handler(message)

        return surrounded

    return wrap


def retry(
    delays_s: Sequence[float],
    *,
    on: type[Exception] | tuple[type[Exception], ...] = Exception,
    on_exhausted: Callable[[Message[Any]], object] | None = None,
    backoff: bool = False,
) -> Middleware:
    """Requeue a message whose handler fails, each time with the next delay.

    The arguments are those of `trionsq.client.middleware.retry`; ``on_exhausted`` is called.

    Raises:
        ValueError: a negative delay.
    """
    schedule = RetrySchedule(delays_s)

    def wrap(handler: Handler[M]) -> Handler[M]:
        def retried(message: Message[M]) -> None:
            try:
                handler(message)
            except on:
                if (delay_s := schedule.delay_s(message.attempts)) is not None:
                    message.requeue(delay_s, backoff=backoff)
                elif on_exhausted is None:
                    raise
                else:
                    on_exhausted(message)

        return retried

    return wrap


def rate_limit(per_s: float, *, burst: int = 1) -> Middleware:
    """Begin at most this many handlers a second; a thread waits with its message meanwhile.

    The arguments are those of `trionsq.client.middleware.rate_limit`.

    Raises:
        ValueError: per_s is not more than 0, or burst below 1.
    """
    pace, lock = HandlerPace(per_s, burst), threading.Lock()

    def wrap(handler: Handler[M]) -> Handler[M]:
        def limited(message: Message[M]) -> None:
            with lock:
                wait_s = pace.delay_s(time.monotonic())
            if wait_s > 0:
                time.sleep(wait_s)
            handler(message)

        return limited

    return wrap


def _identity(message: Message[Any]) -> Hashable:
    return message.nsqd_address, message.id


def deduplicate(
    key: Callable[[Message[Any]], Hashable] = _identity,
    *,
    size: int = 10_000,
    ttl_s: float = 3600.0,
) -> Middleware:
    """Call the handler once for each key: other messages of that key are finished without it.

    The arguments and the rules are those of `trionsq.client.middleware.deduplicate`. While a key is
    handled, the threads of its other messages wait.

    Raises:
        ValueError: size is below 1.
    """
    done, lock = RecentKeys(size, ttl_s), threading.Lock()
    busy: dict[Hashable, threading.Event] = {}

    def begin(found: Hashable) -> threading.Event | None:
        """Claim the key, and wait for whoever has it; None: it is done."""
        own = threading.Event()
        while True:
            with lock:
                if (other := busy.get(found)) is None:
                    if done.has(found, time.monotonic()):
                        return None
                    busy[found] = own
                    return own
            other.wait()

    def wrap(handler: Handler[M]) -> Handler[M]:
        def once(message: Message[M]) -> None:
            found = key(message)
            ended = begin(found)
            if ended is None:
                return
            is_done = False
            try:
                handler(message)
                is_done = is_handled(message)
            finally:
                with lock:
                    if is_done:
                        done.add(found, time.monotonic())
                    del busy[found]
                ended.set()

        return once

    return wrap


def log_messages(
    name: str,
    *,
    logger: logging.Logger | None = None,
    level: int = logging.INFO,
) -> Middleware:
    """Log each handled message, with fields for structured logs.

    The arguments and the fields are those of `trionsq.client.middleware.log_messages`.
    """
    return around(logging_context(name, logger, level))
