"""All that was published and consumed in a run, what nsqd might lose, and what is wrong with it.

Publishers and consumers tell it; the judgement looks at nothing else. What a connection that is cut
leaves unknown counts in nsqd's favour: a command without its answer may have been taken or not.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.promises import checks
from tests.promises.allowance import Allowance
from tests.promises.ledger import Delivery, Ledger, Sent
from trionsq.wire.client import MessageFrame

__all__ = ["NSQD", "Account", "Judgement", "judge"]

NSQD: Final = "nsqd"
"""The name of the only one, in the ledger."""

_SHOWN: Final = 5


class Account:
    """One run's account. Times are seconds of ``clock``, one clock for the whole run.

    Attributes:
        channels: those that are there before the first message.
        ledger: see there.
        allowance: what a kill may cost.
        counts: what else happened.
        made_s: channels that were made amid the load, and when at the latest their topic kept
            nothing of before.
        turns_s: the times of starts after the first one.
        is_signalled: nsqd was told to end.
    """

    def __init__(
        self,
        channels: Iterable[checks.ChannelKey],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.channels = list(channels)
        self.ledger = Ledger()
        self.allowance = Allowance()
        self.counts: Counter[str] = Counter()
        self.made_s: dict[checks.ChannelKey, float] = {}
        self.turns_s: list[float] = []
        self.is_signalled = False
        self._disturbances: list[tuple[float, float]] = []
        self._overfull: list[tuple[float, str]] = []

    def sending(self, topic: str, bodies: Sequence[bytes], delay_s: float = 0.0) -> None:
        """These are about to be published; ``delay_s`` is how long nsqd shall defer them."""
        now_s = self.clock()
        self.ledger.sent.update((body, Sent(topic, now_s, delay_s)) for body in bodies)

    def acknowledge(self, bodies: Sequence[bytes]) -> None:
        """nsqd said OK to these."""
        now_s = self.clock()
        for body in bodies:
            sent = self.ledger.sent[body]
            sent.nsqd, sent.acked_s = NSQD, now_s
        if self.is_signalled:
            self.counts["acked_after_signal"] += len(bodies)

    def receive(
        self, channel: checks.ChannelKey, message: MessageFrame, consumer: str
    ) -> Delivery | None:
        """A consumer of the channel got the message; None if it is none of the topic's."""
        delivery = Delivery(self.clock(), NSQD, message.message_id, message.attempts, consumer)
        self.ledger.deliver(*channel, message.body, delivery)
        sent = self.ledger.sent.get(message.body)
        return delivery if sent is not None and sent.topic == channel[0] else None

    def note_overfull(self, at_s: float, what: str) -> None:
        """A consumer saw more messages in flight than its RDY."""
        self._overfull.append((at_s, what))

    def note_disturbance(self, from_s: float, until_s: float) -> None:
        """nsqd or this process stood still: messages on their way may have timed out.

        More may then come than are in flight.
        """
        self._disturbances.append((from_s, until_s))

    def overfull(self) -> Iterator[str]:
        """What consumers saw that no disturbance explains."""
        for at_s, what in self._overfull:
            if not any(from_s <= at_s <= until_s for from_s, until_s in self._disturbances):
                yield what

    def restarted(self) -> None:
        """From now on deliveries are those of the nsqd that was started again."""
        self.turns_s.append(self.clock())

    def note_kill(
        self,
        topics: Iterable[dict[str, Any]],
        ready: Counter[checks.ChannelKey],
        asked_s: float,
        *,
        is_exact: bool,
        sync_s: float,
    ) -> None:
        """nsqd is killed now, and its /stats, asked for at ``asked_s``, had these topics.

        What it took since then may be lost beside them. The counts are exact if it was not at work.
        Due times are written by a sync, within ``sync_s``.
        """
        self.allowance.killed.add(NSQD)
        # Its last words are read after its end, and nobody publishes later.
        self.allowance.note_forgetful(NSQD, self.clock() - sync_s, math.inf)
        self.allowance.note_late(NSQD, asked_s, math.inf)
        self.allowance.note_stats(NSQD, topics, None if is_exact else ready)

    def lacks_any(self) -> bool:
        """Whether more messages are missing than may be lost."""
        return any(checks.lost(self.ledger, self.allowance, self.channels, Counter()))


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a run went: counts to be reported, and what is wrong, as lines of text."""

    counts: Counter[str]
    faults: tuple[str, ...]


def judge(account: Account, *, is_clean: bool = True, keeps_delays: bool = True) -> Judgement:
    """Check every promise.

    Args:
        account: of the run.
        is_clean: nsqd was never killed while it had clients: what it confirmed to them holds.
        keeps_delays: it remembers due times over a restart; the original does not.
    """
    ledger, counts = account.ledger, account.counts.copy()
    memory = account.allowance
    confirmed = Allowance() if is_clean else memory
    asked = {
        "lost": checks.lost(ledger, memory, account.channels, counts),
        "invented": checks.invented(ledger, memory, counts),
        "attempts": checks.attempts_broken(ledger, memory, turns_s=account.turns_s, in_order=True),
        "finished again": checks.finished_again(ledger, confirmed),
        "in flight": account.overfull(),
    }
    if keeps_delays:
        asked["early"] = checks.came_early(ledger, memory)
        asked["early again"] = checks.came_early_again(ledger, confirmed)
    if is_clean:
        # A killed nsqd may give what the topic read from its file to all channels once more.
        asked["older than its channel"] = checks.older_than_channel(ledger, account.made_s)
    faults = []
    for name, found in asked.items():
        texts = list(found)
        if texts:
            faults.append(f"{len(texts)} x {name}, such as {texts[:_SHOWN]}")
    return Judgement(counts + _figures(account), tuple(faults))


def _figures(account: Account) -> Counter[str]:
    ledger, steady = account.ledger, account.channels
    deliveries = [one for bodies in ledger.delivered.values() for one in bodies.values()]
    finished = [one for each in deliveries for one in each if one.answer == "FIN"]
    restarted_s = account.turns_s[-1] if account.turns_s else None
    return Counter(
        published=len(ledger.sent),
        acked=ledger.acknowledged,
        delivered=ledger.deliveries,
        finished=len(finished),
        finished_surely=sum(bool(one.taken_s) for one in finished),
        may_lose=sum(account.allowance.most(NSQD, *channel) for channel in steady),
        again=sum(len(each) - 1 for each in deliveries),
        waited_after_restart=0 if restarted_s is None else sum(_waited(account, restarted_s)),
    )


def _waited(account: Account, restarted_s: float) -> Iterator[bool]:
    """For each message that came after the restart, whether it had to wait for its time."""
    for bodies in account.ledger.delivered.values():
        for body, deliveries in bodies.items():
            sent = account.ledger.sent.get(body)
            before = [one for one in deliveries if one.at_s < restarted_s]
            if sent is not None and len(before) < len(deliveries):
                last = before[-1] if before else None
                due_s = sent.sent_s + sent.delay_s
                if last is not None:
                    due_s = last.requeue_s + last.delay_s if last.taken_s else 0.0
                yield due_s > restarted_s
