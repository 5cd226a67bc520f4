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
`trionsq.client.tracing` spans of OpenTelemetry.

All of them work under trio and asyncio. A cancellation passes through: the message goes back to
nsqd, as without them.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Protocol, TypeVar

import anyio

from trionsq.client.handling import Handler
from trionsq.client.message import Message

__all__ = [
    "Middleware",
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
    schedule = tuple(delays_s)
    if any(not delay_s >= 0 for delay_s in schedule):
        raise ValueError("a delay must be at least 0")

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def retried(message: Message[M]) -> None:
            try:
                await handler(message)
            except on:
                if message.attempts <= len(schedule):
                    message.requeue(schedule[message.attempts - 1], backoff=backoff)
                    return
                if on_exhausted is None:
                    raise
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
    if not per_s > 0 or burst < 1:
        raise ValueError("per_s must be more than 0, and burst at least 1")
    interval_s: Final = 1 / per_s
    # When all that have begun, or wait, would be through at this rate.
    busy_until_s = float("-inf")

    def delay_s() -> float:
        nonlocal busy_until_s
        now_s = anyio.current_time()
        busy_until_s = max(busy_until_s, now_s) + interval_s
        return busy_until_s - burst * interval_s - now_s

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def limited(message: Message[M]) -> None:
            if (wait_s := delay_s()) > 0:
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
    if size < 1:
        raise ValueError("size must be at least 1")
    done: OrderedDict[Hashable, float] = OrderedDict()
    busy: dict[Hashable, anyio.Event] = {}

    def is_done(found: Hashable) -> bool:
        now_s = anyio.current_time()
        while done and next(iter(done.values())) + ttl_s <= now_s:
            done.popitem(last=False)
        return found in done

    def note_done(found: Hashable) -> None:
        done.pop(found, None)
        done[found] = anyio.current_time()
        if len(done) > size:
            done.popitem(last=False)

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def once(message: Message[M]) -> None:
            found = key(message)
            while (event := busy.get(found)) is not None:
                await event.wait()
            if is_done(found):
                return
            ended = busy[found] = anyio.Event()
            try:
                await handler(message)
                # One that was requeued, by `retry` for instance, comes again to be handled.
                if message.was_finished or (message.is_open and message.auto_response):
                    note_done(found)
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
    target = logger or logging.getLogger("trionsq.client.messages")

    def note(message: Message[Any], begun_s: float, outcome: str) -> None:
        fields = {
            "nsq_name": name,
            "nsq_id": message.id.decode(),
            "nsq_attempts": message.attempts,
            "nsq_nsqd": message.nsqd_address,
            "nsq_outcome": outcome,
            "nsq_duration_s": round(time.perf_counter() - begun_s, 6),
            "nsq_age_s": round(time.time() - message.timestamp_ns / 1e9, 3),
        }
        words = " ".join(f"{field.removeprefix('nsq_')}={fields[field]}" for field in fields)
        target.log(logging.WARNING if outcome == "failed" else level, "%s", words, extra=fields)

    def wrap(handler: Handler[M]) -> Handler[M]:
        async def logged(message: Message[M]) -> None:
            begun_s = time.perf_counter()
            try:
                await handler(message)
            except Exception:
                note(message, begun_s, "failed")
                raise
            except BaseException:
                note(message, begun_s, "cancelled")
                raise
            note(message, begun_s, "handled")

        return logged

    return wrap
