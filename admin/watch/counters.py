"""Rates from the counters of one node.

Counters begin anew when an nsqd restarts, or when a topic or channel was deleted and made again;
then what they show was counted since, so no rate is ever negative or the sum of a lifetime. After
a time without an answer the rate is the mean of that time, so nothing jumps when a node is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["Counters", "Rates"]

Key: TypeAlias = tuple[str, str]
Rates: TypeAlias = tuple[float, float, float, float]
"""In, out, requeue and timeout, in messages per second."""

_Counted: TypeAlias = tuple[int, int, int, int]
_NONE: _Counted = (0, 0, 0, 0)


class Counters:
    """The counters of a node at its last answer, by topic and channel (``""``: the topic itself).

    Use: `begin`, then `rates` for each, then `end`.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, _Counted]] = {}
        self._now: dict[str, dict[str, _Counted]] = {}
        self._last_s: float | None = None
        self._now_s = 0.0
        self._elapsed_s = 0.0
        self._start_time = 0
        self._restarted = False

    @property
    def known(self) -> bool:
        """There are rates: this answer is not the first."""
        return self._elapsed_s > 0

    @property
    def topics(self) -> Mapping[str, object]:
        """The topics that the node had at its last answer."""
        return self._last

    def held(self, topic: str) -> Mapping[str, int]:
        """How many messages each channel of a topic held at the last answer.

        Waiting, in flight and deferred; ``""`` is the topic itself. Empty if it was not there.
        """
        return {name: counted[1] for name, counted in self._last.get(topic, {}).items()}

    def begin(self, now_s: float, start_time: int) -> None:
        """An answer has come at ``now_s`` (of a clock that never goes back)."""
        self._restarted = self._last_s is not None and start_time != self._start_time
        self._start_time = start_time
        self._now_s = now_s
        self._elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s

    def rates(
        self, key: Key, messages: int, held: int, requeues: int = 0, timeouts: int = 0
    ) -> Rates | None:
        """Rates of a topic or channel since the last answer; None if there was none.

        ``held`` is what is inside: waiting, in flight or deferred.
        """
        messages, requeues, timeouts = max(0, messages), max(0, requeues), max(0, timeouts)
        topic, channel = key
        self._now.setdefault(topic, {})[channel] = (messages, held, requeues, timeouts)
        elapsed_s = self._elapsed_s
        if elapsed_s <= 0:
            return None
        last = self._last.get(topic)
        was = _NONE if last is None else last.get(channel, _NONE)
        was_messages, was_held, was_requeues, was_timeouts = was
        if self._restarted or messages < was_messages:
            # What it held before may have been lost, so nobody knows how much of it went out.
            return messages / elapsed_s, 0.0, requeues / elapsed_s, timeouts / elapsed_s
        came = messages - was_messages
        return (
            came / elapsed_s,
            max(0, came + was_held - held) / elapsed_s,
            max(0, requeues - was_requeues) / elapsed_s,
            max(0, timeouts - was_timeouts) / elapsed_s,
        )

    def end(self) -> None:
        """All of the answer was seen; what was not in it is gone."""
        self._last, self._now = self._now, {}
        self._last_s = self._now_s
