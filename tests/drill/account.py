"""Who owes what: all that was published and consumed in a run, and what is wrong with it.

The account is kept by publishers and consumers; the judgement looks at nothing else. What a
connection that is cut leaves unknown counts in nsqd's favour: a command without its answer may
have been taken or not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trionsq.wire.client import MessageFrame

EARLY_S = 0.02
"""A message this much before its due time is not called early: clocks and milliseconds."""


@dataclass(slots=True)
class ChannelAccount:
    """What consumers of one channel know, by message body.

    Attributes:
        attempts: the most seen before the stop.
        finish_sent: FIN was sent: the message may come again or not.
        finished: FIN was surely taken: it must not come again after a clean stop.
        due_s: when a REQ that was surely taken lets the message come, in the account's clock.
        back: attempts of the first delivery after the restart.
        duplicates: deliveries after the restart beyond the first.
        early: came after the restart, but before the time it was deferred to.
        waited: came after the restart, was not yet due then, and came in time.
        early_before_stop: came before its time while nsqd had never been stopped.
    """

    attempts: dict[bytes, int] = field(default_factory=dict)
    finish_sent: set[bytes] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)
    due_s: dict[bytes, float] = field(default_factory=dict)
    back: dict[bytes, int] = field(default_factory=dict)
    duplicates: int = 0
    early: set[bytes] = field(default_factory=set)
    waited: int = 0
    early_before_stop: int = 0


class Account:
    """One run's account. Times are seconds of ``clock``, one clock for the whole run."""

    def __init__(
        self, channels: Iterable[tuple[str, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.channels = {channel: ChannelAccount() for channel in channels}
        self.topic_of: dict[bytes, str] = {}
        self.acknowledged: set[bytes] = set()
        self.strange: list[tuple[str, bytes]] = []
        self.counts: Counter[str] = Counter()
        self.is_signalled = False
        self.restarted_s: float | None = None
        self._published_due_s: dict[bytes, float] = {}

    def sending(self, topic: str, bodies: Sequence[bytes], delay_s: float = 0.0) -> None:
        """These are about to be published; ``delay_s`` is how long nsqd shall defer them."""
        self.topic_of.update(dict.fromkeys(bodies, topic))
        if delay_s:
            self._published_due_s.update(dict.fromkeys(bodies, self.clock() + delay_s))

    def acknowledge(self, bodies: Sequence[bytes]) -> None:
        """nsqd said OK to these."""
        self.acknowledged.update(bodies)
        if self.is_signalled:
            self.counts["acked_after_signal"] += len(bodies)

    def receive(self, channel: tuple[str, str], message: MessageFrame) -> bool:
        """A consumer of the channel got the message; False if it is none of the topic's."""
        topic, body = channel[0], message.body
        if self.topic_of.get(body) != topic:
            self.strange.append((":".join(channel), body))
            return False
        account = self.channels[channel]
        due_s = max(account.due_s.get(body, 0.0), self._published_due_s.get(body, 0.0))
        is_early = self.clock() < due_s - EARLY_S
        if self.restarted_s is None:
            account.attempts[body] = max(message.attempts, account.attempts.get(body, 0))
            account.early_before_stop += is_early
        elif body in account.back:
            account.duplicates += 1
        else:
            account.back[body] = message.attempts
            account.waited += due_s > self.restarted_s and not is_early
            if is_early:
                account.early.add(body)
        return True

    def restarted(self) -> None:
        """From now on deliveries are those of the nsqd that was started again."""
        self.restarted_s = self.clock()

    def missing(self) -> Iterator[tuple[tuple[str, str], bytes]]:
        """Acknowledged messages that did not come back to a channel and were not finished."""
        for channel, account in self.channels.items():
            for body in self.acknowledged - account.finish_sent - account.back.keys():
                if self.topic_of[body] == channel[0]:
                    yield channel, body


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a run went: counts to be reported, and what is wrong, as lines of text."""

    counts: Counter[str]
    faults: tuple[str, ...]


def judge(account: Account, *, is_clean: bool, keeps_delays: bool) -> Judgement:
    """Compare what came back with what was owed.

    Of an unclean stop no more is asked than that nothing comes which was never published.
    """
    channels = account.channels.values()
    wrong: dict[str, Sequence[object]] = {
        "strange": account.strange,
        "missing": list(account.missing()),
        "finished, came again": _each(account, lambda one: one.finished & one.back.keys()),
        "attempts lost": _each(account, _lost_attempts),
        "early": _each(account, lambda one: one.early),
    }
    asked = {"strange"} if not is_clean else set(wrong) - ({"early"} if not keeps_delays else set())
    counts = account.counts + Counter(
        published=len(account.topic_of),
        acked=len(account.acknowledged),
        finished=sum(len(one.finish_sent) for one in channels),
        finished_surely=sum(len(one.finished) for one in channels),
        redelivered=sum(len(one.back) for one in channels),
        duplicates=sum(one.duplicates for one in channels),
        waited_after_restart=sum(one.waited for one in channels),
        early_before_stop=sum(one.early_before_stop for one in channels),
        **{name.replace(", ", "_").replace(" ", "_"): len(found) for name, found in wrong.items()},
    )
    faults = tuple(
        f"{len(found)} {name}, such as {found[:5]}"
        for name, found in wrong.items()
        if found and name in asked
    )
    return Judgement(counts, faults)


def _each(
    account: Account, find: Callable[[ChannelAccount], Iterable[bytes]]
) -> list[tuple[str, bytes]]:
    return [
        (":".join(channel), body) for channel, one in account.channels.items() for body in find(one)
    ]


def _lost_attempts(one: ChannelAccount) -> Iterator[bytes]:
    for body, attempts in one.back.items():
        if attempts <= one.attempts.get(body, 0):
            yield body
