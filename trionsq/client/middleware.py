"""Middleware: what many handlers need around them.

A middleware takes a handler and returns one. `compose` puts several around a handler; the first is
the outermost::

    handler = compose(
        handle,
        log_messages("orders:billing"),
        retry([1, 10, 60]),
        time_limit(20),
    )
    await consumer.run(handler, concurrency=10)

The order matters: a time limit inside of `retry` is a failure that is retried; outside of
`rate_limit` it counts the waiting as well. `trionsq.client.metrics` has Prometheus metrics,
`trionsq.client.tracing` spans of OpenTelemetry, and `trionsq.client.blocking.middleware` the same
for handlers in threads.

All of them work under trio and asyncio. A cancellation passes through: the message goes back to
nsqd, as without them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import anyio

from trionsq.client.decisions import (
    HandlerContext,
    HandlerPace,
    RecentKeys,
    RetrySchedule,
    is_handled,
    logging_context,
)
from trionsq.client.handling import Handler
from trionsq.client.message import Message

__all__ = [
    "Middleware",
    "around",
    "compose",
    "deduplicate",
    "log_messages",
    "rate_limit",
    "retry",
    "time_limit",
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
        context: is called with the message; returns a context manager, not an async one.
    """

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def surrounded(message: Message[M]) -> None:
            with context(message):
                await handler(message)

        return surrounded

    return wrap


def time_limit(seconds: float) -> Middleware:
    """Cancel a handler that takes longer, and raise TimeoutError in its place.

    It should be less than nsqd's message timeout, which delivers the message again. A handler that
    blocks the event loop or shields itself is not stopped.

    Args:
        seconds: more than 0.
    """
    if not seconds > 0:
        raise ValueError("the time limit must be more than 0")

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def limited(message: Message[M]) -> None:
            with anyio.fail_after(seconds):
                await handler(message)

        return limited

    return wrap


def retry(
    delays_s: Sequence[float],
    *,
    on: type[Exception] | tuple[type[Exception], ...] = Exception,
    on_exhausted: Callable[[Message[Any]], Awaitable[object]] | None = None,
    backoff: bool = False,
) -> Middleware:
    """Requeue a message whose handler fails, each time with the next delay.

    The delays are counted by ``message.attempts``, so restarts and other consumers count as well.
    nsqd keeps the message meanwhile, and caps a delay at its --max-req-timeout. The consumer's
    max_attempts should be larger than the number of delays, or 0.

    Args:
        delays_s: seconds before the second attempt, the third, and so on.
        on: the exceptions that are worth another attempt; others are raised.
        on_exhausted: awaited after the last attempt has failed; then the message is finished.
            Without it, the exception is raised, and the consumer requeues the message.
        backoff: whether the consumer slows down, as it does when an exception is raised.
    """
    schedule = RetrySchedule(delays_s)

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def retried(message: Message[M]) -> None:
            try:
                await handler(message)
            except on:
                if (delay_s := schedule.delay_s(message.attempts)) is not None:
                    message.requeue(delay_s, backoff=backoff)
                elif on_exhausted is None:
                    raise
                else:
                    await on_exhausted(message)

        return retried

    return wrap


def rate_limit(per_s: float, *, burst: int = 1) -> Middleware:
    """Begin at most this many handlers a second, in the order in which the messages came.

    A message waits in this process while nsqd's message timeout runs: max_in_flight / per_s should
    be well below it. The limit is for all handlers that get the same middleware.

    Args:
        per_s: handlers a second, more than 0.
        burst: how many may begin at once after a pause, at least 1.
    """
    pace = HandlerPace(per_s, burst)

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def limited(message: Message[M]) -> None:
            if (wait_s := pace.delay_s(anyio.current_time())) > 0:
                await anyio.sleep(wait_s)
            await handler(message)

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

    A key is remembered when its handler has returned and the message is finished, in the memory of
    this process; not if the handler leaves the answer to others (``auto_response``). A message
    whose key is being handled waits for the end; if that was a failure, it is handled itself.

    Args:
        key: of a message; by default its nsqd and id, so that a message which nsqd delivers again
            after a late FIN is not handled again.
        size: keys to remember; the oldest is forgotten first.
        ttl_s: for how many seconds a key is remembered.
    """
    done = RecentKeys(size, ttl_s)
    busy: dict[Hashable, anyio.Event] = {}

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def once(message: Message[M]) -> None:
            found = key(message)
            while (event := busy.get(found)) is not None:
                await event.wait()
            if done.has(found, anyio.current_time()):
                return
            ended = busy[found] = anyio.Event()
            try:
                await handler(message)
                if is_handled(message):
                    done.add(found, anyio.current_time())
            finally:
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

    The record's attributes ``nsq_name``, ``nsq_id``, ``nsq_attempts``, ``nsq_nsqd``,
    ``nsq_outcome`` (``handled``, ``failed``, ``cancelled``), ``nsq_duration_s`` and
    ``nsq_age_s`` (since it was published) are there for a formatter to use; the text has the same.
    Failures are logged as warnings. Bodies are not logged.

    Args:
        name: of the consumer, for instance ``orders:billing``.
        logger: where; by default ``trionsq.client.messages``.
        level: of messages that were handled.
    """
    return around(logging_context(name, logger, level))
