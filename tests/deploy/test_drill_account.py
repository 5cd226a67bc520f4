"""The account of the failure drills finds all faults and no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deploy.drill.account import History, judge

NODES = ["n0", "n1"]
CHANNELS = ["a", "b"]


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def history() -> tuple[History, Clock]:
    """An empty one."""
    clock = Clock()
    return History(NODES, CHANNELS, clock=clock, name=b"test"), clock


def deliver(account: History, *numbers: int, node: str = "n0", channels: str = "ab") -> None:
    """Once to each of the channels."""
    bodies = [account.body(number) for number in numbers]
    for channel in channels:
        come(account, channel, node, bodies)


def come(account: History, channel: str, node: str, bodies: list[bytes]) -> None:
    """To one channel, where they are finished; each has a new id."""
    ids = [b"%016x" % (account.delivered_by.total() + number) for number in range(len(bodies))]
    account.finished(account.delivered(channel, node, ids, bodies, [1] * len(bodies)))


def good_run() -> tuple[History, Clock]:
    """Ten messages of n0, which all came."""
    account, clock = history()
    account.acknowledged(account.begin(10), "n0")
    deliver(account, *range(10))
    return account, clock


def test_a_run_in_which_all_is_well() -> None:
    """A run without faults has no findings."""
    account, _ = good_run()
    judged = judge(account)
    assert judged.wrong == ()
    assert judged.counts["acknowledged"] == judged.counts["delivered"] == 10
    assert not judged.counts["lost"]
    assert not judged.counts["duplicated"]


def test_a_message_that_one_channel_never_got_is_lost() -> None:
    """The finding has the channel, and the node that acknowledged the message."""
    account, _ = good_run()
    account.acknowledged(account.begin(), "n1")
    deliver(account, 10, channels="a")
    judged = judge(account)
    assert judged.counts["lost"] == 1
    [wrong] = judged.wrong
    assert wrong.startswith("1 x lost: drill/b: n1 lost 1, 0 allowed")


def test_a_message_that_nobody_acknowledged_may_come_or_not() -> None:
    """An unacknowledged message may be delivered; then it is counted."""
    account, _ = good_run()
    account.begin(2)
    deliver(account, 10)
    judged = judge(account)
    assert judged.wrong == ()
    assert judged.counts["unknown"] == 1


def test_what_comes_again_is_a_duplicate() -> None:
    """Each delivery on a channel after the first is counted as a duplicate."""
    account, _ = good_run()
    deliver(account, 3, 3, channels="b")
    deliver(account, 4, node="n1")
    judged = judge(account)
    assert judged.wrong == ()
    assert judged.counts["duplicated"] == 4


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"other 1 ".ljust(100, b"."),
        b"test 10 ".ljust(100, b"."),
        b"test -1 ".ljust(100, b"."),
        b"test 1 ",
        b"test 1 ".ljust(99, b".") + b"!",
        b"test 01 ".ljust(100, b"."),
        b"test " + b"9" * 5000,
    ],
)
def test_a_body_that_nobody_published_is_strange(body: bytes) -> None:
    """A body of another run, of a later number, or damaged, is reported."""
    account, _ = good_run()
    come(account, "a", "n0", [body])
    judged = judge(account)
    assert judged.counts["strange"] == 1
    assert judged.wrong[0].startswith("1 x invented: drill/a ")


def test_a_publish_that_no_node_took_is_wrong() -> None:
    """A publish that failed everywhere is a fault; one that the next node accepted is not."""
    account, _ = good_run()
    account.failed(OSError("gone"))
    assert judge(account).wrong == ()
    account.gave_up(account.begin(3))
    judged = judge(account)
    assert judged.counts["uncured"] == 3
    assert judged.counts["failed"] == 1
    assert "OSError" in judged.wrong[0]


def test_silence_is_no_good_run() -> None:
    """A run without publishes is a fault."""
    account, _ = history()
    assert judge(account).wrong == ("nothing was delivered at all",)


def test_a_killed_node_may_lose_what_it_had_and_no_more() -> None:
    """Messages beyond those in its memory, and messages of other nodes, must not be lost."""
    account, _ = good_run()
    account.acknowledged(account.begin(), "n0")
    account.allowance.note_memory("n0", "drill", "", 1)
    judged = judge(account)
    assert judged.counts["lost"] == 1
    assert judged.wrong == ()
    account.acknowledged(account.begin(), "n1")
    assert judge(account).wrong[0].startswith("2 x lost: drill/a: n1 lost 1, 0 allowed")
    account.acknowledged(account.begin(), "n0")
    assert judge(account).wrong[0].startswith("4 x lost: drill/a: n0 lost 2, 1 allowed")


def test_a_message_that_nobody_finished_is_lost() -> None:
    """It has to come again; attempts tell how often it came."""
    account, _ = good_run()
    account.acknowledged(account.begin(), "n0")
    for attempts in (1, 2):
        for channel in CHANNELS:
            account.delivered(channel, "n0", [b"0" * 16], [account.body(10)], [attempts])
    assert judge(account).wrong[0].startswith("2 x lost")
    for channel in CHANNELS:
        account.finished(
            account.delivered(channel, "n0", [b"0" * 16], [account.body(10)], [attempts])
        )
    assert judge(account).wrong[0].startswith("2 x attempts")


def test_what_waited_at_the_broken_node_and_came_later_is_recovered() -> None:
    """Messages delivered meanwhile, or by another node, are not counted as recovered."""
    account, clock = history()
    account.acknowledged(account.begin(3), "n0")
    account.acknowledged(account.begin(1), "n1")
    fault = account.fault_began("n0")
    clock.now_s += 1
    deliver(account, 0)
    deliver(account, 1, channels="a")
    account.acknowledged(account.begin(), "n0")  # 4
    clock.now_s += 1
    account.fault_ended(fault)
    clock.now_s += 0.5
    account.acknowledged(account.begin(), "n0")  # 5
    deliver(account, 1, channels="b")
    deliver(account, 2, 3, 4, 5)
    assert judge(account).counts["recovered"] == 3


def test_silence_is_measured_while_a_fault_counts() -> None:
    """The gap is the longest of any channel, from the fault to its end."""
    account, clock = good_run()
    account.begin(20)
    clock.now_s += 50  # nothing is broken yet
    fault = account.fault_began("n0")
    clock.now_s += 2
    deliver(account, 10, node="n1", channels="a")
    clock.now_s += 1
    deliver(account, 11, node="n1", channels="b")
    account.fault_ended(fault)
    clock.now_s += 0.25
    deliver(account, 12, node="n1")
    clock.now_s += 0.25
    deliver(account, 13)
    account.calm()
    clock.now_s += 50
    deliver(account, 14)
    counts = account.counts()
    assert counts["gap_ms"] == 3000
    assert counts["first_ms"] == 2000
    assert counts["back_ms"] == 500


def test_silence_that_was_asked_for_does_not_count() -> None:
    """A pause of the consumers within a fault does not count as a gap."""
    account, clock = good_run()
    account.begin(20)
    account.resumed()  # nothing is broken yet
    clock.now_s += 50
    deliver(account, 10)
    account.fault_began("n0")
    clock.now_s += 1
    account.calm()
    clock.now_s += 50
    account.resumed()
    clock.now_s += 2
    deliver(account, 11)
    account.calm()
    assert account.counts()["gap_ms"] == 2000


def test_silence_that_never_ends_counts_too() -> None:
    """A channel that receives nothing any more has a gap up to the end."""
    account, clock = good_run()
    account.fault_began()
    clock.now_s += 7
    deliver(account, 1, channels="a")
    account.calm()
    assert account.counts()["gap_ms"] == 7000


@dataclass
class Reference:
    """The same account, kept as plainly as can be."""

    attempted: int = 0
    acked: dict[int, tuple[str, float]] = field(default_factory=dict)
    came: list[tuple[str, int, float]] = field(default_factory=list)
    strange: int = 0
    down: list[tuple[float, float]] = field(default_factory=list)  # began, ended, of n0

    def counts(self) -> Counter[str]:
        by_channel = {
            channel: [(number, at_s) for where, number, at_s in self.came if where == channel]
            for channel in CHANNELS
        }
        got = [{number for number, _ in pairs} for pairs in by_channel.values()]
        by_all = set.intersection(*got)
        return Counter(
            attempted=self.attempted,
            acknowledged=len(self.acked),
            delivered=len(by_all),
            lost=len(self.acked.keys() - by_all),
            unknown=len(by_all - self.acked.keys()),
            duplicated=len(self.came) - sum(map(len, got)),
            strange=self.strange,
            recovered=sum(self._is_recovered(number, by_channel) for number in self.acked),
        )

    def _is_recovered(self, number: int, by_channel: dict[str, list[tuple[int, float]]]) -> bool:
        node, acked_s = self.acked[number]
        firsts = [
            min(at_s for one, at_s in pairs if one == number)
            for pairs in by_channel.values()
            if any(one == number for one, _ in pairs)
        ]
        return node == "n0" and any(
            acked_s <= ended_s <= first_s for _, ended_s in self.down for first_s in firsts
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("attempt"), st.integers(1, 3), st.sampled_from(["n0", "n1", ""])),
        st.tuples(st.just("deliver"), st.integers(0, 30), st.sampled_from(CHANNELS)),
        st.tuples(st.just("fault"), st.just(0), st.just("")),
    ),
    max_size=60,
)


@given(STEPS)
def test_figures_are_those_of_a_plain_account(steps: list[tuple[str, int, str]]) -> None:
    """The figures equal those of a plain account, for any history."""
    account, clock = history()
    plain = Reference()
    fault = None
    for what, value, where in steps:
        clock.now_s += 1
        if what == "attempt":
            numbers = account.begin(value)
            if where:
                account.acknowledged(numbers, where)
                plain.acked |= dict.fromkeys(numbers, (where, clock.now_s))
            plain.attempted += value
        elif what == "deliver":
            if value < plain.attempted:
                plain.came.append((where, value, clock.now_s))
            else:
                value += 1000  # never attempted
                plain.strange += 1
            come(account, where, "n0", [account.body(value)])
        elif fault is None:
            fault = account.fault_began("n0")
        else:
            account.fault_ended(fault)
            plain.down.append((fault.began_s, clock.now_s))
            fault = None
    if fault is not None:
        clock.now_s += 1
        account.fault_ended(fault)
        plain.down.append((fault.began_s, clock.now_s))
    counts = judge(account).counts
    expected = plain.counts()
    assert {name: counts[name] for name in expected} == dict(expected)
