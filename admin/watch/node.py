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
from typing import NamedTuple, TypeAlias

import msgspec

from admin.cluster.shapes import Producer
from admin.upstream import UpstreamError
from admin.watch.requests import NodeMetrics
from admin.watch.snapshot import NodeRow, Restart
from admin.watch.vitals import Ages, Vitals

__all__ = ["Counted", "Counters", "Rates", "WatchedNode", "total_held"]

Key: TypeAlias = tuple[str, str]


class Rates(NamedTuple):
    """Messages per second.

    ``finished`` are those that clients finished, ``removed`` the others that left: emptied,
    dropped, expired or given up. An original nsqd does not tell them apart: then ``finished`` has
    all that left, and ``removed`` is None.
    """

    came: float
    finished: float
    requeued: float
    timed_out: float
    removed: float | None = None


class Counted(NamedTuple):
    """The figures of a topic or channel.

    ``held``: messages that wait, are in flight or deferred. ``finished`` is -1 if the node does not
    tell it. The last four are not used for rates: pages show them if the node is silent.
    """

    messages: int = 0
    held: int = 0
    requeues: int = 0
    timeouts: int = 0
    finished: int = -1
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    clients: int = 0


_NONE = Counted()


def total_held(figures: Mapping[str, Counted]) -> int:
    """The messages of a topic on a node: in its queue and its channels."""
    return sum(each.held for each in figures.values())


class Counters:
    """The counters of a node at its last answer, by topic and channel (``""``: the topic itself).

    Use: `begin_answer`, then `rates` for each, then `end_answer`.
    """

    def __init__(
        self, last: dict[str, dict[str, Counted]] | None = None, start_time: int = 0
    ) -> None:
        """``last`` and ``start_time`` are of an answer that an earlier nsqadmin got."""
        self._last: dict[str, dict[str, Counted]] = {} if last is None else last
        self._now: dict[str, dict[str, Counted]] = {}
        self._last_s: float | None = None
        self._now_s = 0.0
        self._elapsed_s = 0.0
        self._start_time = start_time
        self._restarted = False

    @property
    def known(self) -> bool:
        """Whether there are rates: this answer is not the first."""
        return self._elapsed_s > 0

    @property
    def topics(self) -> Mapping[str, Mapping[str, Counted]]:
        """The topics that the node had at its last answer. It never changes; it is replaced."""
        return self._last

    def held(self, topic: str) -> Mapping[str, int]:
        """The messages of each channel of a topic at the last answer: waiting, in flight, deferred.

        ``""`` is the topic itself. Empty if the node did not have the topic.
        """
        return {name: counted.held for name, counted in self._last.get(topic, {}).items()}

    def begin_answer(self, now_s: float, start_time: int) -> None:
        """Begin an answer that was received at ``now_s`` (a clock that never goes back)."""
        self._restarted = self._start_time != 0 and start_time != self._start_time
        self._start_time = start_time
        self._now_s = now_s
        self._elapsed_s = 0.0 if self._last_s is None else now_s - self._last_s

    def rates(self, key: Key, now: Counted) -> Rates | None:
        """Rates of a topic or channel since the last answer; None if there was none."""
        if now.messages < 0 or now.requeues < 0 or now.timeouts < 0:
            now = now._replace(
                messages=max(0, now.messages),
                requeues=max(0, now.requeues),
                timeouts=max(0, now.timeouts),
            )
        topic, channel = key
        self._now.setdefault(topic, {})[channel] = now
        elapsed_s = self._elapsed_s
        if elapsed_s <= 0:
            return None
        last = self._last.get(topic)
        was = _NONE if last is None else last.get(channel, _NONE)
        if self._restarted or now.messages < was.messages:
            # Messages that it held before may be lost, so what left is unknown: 0.
            finished = max(0, now.finished) / elapsed_s
            return Rates(
                now.messages / elapsed_s,
                finished,
                now.requeues / elapsed_s,
                now.timeouts / elapsed_s,
                None if now.finished < 0 else 0.0,
            )
        came = now.messages - was.messages
        left = max(0, came + was.held - now.held)
        finished, removed = left, None
        if now.finished >= 0:
            finished = max(0, now.finished - max(0, was.finished))
            removed = max(0, left - finished) / elapsed_s
        return Rates(
            came / elapsed_s,
            finished / elapsed_s,
            max(0, now.requeues - was.requeues) / elapsed_s,
            max(0, now.timeouts - was.timeouts) / elapsed_s,
            removed,
        )

    def end_answer(self) -> tuple[int, int] | None:
        """End the answer; topics and channels that were not in it are forgotten.

        Returns:
            After a restart, the messages that the node held before, and how many of them it has
            not loaded again; None if it was not restarted.
        """
        lost = self._losses() if self._restarted else None
        self._last, self._now = self._now, {}
        self._last_s = self._now_s
        return lost

    def _losses(self) -> tuple[int, int]:
        held = missing = 0
        for topic, channels in self._last.items():
            now = self._now.get(topic, {})
            passed_on = max((c.messages for name, c in now.items() if name), default=0)
            for channel, was in channels.items():
                if (channel or topic).endswith("#ephemeral") or topic.endswith("#ephemeral"):
                    continue
                held += was.held
                counted = now.get(channel, _NONE)
                left = passed_on if not channel else max(0, counted.finished)
                loaded = counted.held + left - counted.messages
                missing += max(0, was.held - max(0, loaded))
        return held, missing


@dataclass(slots=True, eq=False)
class WatchedNode:
    """The state of a node between polls. Times are by trio's clock, ``_wall_s`` since 1970.

    ``expected``: --expect-nsqd names it. ``restart`` is the last one.
    """

    producer: Producer
    registered: bool = True
    expected: bool = False
    counters: Counters = field(default_factory=Counters)
    answer: tuple[NodeMetrics, float] | UpstreamError | None = None
    asked_s: float | None = None
    silent: bool = False
    error: str = ""
    answered_wall_s: float | None = None
    start_time: int = 0
    answered: NodeRow | None = None
    restart: Restart | None = None
    vitals: Vitals | None = None
    vitals_due_s: float = -math.inf
    requests_vitals: bool = False

    @property
    def ages(self) -> Ages | None:
        """The ages of its messages; None: it does not tell them."""
        return None if self.vitals is None else self.vitals.ages

    def row(self) -> NodeRow:
        """A row without figures."""
        return NodeRow(
            node=self.producer.node,
            hostname=self.producer.hostname,
            tcp_port=self.producer.tcp_port,
            version=self.producer.version,
            out_of_date=self.producer.out_of_date,
            registered=self.registered,
            expected=self.expected,
            answered_s=self.answered_wall_s,
        )

    def silent_row(self, error: str) -> NodeRow:
        """A row with the values of the last answer, if there was one, and the error of now."""
        row = self.row()
        if self.answered is not None:
            row = msgspec.structs.replace(
                self.answered,
                registered=self.registered,
                expected=self.expected,
                out_of_date=row.out_of_date,
            )
            row.rate_in = row.rate_out = row.rate_requeue = row.rate_timeout = None
            row.rate_removed = None
        row.up, row.nodes, row.error = False, 0, error
        return row

    def note_restart(self, lost: tuple[int, int], start_time: int) -> None:
        """Note a restart, from what `Counters.end_answer` returned.

        Messages that consumers may have finished between the last answer and the start are not
        counted as missing, so a busy node that was restarted properly causes no alarm.
        """
        held, missing = lost
        before = self.answered
        if before is not None and before.answered_s is not None:
            consumed = (before.rate_out or 0.0) * max(0.0, start_time - before.answered_s)
            missing = max(0, missing - math.ceil(consumed))
        self.restart = Restart(float(start_time), held, missing)
