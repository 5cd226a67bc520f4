"""Sharing max_in_flight over connections (trionsq.client.flow)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trio.testing import MockClock, wait_all_tasks_blocked

from trionsq.client.backoff import Outcome, Phase
from trionsq.client.config import Config
from trionsq.client.flow import (
    SETTLE_S,
    FlowControl,
    Plan,
    Share,
    even_share,
    plan,
    plan_test,
    redistribute,
)


@pytest.mark.parametrize(
    ("max_in_flight", "connections", "expected"),
    [(100, 1, 100), (100, 3, 33), (3, 5, 1), (1, 1, 1), (0, 4, 0), (5, 0, 0)],
)
def test_the_even_share(max_in_flight: int, connections: int, expected: int) -> None:
    """The integer part, at least 1; 0 if there is nothing to share."""
    assert even_share(max_in_flight, connections) == expected


def test_no_more_than_nsqd_takes() -> None:
    """max_rdy_count limits the share of one connection."""
    assert plan([Share(10), Share(2500)], 100).rdy == [10, 50]


def test_a_lowered_share_is_given_on_only_once_it_is_free() -> None:
    """Messages that may still be in flight count until they have settled and are answered."""
    old, new = Share(2500), Share(2500)
    old.set_rdy(plan([old], 10).rdy[0], 0)
    old.in_flight = 8
    first = plan([old, new], 10)
    assert (first.rdy, first.is_short) == ([5, 0], True)
    old.set_rdy(5, 1)
    old.settle()
    assert plan([old, new], 10).rdy == [5, 2]
    old.in_flight = 4
    second = plan([old, new], 10)
    assert (second.rdy, second.is_short) == ([5, 5], False)


def test_little_room_is_shared_too() -> None:
    """RDY 1 for each connection comes before more for any."""
    old, *new = (Share(2500) for _ in range(4))
    old.set_rdy(20, 0)
    old.set_rdy(5, 0)
    old.settle()
    old.in_flight = 16
    assert plan([old, *new], 20).rdy == [5, 2, 1, 1]


def test_who_waited_longest_is_next() -> None:
    """With less than RDY 1 for each, connections take turns."""
    shares = [Share(2500) for _ in range(3)]
    turns = []
    for now_s in range(0, 60, 10):
        for i in redistribute(shares, now_s, idle_timeout_s=10, timeout_s=30):
            shares[i].set_rdy(0, now_s)
            shares[i].settle()
        for share, rdy in zip(shares, plan(shares, 1).rdy, strict=True):
            if share.rdy != rdy:
                share.set_rdy(rdy, now_s)
        turns.append([share.rdy for share in shares].index(1))
    assert turns == [0, 1, 2, 0, 1, 2]


def test_a_busy_connection_keeps_its_turn_for_the_longer_time() -> None:
    """Idle connections drop to 0 after one timeout, busy ones after the other."""
    busy, waiting = Share(2500), Share(2500)
    busy.set_rdy(1, 0)
    busy.message_s = 25
    assert redistribute([busy, waiting], 29, idle_timeout_s=10, timeout_s=30) == []
    assert redistribute([busy, waiting], 30, idle_timeout_s=10, timeout_s=30) == [0]
    assert redistribute([busy], 99, idle_timeout_s=10, timeout_s=30) == []


def test_a_turn_counts_from_its_begin() -> None:
    """Another RDY above 0 begins no new turn: the others would wait for ever."""
    busy, waiting = Share(2500), Share(2500)
    busy.set_rdy(2, 0)
    for now_s in range(5, 30, 5):
        busy.set_rdy(1 + now_s % 2, now_s)
        busy.message_s = now_s
    assert redistribute([busy, waiting], 30, idle_timeout_s=10, timeout_s=30) == [0]


def test_one_connection_is_tested() -> None:
    """In backoff the preferred connection gets RDY 1, unless another one has it."""
    shares = [Share(2500) for _ in range(3)]
    assert plan_test(shares, 5, [2, 0, 1]).rdy == [0, 0, 1]
    shares[0].in_flight = 5
    assert plan_test(shares, 5, [2, 1, 0]).rdy == [1, 0, 0]  # the others would be a sixth
    shares[1].set_rdy(1, 0)
    assert plan_test(shares, 5, [2, 0, 1]).rdy == [0, 1, 0]


def test_another_connection_is_tested_when_one_was_idle() -> None:
    """The one that has just dropped to RDY 0 does not rise again in place of the preferred one."""
    idle, other = Share(2500), Share(2500)
    idle.set_rdy(1, 0)
    idle.set_rdy(0, 10)
    assert plan_test([idle, other], 1, [1, 0]) == Plan([0, 0], is_short=True)
    idle.settle()
    assert plan_test([idle, other], 1, [1, 0]).rdy == [0, 1]


@dataclass
class Nsqd:
    """One connection with all bytes on their way. Commands and messages take their time."""

    share: Share
    rdy: int = 0
    in_flight: int = 0
    upward: deque[int] = field(default_factory=deque)
    """RDY under way; -1 is an answer."""
    downward: int = 0
    """Messages under way."""

    def tell(self, rdy: int, now_s: float) -> None:
        if rdy != self.share.rdy:
            self.share.set_rdy(rdy, now_s)
            self.upward.append(rdy)

    def read(self) -> None:
        """nsqd reads one command."""
        command = self.upward.popleft()
        if command == -1:
            self.in_flight -= 1
        else:
            self.rdy = command

    def send(self) -> None:
        """nsqd sends as many messages as RDY allows."""
        self.downward += max(0, self.rdy - self.in_flight)
        self.in_flight = max(self.in_flight, self.rdy)

    def arrive(self) -> None:
        """Messages on their way arrive."""
        self.share.in_flight += self.downward
        self.downward = 0

    def settle(self) -> None:
        while self.upward:
            self.read()
        self.arrive()
        self.share.settle()


class Sharing(RuleBasedStateMachine):
    """Connections come and go, are slow or busy; max_in_flight changes and backoff begins."""

    def __init__(self) -> None:
        super().__init__()
        self.nsqds: list[Nsqd] = []
        self.max_in_flight = 10
        self.limit = 10
        self.now_s = 0.0
        self.is_testing = False

    def plan(self) -> None:
        shares = [nsqd.share for nsqd in self.nsqds]
        if self.is_testing:
            made = plan_test(shares, self.max_in_flight, range(len(shares))[::-1])
        else:
            made = plan(shares, self.max_in_flight)
        for nsqd, rdy in zip(self.nsqds, made.rdy, strict=True):
            nsqd.tell(rdy, self.now_s)

    @precondition(lambda self: len(self.nsqds) < 8)
    @rule(max_rdy=st.sampled_from([1, 3, 2500]))
    def connect(self, max_rdy: int) -> None:
        self.nsqds.append(Nsqd(Share(max_rdy)))
        self.plan()

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        self.nsqds.remove(data.draw(st.sampled_from(self.nsqds)))
        self.plan()

    @rule(moves=st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["read", "send", "arrive"]))))
    def act(self, moves: list[tuple[int, str]]) -> None:
        """Some of what is on its way arrives."""
        for number, move in moves:
            if number < len(self.nsqds):
                nsqd = self.nsqds[number]
                if move == "send":
                    nsqd.send()
                elif move == "arrive":
                    nsqd.arrive()
                elif nsqd.upward:
                    nsqd.read()
        self.plan()

    @rule()
    def send_all(self) -> None:
        """All nsqds read their commands and send what RDY allows; nothing arrives yet."""
        for nsqd in self.nsqds:
            while nsqd.upward:
                nsqd.read()
            nsqd.send()

    @precondition(lambda self: any(nsqd.share.in_flight for nsqd in self.nsqds))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        nsqd = data.draw(st.sampled_from([n for n in self.nsqds if n.share.in_flight]))
        for _ in range(data.draw(st.integers(1, nsqd.share.in_flight))):
            nsqd.share.in_flight -= 1
            nsqd.upward.append(-1)
        self.plan()

    @precondition(lambda self: self.nsqds)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.nsqds)).settle()
        self.plan()

    @rule(max_in_flight=st.integers(1, 20))
    def change(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.limit = max(self.limit, max_in_flight)
        self.plan()

    @rule(seconds=st.integers(1, 20))
    def take_turns(self, seconds: int) -> None:
        self.now_s += seconds
        shares = [nsqd.share for nsqd in self.nsqds]
        if len(shares) > self.max_in_flight:
            for i in redistribute(shares, self.now_s, 10, 30):
                self.nsqds[i].tell(0, self.now_s)
            self.plan()

    @rule()
    def back_off(self) -> None:
        self.is_testing = not self.is_testing
        if self.is_testing:  # after a pause
            for nsqd in self.nsqds:
                nsqd.tell(0, self.now_s)
        self.plan()

    @rule()
    def nobody_starves(self) -> None:
        """When nothing changes any more, each connection has its share, or gets its turn."""
        self.is_testing = False
        had: set[int] = set()
        for _ in range(2 * len(self.nsqds) + 2):
            for nsqd in self.nsqds:
                nsqd.send()
                nsqd.settle()
                nsqd.in_flight -= nsqd.share.in_flight
                nsqd.share.in_flight = 0
            self.now_s += 30
            if len(self.nsqds) > self.max_in_flight:
                shares = [nsqd.share for nsqd in self.nsqds]
                for i in redistribute(shares, self.now_s, 10, 30):
                    self.nsqds[i].tell(0, self.now_s)
            self.plan()
            had |= {i for i, nsqd in enumerate(self.nsqds) if nsqd.share.rdy}
        assert had == set(range(len(self.nsqds)))
        part = even_share(self.max_in_flight, len(self.nsqds))
        if len(self.nsqds) <= self.max_in_flight:
            for nsqd in self.nsqds:
                assert nsqd.share.rdy == min(part, nsqd.share.max_rdy)

    @invariant()
    def never_too_many(self) -> None:
        """The program holds, with what is on its way to it, no more than max_in_flight.

        If that was lowered: no more than before, until so many are answered.
        """
        exposed = sum(nsqd.share.exposure for nsqd in self.nsqds)
        self.limit = max(self.max_in_flight, min(self.limit, exposed))
        assert sum(nsqd.share.in_flight + nsqd.downward for nsqd in self.nsqds) <= self.limit


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


class Receiver:
    """A connection of which only the RDY matters; no message ever comes."""

    def __init__(self) -> None:
        self.share = Share(100)
        self.lowered_s = 0.0
        self.sent: list[int] = []

    def send_rdy(self, rdy: int) -> None:
        if rdy == self.share.rdy:
            return
        if rdy < self.share.rdy:
            self.lowered_s = trio.current_time()
        self.share.set_rdy(rdy, trio.current_time())
        self.sent.append(rdy)

    def count_overdue(self, now_s: float) -> None:
        """It never has a message."""


async def test_a_later_connection_gets_its_part_of_an_idle_one(autojump_clock: MockClock) -> None:
    """The room that a lowered RDY leaves is given on when it has settled, without any message."""
    flow = FlowControl(Config(max_in_flight=12), Random(1))
    receivers = [Receiver() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        flow.start(nursery)
        for count, receiver in enumerate(receivers, 1):
            flow.add_connection(receiver)
            await trio.sleep(SETTLE_S / 2)
            assert not receiver.share.rdy or count == 1, "the others may still use theirs"
            await trio.sleep(SETTLE_S)
            assert [each.share.rdy for each in receivers[:count]] == [12 // count] * count
        await trio.sleep(3600)
        assert [each.sent for each in receivers] == [[12, 6, 4], [6, 4], [4]]
        flow.retire_connection(receivers[0])
        flow.remove_connection(receivers[0])
        await trio.sleep(2 * SETTLE_S)
        assert [each.share.rdy for each in receivers[1:]] == [6, 6]
        nursery.cancel_scope.cancel()


async def test_a_closing_connections_room_is_given_on_at_once(autojump_clock: MockClock) -> None:
    """What it could not have used; the rest when its messages are answered."""
    flow = FlowControl(Config(max_in_flight=5), Random(1))
    closing, other = Receiver(), Receiver()
    async with trio.open_nursery() as nursery:
        flow.start(nursery)
        flow.add_connection(closing)
        flow.add_connection(other)
        await trio.sleep(1)
        assert [closing.share.rdy, other.share.rdy] == [2, 2]
        flow.retire_connection(closing)
        await wait_all_tasks_blocked()
        assert [closing.share.rdy, other.share.rdy] == [0, 3]
        nursery.cancel_scope.cancel()


async def test_two_connections_take_turns_at_being_tested(autojump_clock: MockClock) -> None:
    """In backoff the tested one may be idle; the other one then gets RDY 1."""
    flow = FlowControl(Config(max_in_flight=10, low_rdy_idle_timeout_s=10), Random(1))
    receivers = [Receiver(), Receiver()]
    async with trio.open_nursery() as nursery:
        flow.start(nursery)
        for receiver in receivers:
            flow.add_connection(receiver)
        await trio.sleep(1)
        flow.note_answer(Outcome.FAILURE, True)
        await trio.sleep(5)
        assert flow.backoff.phase is Phase.TESTING
        [tested] = [each for each in receivers if each.share.rdy]
        await trio.sleep(12)
        [other] = [each for each in receivers if each.share.rdy]
        assert other is not tested
        nursery.cancel_scope.cancel()
