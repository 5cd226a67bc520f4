"""The drill's account: it must notice what it is there to notice."""

from __future__ import annotations

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
    account.sending("topic", [b"body"])
    account.acknowledge([b"body"])
    return account


def message(body: bytes = b"body", attempts: int = 1) -> MessageFrame:
    """A message with this body."""
    return MessageFrame(0, attempts, b"0" * 16, body)


def faults(account: Account, *, is_clean: bool = True, keeps_delays: bool = True) -> list[str]:
    """The kinds of faults that the judgement tells."""
    found = judge(account, is_clean=is_clean, keeps_delays=keeps_delays).faults
    return [fault.partition(", such as")[0] for fault in found]


def come_back(account: Account, *messages: MessageFrame) -> None:
    """Restart, and let both channels get the messages."""
    account.restarted()
    for one in messages:
        account.receive(CHANNEL, one)
        account.receive(OTHER, one)


def test_all_back_is_good(account: Account) -> None:
    """A message that comes back to every channel leaves nothing to complain of."""
    come_back(account, message())
    assert faults(account) == []


def test_each_channel_is_owed_each_message(account: Account) -> None:
    """A message that came back to one channel is still missing at the other."""
    account.restarted()
    account.receive(CHANNEL, message())
    assert list(account.missing()) == [(OTHER, b"body")]
    assert faults(account) == ["1 missing"]


def test_unanswered_publish_may_be_lost(account: Account) -> None:
    """A message without its OK may come or not."""
    account.sending("topic", [b"no answer"])
    come_back(account, message())
    assert faults(account) == []


def test_finish_sent_lets_a_message_miss_or_come(account: Account) -> None:
    """After a FIN of unknown fate a message may be missing, and may come again."""
    for channel in account.channels.values():
        channel.finish_sent.add(b"body")
    assert faults(account) == []
    come_back(account, message())
    assert faults(account) == []


def test_finished_does_not_come_again(account: Account) -> None:
    """After a FIN that was surely taken it is wrong that a message comes."""
    account.channels[CHANNEL].finished.add(b"body")
    come_back(account, message())
    assert faults(account) == ["1 finished, came again"]


@pytest.mark.parametrize(
    ("attempts", "told"), [(2, ["1 attempts lost"]), (3, []), (1, ["1 attempts lost"])]
)
def test_attempts_go_on(account: Account, attempts: int, told: list[str]) -> None:
    """A message that was seen with 2 attempts comes back with more."""
    account.receive(CHANNEL, message(attempts=2))
    come_back(account, message(attempts=attempts))
    assert faults(account) == told


@pytest.mark.parametrize(("later_s", "told"), [(5.0, ["2 early"]), (10.0, [])])
def test_deferred_message_keeps_its_time(
    account: Account, clock: Clock, later_s: float, told: list[str]
) -> None:
    """A deferred message must not come before its due time; where nsqd forgets delays by
    nature, that is only counted."""
    account.sending("topic", [b"later"], delay_s=10.0)
    account.restarted()
    clock.now_s += later_s
    come_back(account, message(), message(b"later"))
    assert faults(account) == told
    assert faults(account, keeps_delays=False) == []


def test_requeued_message_keeps_its_time(account: Account, clock: Clock) -> None:
    """A REQ that was surely taken defers the message for its own channel only."""
    account.channels[CHANNEL].due_s[b"body"] = clock.now_s + 10.0
    come_back(account, message())
    assert faults(account) == ["1 early"]


@pytest.mark.parametrize("body", [b"never published", b"bod", b"body "])
def test_strange_bodies_are_told_after_any_stop(account: Account, body: bytes) -> None:
    """A body that was never published, or is damaged, is wrong even after a kill."""
    come_back(account, message(), message(body))
    assert faults(account, is_clean=False) == ["2 strange"]


def test_losses_of_a_kill_are_counted_only(account: Account) -> None:
    """After a kill missing messages are in the counts, and no fault."""
    account.restarted()
    judgement = judge(account, is_clean=False, keeps_delays=True)
    assert judgement.faults == ()
    assert judgement.counts["missing"] == 2


def test_duplicates_are_counted(account: Account) -> None:
    """A message that comes back twice is counted, and is no fault: at least once is promised."""
    come_back(account, message(), message(attempts=2))
    assert faults(account) == []
    assert judge(account, is_clean=True, keeps_delays=True).counts["duplicates"] == 2
