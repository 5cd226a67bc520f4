"""What middleware decides, without waiting: the async one and the blocking one share it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias

__all__ = [
    "AnyMessage",
    "HandlerContext",
    "HandlerPace",
    "RecentKeys",
    "RetrySchedule",
    "is_handled",
]
__all__ += ["logging_context"]


class AnyMessage(Protocol):
    """A message of the async client or of the blocking one; their docstrings describe it."""

    body: Any

    @property
    def id(self) -> bytes: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def nsqd_address(self) -> str: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def was_finished(self) -> bool: ...
    @property
    def auto_response(self) -> bool: ...


HandlerContext: TypeAlias = Callable[[AnyMessage], AbstractContextManager[object]]
"""Makes the context manager in which a message is handled."""


class RetrySchedule:
    """The delays before the second attempt, the third, and so on."""

    def __init__(self, delays_s: Sequence[float]) -> None:
        """Raises ValueError: a negative delay, or none at all."""
        self._delays_s = tuple(delays_s)
        if any(not delay_s >= 0 for delay_s in self._delays_s):
            raise ValueError("a delay must be at least 0")

    def delay_s(self, attempts: int) -> float | None:
        """The delay after so many attempts; None: there is no further one."""
        return self._delays_s[attempts - 1] if attempts <= len(self._delays_s) else None


class HandlerPace:
    """So many handlers a second, and a burst after a pause."""

    def __init__(self, per_s: float, burst: int) -> None:
        """Raises ValueError: less than one."""
        if not per_s > 0 or burst < 1:
            raise ValueError("per_s must be more than 0, and burst at least 1")
        self._interval_s = 1 / per_s
        self._burst_s = burst / per_s
        # When all that have begun, or wait, would be through at this rate.
        self._busy_until_s = float("-inf")

    def delay_s(self, now_s: float) -> float:
        """Enter the next handler; return how long it has to wait, which may be negative."""
        self._busy_until_s = max(self._busy_until_s, now_s) + self._interval_s
        return self._busy_until_s - self._burst_s - now_s


class RecentKeys:
    """The last keys, up to a number and an age."""

    def __init__(self, size: int, ttl_s: float) -> None:
        """Raises ValueError: a size below 1."""
        if size < 1:
            raise ValueError("size must be at least 1")
        self._size, self._ttl_s = size, ttl_s
        self._keys: OrderedDict[Hashable, float] = OrderedDict()

    def has(self, key: Hashable, now_s: float) -> bool:
        """Whether the key was added, and is not forgotten."""
        while self._keys and next(iter(self._keys.values())) + self._ttl_s <= now_s:
            self._keys.popitem(last=False)
        return key in self._keys

    def add(self, key: Hashable, now_s: float) -> None:
        """Add a key; the oldest is forgotten if there are too many."""
        self._keys.pop(key, None)
        self._keys[key] = now_s
        if len(self._keys) > self._size:
            self._keys.popitem(last=False)


def is_handled(message: AnyMessage) -> bool:
    """Whether the message is finished, or will be, after its handler has returned.

    One that was requeued comes again; one without ``auto_response`` is in the hands of others.
    """
    return message.was_finished or (message.is_open and message.auto_response)


def logging_context(name: str, logger: logging.Logger | None, level: int) -> HandlerContext:
    """Log how the handling ended: see `trionsq.client.middleware.log_messages`."""
    target = logger or logging.getLogger("trionsq.client.messages")

    def note(message: AnyMessage, begun_s: float, outcome: str) -> None:
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

    @contextmanager
    def logged(message: AnyMessage) -> Iterator[None]:
        begun_s = time.perf_counter()
        try:
            yield
        except Exception:
            note(message, begun_s, "failed")
            raise
        except BaseException:
            note(message, begun_s, "cancelled")
            raise
        note(message, begun_s, "handled")

    return logged
