"""Histories of messages, kept in a ledger; figures of one, and whether all promises were kept.

Messages have numbers from 0. Times are seconds of one clock. A publish that failed, or broke
without an answer, leaves it open whether the message is there: it may come or not, and twice if its
publisher tried again.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.promises import checks
from tests.promises.allowance import Allowance
from tests.promises.ledger import Delivery, Ledger, Sent

__all__ = ["BODY_NBYTES", "TOPIC", "Fault", "History", "Judgement", "judge"]

BODY_NBYTES: Final = 100
TOPIC: Final = "drill"

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
class _Silence:
    """When a channel got its last message, and its longest time without one."""

    last_s: float = -math.inf
    gap_s: float = 0.0


class History:
    """What happened in one run, told by its publishers and consumers as it happens.

    Attributes:
        faults: in the order in which they began.
        failures: of publishes, by error.
        uncured: messages that no node took, however often they were tried.
        publish_s: the longest time from a message's first try to its OK.
        acknowledged_by, delivered_by: counts by node; of deliveries all, on every channel.
        ledger: of all messages.
        allowance: what the faults may cost.
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
        self.ledger = Ledger()
        self.allowance = Allowance()
        self.publish_s = 0.0
        self._name = os.urandom(4).hex().encode() if name is None else name
        self._silences = {channel: _Silence() for channel in channels}
        self._watched_from_s: float | None = None

    # Publishers

    @property
    def attempted(self) -> int:
        """Messages that were published, or tried to be."""
        return len(self.ledger.sent)

    @property
    def channels(self) -> list[checks.ChannelKey]:
        """They are owed each message."""
        return [(TOPIC, channel) for channel in self._silences]

    def begin(self, count: int = 1) -> range:
        """The numbers of messages that are about to be published for the first time."""
        numbers = range(self.attempted, self.attempted + count)
        now_s = self.clock()
        for number in numbers:
            self.ledger.sent[self.body(number)] = Sent(TOPIC, now_s)
        return numbers

    def body(self, number: int) -> bytes:
        """What is published for a message."""
        return (b"%b %d " % (self._name, number)).ljust(BODY_NBYTES, b".")

    def acknowledged(self, numbers: Iterable[int], node: str, began_s: float | None = None) -> None:
        """The node said OK to these, whose first try was at ``began_s``."""
        at_s = self.clock()
        if began_s is not None:
            self.publish_s = max(self.publish_s, at_s - began_s)
        for number in numbers:
            sent = self.ledger.sent[self.body(number)]
            sent.nsqd, sent.acked_s = node, at_s
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
        self,
        channel: str,
        node: str,
        ids: Sequence[bytes],
        bodies: Sequence[bytes],
        attempts: Sequence[int],
    ) -> list[Delivery]:
        """A consumer of the channel got these; ``attempts`` are nsqd's counts."""
        at_s, silence = self.clock(), self._silences[channel]
        self._tell_faults(node, at_s)
        silence.gap_s = max(silence.gap_s, self._silence_s(silence, at_s))
        silence.last_s = at_s
        self.delivered_by[node] += len(bodies)
        deliveries = []
        for id_, body, attempt in zip(ids, bodies, attempts, strict=True):
            delivery = Delivery(at_s, node, id_, attempt, channel)
            self.ledger.deliver(TOPIC, channel, body, delivery)
            deliveries.append(delivery)
        return deliveries

    def finished(self, deliveries: Iterable[Delivery]) -> None:
        """These were finished, as far as nsqd could be told."""
        for delivery in deliveries:
            delivery.answer = "FIN"

    def delivered_count(self, channel: str) -> int:
        """Of different messages."""
        return len(self.ledger.delivered.get((TOPIC, channel), ()))

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
        for silence in self._silences.values():
            silence.gap_s = max(silence.gap_s, self._silence_s(silence, at_s))
        self._watched_from_s = None

    def resumed(self) -> None:
        """Silence counts again, if anything has been broken yet."""
        if self.faults and self._watched_from_s is None:
            self._watched_from_s = self.clock()

    def _silence_s(self, silence: _Silence, at_s: float) -> float:
        """Up to a delivery, since the one before or since silence counts."""
        if self._watched_from_s is None:
            return 0.0
        return at_s - max(self._watched_from_s, silence.last_s)

    def _tell_faults(self, node: str, at_s: float) -> None:
        for fault in reversed(self.faults):
            if fault.first_s is None:
                fault.first_s = at_s
            if fault.back_s is None and fault.ended_s is not None and fault.node == node:
                fault.back_s = at_s

    # Figures

    def counts(self) -> Counter[str]:
        """All figures but those that depend on what was promised."""
        sent = self.ledger.sent
        acked = {body for body, one in sent.items() if one.nsqd}
        got = [self.ledger.delivered.get(channel, {}) for channel in self.channels]
        settled = [checks.settled_bodies(self.ledger, channel) for channel in self.channels]
        got_by_all = {body for body in sent if all(body in bodies for bodies in got)}
        published = [each for bodies in got for body, each in bodies.items() if body in sent]
        deliveries = [delivery for each in published for delivery in each]
        strange = [each for bodies in got for body, each in bodies.items() if body not in sent]
        return Counter(
            attempted=len(sent),
            acknowledged=len(acked),
            delivered=len(got_by_all),
            lost=sum(any(body not in one for one in settled) for body in acked),
            duplicated=len(deliveries) - len(published),
            redelivered=sum(delivery.attempts > 1 for delivery in deliveries),
            finished=sum(delivery.answer == "FIN" for delivery in deliveries),
            recovered=sum(map(self._is_recovered, acked)),
            unknown=len(got_by_all - acked),
            failed=self.failures.total(),
            uncured=self.uncured,
            strange=sum(map(len, strange)),
            gap_ms=round(1000 * max(one.gap_s for one in self._silences.values())),
            **self._times_ms(),
        )

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

    def _is_recovered(self, body: bytes) -> bool:
        """Acknowledged before a fault of its node ended, and first delivered after that."""
        sent = self.ledger.sent[body]
        firsts_s = [
            self.ledger.delivered[channel][body][0].at_s
            for channel in self.channels
            if body in self.ledger.delivered.get(channel, ())
        ]
        return any(
            fault.node == sent.nsqd
            and fault.ended_s is not None
            and sent.acked_s <= fault.ended_s <= first_s
            for fault in self.faults
            for first_s in firsts_s
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a run went: figures to be shown, and what is wrong, as lines of text."""

    counts: Counter[str]
    wrong: tuple[str, ...]


def judge(history: History) -> Judgement:
    """What the run shows, after everything was drained."""
    counts, ledger, allowance = history.counts(), history.ledger, history.allowance
    promises: dict[str, Iterator[str]] = {
        "lost": checks.lost(ledger, allowance, history.channels, Counter()),
        "invented": checks.invented(ledger, allowance, Counter()),
        "attempts": checks.attempts_broken(ledger, allowance),
    }
    wrong = []
    for name, found in promises.items():
        if texts := list(found):
            wrong.append(f"{len(texts)} x {name}: {'; '.join(texts[:_SHOWN])}")
    if history.uncured:
        failures = dict(history.failures)
        wrong.append(f"{history.uncured} messages were taken by no node at all: {failures}")
    if not counts["delivered"]:
        wrong.append("nothing was delivered at all")
    return Judgement(counts, tuple(wrong))
