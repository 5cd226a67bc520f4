"""The drill's account: it tells the checks what they have to know.

What each check notices is tested with them, in tests/promises.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.drill.account import Account, judge
from trionsq.wire.client import MessageFrame

CHANNEL = ("topic", "channel")
OTHER = ("topic", "other")


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The account's clock."""
    return Clock()


@pytest.fixture
def account(clock: Clock) -> Account:
    """An account of two channels, with one message published and acknowledged."""
    account = Account([CHANNEL, OTHER], clock)
    publish(account, b"body")
    clock.now_s += 1.0
    return account


def publish(account: Account, body: bytes, delay_s: float = 0.0) -> None:
    """The message is published and acknowledged."""
    account.sending("topic", [body], delay_s)
    account.acknowledge([body])


def come(
    account: Account, body: bytes, *channels: tuple[str, str], attempts: int = 1, answer: str = ""
) -> None:
    """The message comes to the channels, and nsqd confirms the answer at once."""
    for channel in channels:
        delivery = account.receive(channel, MessageFrame(0, attempts, b"0" * 16, body), "consumer")
        if delivery is not None:
            delivery.answer, delivery.taken_s = answer, account.clock()


def kinds(account: Account, *, is_clean: bool = True, keeps_delays: bool = True) -> list[str]:
    """The kinds of faults that the judgement tells, each with its number."""
    found = judge(account, is_clean=is_clean, keeps_delays=keeps_delays).faults
    return [fault.partition(", such as")[0] for fault in found]


def stats(memory: int = 0, disk: int = 0, in_flight: int = 0, topic: int = 0) -> dict[str, Any]:
    """/stats of the topic: what is at the topic's file, and at one channel."""
    channel = {
        "channel_name": "channel",
        "depth": memory + disk,
        "backend_depth": disk,
        "in_flight_count": in_flight,
        "deferred_count": 0,
    }
    return {"topic_name": "topic", "depth": topic, "backend_depth": topic, "channels": [channel]}


def test_all_finished_is_good(account: Account) -> None:
    """A message that is finished in every channel leaves nothing to complain of."""
    come(account, b"body", CHANNEL, OTHER, answer="FIN")
    assert kinds(account) == []
    assert not account.lacks_any()


def test_each_channel_is_owed_each_message(account: Account) -> None:
    """A message that one channel finished is lost if it never comes to the other."""
    come(account, b"body", CHANNEL, answer="FIN")
    assert account.lacks_any()
    assert kinds(account) == ["1 x lost"]


def test_a_body_of_another_topic_is_worth_no_answer(account: Account) -> None:
    """What nobody published is told after any end, and cannot be answered."""
    frame = MessageFrame(0, 1, b"0" * 16, b"bod")
    assert account.receive(CHANNEL, frame, "consumer") is None
    come(account, b"body", CHANNEL, OTHER, answer="FIN")
    assert kinds(account, is_clean=False) == ["1 x invented"]


def test_attempts_go_on_after_a_restart(account: Account, clock: Clock) -> None:
    """A message that was seen with 2 attempts may not come back with fewer."""
    come(account, b"body", CHANNEL, attempts=2)
    clock.now_s += 1.0
    account.restarted()
    come(account, b"body", CHANNEL, OTHER, attempts=1, answer="FIN")
    assert kinds(account) == ["1 x attempts"]


def test_due_times_are_asked_of_who_keeps_them(account: Account) -> None:
    """A deferred message must not come early, but from an nsqd that forgets delays by nature."""
    publish(account, b"later", 10.0)
    for body in (b"body", b"later"):
        come(account, body, CHANNEL, OTHER, answer="FIN")
    assert kinds(account) == ["2 x early"]
    assert kinds(account, keeps_delays=False) == []


def test_what_was_confirmed_before_a_kill_is_forgotten(account: Account, clock: Clock) -> None:
    """A finished message may come again after a kill, unless nsqd had no clients then."""
    come(account, b"body", CHANNEL, OTHER, answer="FIN")
    clock.now_s += 1.0
    account.note_kill([], Counter(), clock.now_s, is_exact=True, sync_s=0.0)
    come(account, b"body", CHANNEL, attempts=2, answer="FIN")
    assert kinds(account, is_clean=False) == []
    assert kinds(account, is_clean=True) == ["1 x finished again"]


@pytest.mark.parametrize(
    ("held", "is_exact", "most"),
    [
        (stats(), True, 0),
        (stats(memory=3, disk=100, in_flight=2, topic=50), True, 5),
        (stats(memory=3, disk=100, in_flight=2, topic=50), False, 3 + 10 + 50),
        (stats(memory=3, disk=1, in_flight=2), False, 3 + 2 + 1),
        (stats(disk=9, in_flight=12), False, 12),
    ],
)
def test_a_kill_may_cost_what_stats_say(
    account: Account, clock: Clock, held: dict[str, Any], is_exact: bool, most: int
) -> None:
    """The messages in memory and in flight; of an nsqd at work also what it may have read since
    then from its files: all of the topic, and as many as RDY, here 10, allows."""
    ready = Counter({CHANNEL: 10})
    account.note_kill([held], ready, clock.now_s, is_exact=is_exact, sync_s=0.0)
    assert account.allowance.most("nsqd", *CHANNEL) == most
    assert account.allowance.most("nsqd", *OTHER) == (0 if is_exact else held["depth"])


def test_what_was_acknowledged_after_the_stats_may_be_lost(account: Account, clock: Clock) -> None:
    """The counts don't have it; an older message is still owed."""
    asked_s = clock.now_s
    clock.now_s += 0.1
    publish(account, b"late")
    account.note_kill([], Counter(), asked_s, is_exact=True, sync_s=0.0)
    clock.now_s += 0.1
    publish(account, b"last words")
    come(account, b"body", CHANNEL, OTHER, answer="FIN")
    assert kinds(account, is_clean=False) == []
    publish(account, b"again")
    account.ledger.sent[b"again"].acked_s = asked_s - 0.1
    assert kinds(account, is_clean=False) == ["2 x lost"]


def test_a_channel_that_is_made_amid_the_load(account: Account) -> None:
    """It gets nothing older, unless a kill makes the topic give what it gave once more."""
    account.made_s["topic", "late"] = 100.5
    come(account, b"body", CHANNEL, OTHER, ("topic", "late"), answer="FIN")
    assert kinds(account) == ["1 x older than its channel"]
    assert kinds(account, is_clean=False) == []


def test_more_in_flight_than_ready_is_told(account: Account) -> None:
    """What a consumer saw is part of the judgement, unless somebody stood still then."""
    come(account, b"body", CHANNEL, OTHER, answer="FIN")
    account.note_overfull(100.0, "3 in flight, RDY 2")
    account.note_overfull(101.0, "4 in flight, RDY 2")
    assert kinds(account) == ["2 x in flight"]
    account.note_disturbance(100.5, 101.5)
    assert kinds(account) == ["1 x in flight"]


def test_figures(account: Account, clock: Clock) -> None:
    """Messages that come again, and that wait for their time after the restart, are counted."""
    publish(account, b"later", 10.0)
    come(account, b"body", CHANNEL)
    clock.now_s += 1.0
    account.restarted()
    clock.now_s += 10.0
    come(account, b"body", CHANNEL, attempts=2, answer="FIN")
    come(account, b"later", CHANNEL, answer="FIN")
    counts = judge(account).counts
    assert (counts["again"], counts["waited_after_restart"], counts["finished"]) == (1, 1, 2)
    assert (counts["published"], counts["acked"], counts["delivered"]) == (2, 2, 3)
