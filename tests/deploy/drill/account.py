"""Histories of messages: attempted, acknowledged, delivered, finished; and what is wrong with one.

Messages are numbers from 0, so that a run of 200,000 costs some bytes for each in arrays. Times
are seconds of one clock. A publish that failed, or broke without an answer, leaves it open whether
the message is there: it may come or not, and twice if its publisher tried again.
"""

from __future__ import annotations

import math
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["BODY_NBYTES", "Fault", "History", "Judgement", "judge"]

BODY_NBYTES: Final = 100

_NONE: Final = 255  # no node
_COUNT_MAX: Final = 255
_SHOWN: Final = 5


@dataclass(slots=True)
class Fault:
    """Something that was broken.

    Attributes:
        node: where; empty if it is none of the nsqds.
        began_s: just before.
        ended_s: when it was whole again; None until then.
        first_s: the first delivery after it began, by any node.
        back_s: the first delivery by the node after ``ended_s``.
    """

    node: str
    began_s: float
    ended_s: float | None = None
    first_s: float | None = None
    back_s: float | None = None


@dataclass(slots=True)
class _Seen:
    """What one channel got: by message how often, and when first; and its longest silence."""

    counts: bytearray = field(default_factory=bytearray)
    firsts_s: array[float] = field(default_factory=lambda: array("d"))
    duplicated: int = 0
    redelivered: int = 0
    finished: int = 0
    last_s: float = -math.inf
    gap_s: float = 0.0

    def grow(self, count: int) -> None:
        self.counts.extend(bytes(count))
        self.firsts_s.frombytes(bytes(8 * count))


class History:
    """What happened in one run, told by its publishers and consumers as it happens.

    Attributes:
        faults: in the order in which they began.
        failures: of publishes, by error.
        uncured: messages that no node took, however often they were tried.
        publish_s: the longest time from a message's first try to its OK.
        acknowledged_by, delivered_by: counts by node; of deliveries all, on every channel.
        strange: bodies that nobody published, with their channels.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        channels: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        name: bytes | None = None,
    ) -> None:
        """``name`` tells this run's bodies from those of others; by default it is random."""
        self.clock = clock
        self.nodes = list(nodes)
        self.faults: list[Fault] = []
        self.failures: Counter[str] = Counter()
        self.uncured = 0
        self.acknowledged_by: Counter[str] = Counter()
        self.delivered_by: Counter[str] = Counter()
        self.strange: list[tuple[str, bytes]] = []
        self.strange_count = 0
        self.attempted = 0
        self.publish_s = 0.0
        self._name = os.urandom(4).hex().encode() if name is None else name
        self._acked_nodes = bytearray()
        self._acked_s = array("d")
        self._seen = {channel: _Seen() for channel in channels}
        self._watched_from_s: float | None = None

    # Publishers

    def begin(self, count: int = 1) -> range:
        """The numbers of messages that are about to be published for the first time."""
        numbers = range(self.attempted, self.attempted + count)
        self.attempted += count
        self._acked_nodes.extend(bytes([_NONE]) * count)
        self._acked_s.frombytes(bytes(8 * count))
        for seen in self._seen.values():
            seen.grow(count)
        return numbers

    def body(self, number: int) -> bytes:
        """What is published for a message."""
        return (b"%b %d " % (self._name, number)).ljust(BODY_NBYTES, b".")

    def acknowledged(self, numbers: Iterable[int], node: str, began_s: float | None = None) -> None:
        """The node said OK to these, whose first try was at ``began_s``."""
        at_s, place = self.clock(), self.nodes.index(node)
        if began_s is not None:
            self.publish_s = max(self.publish_s, at_s - began_s)
        for number in numbers:
            self._acked_nodes[number] = place
            self._acked_s[number] = at_s
            self.acknowledged_by[node] += 1

    def failed(self, error: Exception) -> None:
        """A publish did not go well; its messages will be tried again, or are `gave_up`."""
        code = getattr(error, "code", "")
        self.failures[f"{type(error).__name__}{code and ' '}{code}"] += 1

    def gave_up(self, numbers: Sequence[int]) -> None:
        """These were tried at every node, in vain."""
        self.uncured += len(numbers)

    # Consumers

    def delivered(
        self, channel: str, node: str, bodies: Sequence[bytes], attempts: Sequence[int]
    ) -> None:
        """A consumer of the channel got these; ``attempts`` are nsqd's counts."""
        at_s, seen = self.clock(), self._seen[channel]
        self._tell_faults(node, at_s)
        seen.gap_s = max(seen.gap_s, self._silence_s(seen, at_s))
        seen.last_s = at_s
        self.delivered_by[node] += len(bodies)
        for body, attempt in zip(bodies, attempts, strict=True):
            number = self._number(body)
            if number < 0:
                self._take_strange(channel, body)
                continue
            seen.redelivered += attempt > 1
            if not seen.counts[number]:
                seen.firsts_s[number] = at_s
            else:
                seen.duplicated += 1
            seen.counts[number] = min(seen.counts[number] + 1, _COUNT_MAX)

    def finished(self, channel: str, count: int) -> None:
        """So many were finished, as far as nsqd could be told."""
        self._seen[channel].finished += count

    def delivered_count(self, channel: str) -> int:
        """Of different messages."""
        counts = self._seen[channel].counts
        return len(counts) - counts.count(0)

    def _number(self, body: bytes) -> int:
        name, _, rest = body.partition(b" ")
        digits = rest.partition(b" ")[0]
        if name != self._name or not digits.isdigit() or len(digits) > 9:
            return -1
        number = int(digits)
        return number if number < self.attempted and body == self.body(number) else -1

    def _take_strange(self, channel: str, body: bytes) -> None:
        self.strange_count += 1
        if len(self.strange) < _SHOWN:
            self.strange.append((channel, body[:40]))

    # Faults, and silence meanwhile

    def fault_began(self, node: str = "") -> Fault:
        """To be called just before; silence of a channel counts from now on, see `calm`."""
        fault = Fault(node, self.clock())
        self.faults.append(fault)
        if self._watched_from_s is None:
            self._watched_from_s = fault.began_s
        return fault

    def fault_ended(self, fault: Fault) -> None:
        """It is whole again; also for what is slow to notice that."""
        fault.ended_s = self.clock()

    def calm(self) -> None:
        """From now on silence is no fault: publishers stop, or consumers are told to pause."""
        at_s = self.clock()
        for seen in self._seen.values():
            seen.gap_s = max(seen.gap_s, self._silence_s(seen, at_s))
        self._watched_from_s = None

    def resumed(self) -> None:
        """Silence counts again, if anything has been broken yet."""
        if self.faults and self._watched_from_s is None:
            self._watched_from_s = self.clock()

    def _silence_s(self, seen: _Seen, at_s: float) -> float:
        """Up to a delivery, since the one before or since silence counts."""
        if self._watched_from_s is None:
            return 0.0
        return at_s - max(self._watched_from_s, seen.last_s)

    def _tell_faults(self, node: str, at_s: float) -> None:
        for fault in reversed(self.faults):
            if fault.first_s is None:
                fault.first_s = at_s
            if fault.back_s is None and fault.ended_s is not None and fault.node == node:
                fault.back_s = at_s

    # What is owed

    def missing(self) -> list[int]:
        """Acknowledged messages that some channel did not get."""
        return [
            number
            for number in range(self.attempted)
            if self._acked_nodes[number] != _NONE
            and not all(seen.counts[number] for seen in self._seen.values())
        ]

    def is_complete(self) -> bool:
        """Whether every channel got everything that was acknowledged."""
        return not self.missing()

    def counts(self) -> Counter[str]:
        """All figures but those that depend on what was promised."""
        seen = self._seen.values()
        got_by_all = self._got_by_all()
        acked = self.attempted - self._acked_nodes.count(_NONE)
        unknown = sum(
            node == _NONE and got for node, got in zip(self._acked_nodes, got_by_all, strict=True)
        )
        return Counter(
            attempted=self.attempted,
            acknowledged=acked,
            delivered=sum(got_by_all),
            lost=len(self.missing()),
            duplicated=sum(one.duplicated for one in seen),
            redelivered=sum(one.redelivered for one in seen),
            finished=sum(one.finished for one in seen),
            recovered=sum(map(self._is_recovered, range(self.attempted))),
            unknown=unknown,
            failed=self.failures.total(),
            uncured=self.uncured,
            strange=self.strange_count,
            gap_ms=round(1000 * max(one.gap_s for one in seen)),
            **self._times_ms(),
        )

    def _got_by_all(self) -> list[bool]:
        columns = [seen.counts for seen in self._seen.values()]
        return [all(row) for row in zip(*columns, strict=True)]

    def _times_ms(self) -> dict[str, int]:
        """The longest publish, and of all faults times until anything came, and
        until the node itself was back.
        """
        firsts = [one.first_s - one.began_s for one in self.faults if one.first_s is not None]
        backs = [
            one.back_s - one.ended_s
            for one in self.faults
            if one.back_s is not None and one.ended_s is not None
        ]
        return {
            "publish_ms": round(1000 * self.publish_s),
            "first_ms": round(1000 * max(firsts, default=0.0)),
            "back_ms": round(1000 * max(backs, default=0.0)),
        }

    def _acked_by_faulty(self, number: int) -> Iterable[Fault]:
        """The faults of the node that acknowledged it, of those that ended later than that."""
        place = self._acked_nodes[number]
        if place == _NONE:
            return
        for fault in self.faults:
            if fault.node == self.nodes[place] and (
                fault.ended_s is None or self._acked_s[number] <= fault.ended_s
            ):
                yield fault

    def _is_recovered(self, number: int) -> bool:
        """Acknowledged before a fault of its node ended, and first delivered after that."""
        return any(
            fault.ended_s is not None
            and any(
                seen.counts[number] and seen.firsts_s[number] >= fault.ended_s
                for seen in self._seen.values()
            )
            for fault in self._acked_by_faulty(number)
        )

    def is_explained(self, number: int) -> bool:
        """Whether a node that was broken held it: acknowledged there before the fault was over."""
        return any(True for _ in self._acked_by_faulty(number))

    def describe(self, number: int) -> str:
        """Where and when a message was acknowledged, and which channels got it."""
        place = self._acked_nodes[number]
        where = "nobody" if place == _NONE else self.nodes[place]
        ago = [f"{self._acked_s[number] - fault.began_s:+.3f} s" for fault in self.faults[:3]]
        got = [channel for channel, seen in self._seen.items() if seen.counts[number]]
        return f"{number} (OK of {where} at {', '.join(ago)} of the faults, came to {got})"


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a run went: figures to be shown, and what is wrong, as lines of text."""

    counts: Counter[str]
    wrong: tuple[str, ...]


def judge(history: History, *, may_lose: bool = False) -> Judgement:
    """What the run shows, after everything was drained.

    Args:
        may_lose: what a broken node held may be lost (its memory is gone); nothing else.
    """
    counts, missing = history.counts(), history.missing()
    unexplained = [number for number in missing if not history.is_explained(number)]
    counts["unexplained"] = len(unexplained)
    wrong = []
    if blamed := (unexplained if may_lose else missing):
        shown = "; ".join(map(history.describe, blamed[:_SHOWN]))
        wrong.append(f"{len(blamed)} acknowledged messages are lost: {shown}")
    if history.strange_count:
        wrong.append(f"{history.strange_count} deliveries of nothing published: {history.strange}")
    if history.uncured:
        failures = dict(history.failures)
        wrong.append(f"{history.uncured} messages were taken by no node at all: {failures}")
    if not counts["delivered"]:
        wrong.append("nothing was delivered at all")
    return Judgement(counts, tuple(wrong))
