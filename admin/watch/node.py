"""The memory of the poller about one node: its last answer, and its counters, which give rates.

Counters restart at zero when an nsqd restarts, or when a topic or channel was deleted and created
again. The rate is then computed from the new value alone, so it is never negative and never the
sum of a lifetime. After a time without an answer the rate is the mean of that time, so rates do not
jump when a node is back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from admin.cluster.shapes import Producer
from admin.upstream import UpstreamError
from admin.watch.requests import NodeMetrics
from admin.watch.snapshot import NodeRow

__all__ = ["Ages", "Counters", "Rates", "WatchedNode"]

Ages: TypeAlias = Mapping[tuple[str, str], float]
"""Age of the oldest message in seconds, by topic and channel (``""``: the topic's own queue)."""

Key: TypeAlias = tuple[str, str]
Rates: TypeAlias = tuple[float, float, float, float]
"""In, out, requeue and timeout, in messages per second."""

_Counted: TypeAlias = tuple[int, int, int, int]
_NONE: _Counted = (0, 0, 0, 0)


class Counters:
    """The counters of a node at its last answer, by topic and channel (``""``: the topic itself).

    Use: `begin_answer`, then `rates` for each, then `end_answer`.
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
        """Whether there are rates: this answer is not the first."""
        return self._elapsed_s > 0

    @property
    def topics(self) -> Mapping[str, object]:
        """The topics that the node had at its last answer."""
        return self._last

    def held(self, topic: str) -> Mapping[str, int]:
        """The messages of each channel of a topic at the last answer: waiting, in flight, deferred.

        ``""`` is the topic itself. Empty if the node did not have the topic.
        """
        return {name: counted[1] for name, counted in self._last.get(topic, {}).items()}

    def begin_answer(self, now_s: float, start_time: int) -> None:
        """Begin an answer that was received at ``now_s`` (a clock that never goes back)."""
        self._restarted = self._last_s is not None and start_time != self._start_time
        self._start_time = start_time
        self._now_s = now_s
        self._elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s

    def rates(
        self, key: Key, messages: int, held: int, requeues: int = 0, timeouts: int = 0
    ) -> Rates | None:
        """Rates of a topic or channel since the last answer; None if there was none.

        ``held`` are the messages inside: waiting, in flight or deferred.
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
            # Messages that it held before may be lost, so the rate out is unknown: 0.
            return messages / elapsed_s, 0.0, requeues / elapsed_s, timeouts / elapsed_s
        came = messages - was_messages
        return (
            came / elapsed_s,
            max(0, came + was_held - held) / elapsed_s,
            max(0, requeues - was_requeues) / elapsed_s,
            max(0, timeouts - was_timeouts) / elapsed_s,
        )

    def end_answer(self) -> None:
        """End the answer; topics and channels that were not in it are forgotten."""
        self._last, self._now = self._now, {}
        self._last_s = self._now_s


@dataclass(slots=True, eq=False)
class WatchedNode:
    """The state of a node between polls. Times are by trio's clock."""

    producer: Producer
    listed_s: float
    registered: bool = True
    counters: Counters = field(default_factory=Counters)
    answer: tuple[NodeMetrics, float] | UpstreamError | None = None
    asked_s: float | None = None
    silent: bool = False
    error: str = ""
    answered_wall_s: float | None = None
    start_time: int = 0
    answered: NodeRow | None = None
    ages: Ages | None = None
    ages_due_s: float = -math.inf
    requests_ages: bool = False

    def row(self) -> NodeRow:
        return NodeRow(
            node=self.producer.node,
            hostname=self.producer.hostname,
            tcp_port=self.producer.tcp_port,
            version=self.producer.version,
            out_of_date=self.producer.out_of_date,
            registered=self.registered,
            answered_s=self.answered_wall_s,
        )

    def silent_row(self, error: str) -> NodeRow:
        """A row with the values of the last answer, if there was one, and the error of now."""
        row = self.row()
        if self.answered is not None:
            row = msgspec.structs.replace(
                self.answered, registered=self.registered, out_of_date=row.out_of_date
            )
            row.rate_in = row.rate_out = row.rate_requeue = row.rate_timeout = None
        row.up, row.nodes, row.error = False, 0, error
        return row
