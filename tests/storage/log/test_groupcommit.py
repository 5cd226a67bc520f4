"""Rounds that wait for more (trionsq.storage.log.groupcommit, nodejobs), with publishers and a disk
that are a few numbers, and a clock that is one."""

from __future__ import annotations

import errno
from heapq import heappop, heappush
from math import inf

import pytest

from tests.storage.log.test_single_writes import Node
from trionsq.core.round import Round
from trionsq.storage.log.groupcommit import GroupCommit
from trionsq.storage.log.rows import UpdateTopic
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_700_000_000_000_000_000


class NeverWaits(GroupCommit):
    """Rounds as they come."""

    def end_round(self, messages: int, gathered: int, took_s: float, now_s: float) -> int:
        return 0


class Model:
    """Publishers and a disk.

    Attributes:
        group_commit: what decides.
        waited: rounds that waited.
        published: messages that were made safe.
    """

    def __init__(self, group_commit: GroupCommit, write_s: float) -> None:
        self.group_commit = group_commit
        self.waited = self.published = 0
        self._write_s = write_s
        self._now_s = 0.0
        # When who publishes, and how long after the answer again.
        self._arrivals: list[tuple[float, float]] = []
        self._gathered: list[float] = []

    def add_publishers(self, count: int, turnaround_s: float) -> None:
        """They wait for the answer, and publish again after so long, one after the other."""
        self._arrivals += [(at * 1e-6, turnaround_s + at * 1e-6) for at in range(count)]

    def add_stream(self, count: int, every_s: float) -> None:
        """Messages that come whatever the disk does."""
        self._arrivals += [(number * every_s, inf) for number in range(count)]

    def run(self, rounds: int) -> float:
        """Return the messages a second of so many rounds."""
        began_s, before = self._now_s, self.published
        self._arrivals.sort()
        for _ in range(rounds):
            if not self._gathered:
                self._advance(self._arrivals[0][0])
            round_, self._gathered = self._gathered, []
            self._advance(self._now_s + self._write_s)
            self.published += len(round_)
            for turnaround_s in round_:
                if turnaround_s < inf:
                    heappush(self._arrivals, (self._now_s + turnaround_s, turnaround_s))
            self._wait(len(round_))
        return (self.published - before) / (self._now_s - began_s)

    def _advance(self, until_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] <= until_s:
            self._gathered.append(heappop(self._arrivals)[1])
        self._now_s = max(self._now_s, until_s)

    def _wait(self, written: int) -> None:
        commit = self.group_commit
        awaited = commit.end_round(written, len(self._gathered), self._write_s, self._now_s)
        self.waited += awaited > 0
        while len(self._gathered) < awaited:
            ends_s = self._now_s + commit.wait_s
            while self._arrivals and self._arrivals[0][0] <= ends_s:
                self._advance(self._arrivals[0][0])
                if len(self._gathered) >= awaited:
                    return
            self._advance(ends_s)
            if not commit.goes_on_waiting(awaited - len(self._gathered)):
                return


@pytest.mark.parametrize("count", [2, 10, 50, 200])
def test_publishers_that_come_again_are_one_group(count: int) -> None:
    """Once that was tried, each round has all of them, and not the half."""
    rates = []
    for commit in (NeverWaits(), GroupCommit()):
        model = Model(commit, write_s=0.003)
        model.add_publishers(count, 0.0002)
        model.run(1_000)
        rates.append(model.run(1_000))
    assert rates[1] > 1.5 * rates[0]


def test_who_does_not_come_again_is_not_waited_for() -> None:
    """A stream of messages gets nothing from it: after the trial fewer and fewer rounds wait."""
    model = Model(GroupCommit(), write_s=0.003)
    model.add_stream(300_000, 0.001)
    model.run(1_000)
    tried = model.waited
    assert tried
    model.run(20_000)
    assert model.waited - tried < 500


@pytest.mark.parametrize(("count", "write_s"), [(1, 0.003), (50, 0.0001)])
def test_alone_or_on_a_fast_disk_nobody_waits(count: int, write_s: float) -> None:
    """One publisher has nobody to be joined with; and a fast disk is not what they wait for."""
    model = Model(GroupCommit(), write_s)
    model.add_publishers(count, 0.0002)
    model.run(2_000)
    assert not model.waited


def test_when_the_publishers_change_it_is_tried_again() -> None:
    """Those who came again stop; what follows is a stream, which soon waits no more."""
    model = Model(GroupCommit(), write_s=0.003)
    model.add_publishers(10, 0.0002)
    model.run(2_000)
    assert model.waited > 500
    model._arrivals.clear()
    model._gathered.clear()
    model._arrivals += [(model._now_s + 1 + at * 0.001, inf) for at in range(300_000)]
    model.run(4_000)
    before = model.waited
    model.run(4_000)
    assert model.waited - before < 300


# In a node


class AwaitsTwo(GroupCommit):
    """Each round waits for two messages, for no time; or as often again as is asked for."""

    def __init__(self, again: int = 0) -> None:
        super().__init__()
        self.wait_s = 0.0
        self.again = again
        self.rounds: list[int] = []

    def end_round(self, messages: int, gathered: int, took_s: float, now_s: float) -> int:
        self.rounds.append(messages)
        return 2 if gathered < 2 else 0

    def goes_on_waiting(self, missing: int) -> bool:
        self.again -= 1
        return self.again >= 0


@pytest.fixture(params=[True, False], ids=["kernel", "thread"])
def node(request: pytest.FixtureRequest) -> Node:
    """A node that waits for two messages, and has just written a round."""
    made = Node(SimulatedDisk(), topics=2)
    made.jobs.writes_directly = request.param
    made.node._jobs._group_commit = AwaitsTwo()
    begin(made, b"first")
    made.jobs.run_one()
    return made


def begin(node: Node, body: bytes, topic: int = 0) -> Round:
    """Publish, and run no job."""
    round_ = node.topics[topic].publish(ListBodies([body]), NOW_NS)
    assert round_ is not None
    return round_


def test_the_next_round_has_what_was_waited_for(node: Node) -> None:
    """It begins with the second message, of whatever topic."""
    one = begin(node, b"one")
    submitted = node.jobs.submitted
    two = begin(node, b"two", topic=1)
    assert node.jobs.submitted == submitted + 1
    node.jobs.run_all()
    assert (one.is_done, one.error, two.is_done, two.error) == (True, None, True, None)
    commit = node.node._jobs._group_commit
    assert isinstance(commit, AwaitsTwo)
    assert commit.rounds == [1, 2]
    node.close()


@pytest.mark.parametrize("again", [0, 2])
def test_what_does_not_come_is_not_waited_for_long(node: Node, again: int) -> None:
    """After the wait, and as many more as there are, the round begins with what there is."""
    node.node._jobs._group_commit = commit = AwaitsTwo(again)
    one = begin(node, b"one")
    assert not one.is_done
    for _ in range(again):
        node.jobs.run_one()
        assert not one.is_done
    node.jobs.run_all()
    assert (one.is_done, one.error) == (True, None)
    assert commit.again < 0
    node.close()


def test_a_commit_and_a_sync_do_not_wait(node: Node) -> None:
    """What waits is written with them."""
    one = begin(node, b"one")
    submitted = node.jobs.submitted
    log = node.topics[0].store.backend
    assert isinstance(log, TopicLog)
    committed = node.node.commit([UpdateTopic(log.row())])
    assert node.jobs.submitted == submitted + 1
    node.jobs.run_all()
    assert one.is_done
    assert committed.is_done
    two = begin(node, b"two")
    log.sync()
    node.jobs.run_all()
    assert (two.is_done, two.error) == (True, None)
    node.close()


def test_behind_an_error_nobody_waits(node: Node) -> None:
    """What is refused is told at once, and the next publish finds out about the disk."""
    one, two = begin(node, b"one"), begin(node, b"two")
    node.jobs.run_all()
    assert (one.error, two.error) == (None, None)
    node.disk.fail(errno.EIO, forever=True, only=("write", "sync", "create"))
    three, four = begin(node, b"three"), begin(node, b"four")
    node.jobs.run_all()
    assert three.error
    assert four.error
    node.disk.heal()
    node.jobs.run_all()
    five, six = begin(node, b"five"), begin(node, b"six")
    node.jobs.run_all()
    assert (five.is_done, six.is_done) == (True, True)
    assert five.error == six.error
    node.close()


def test_a_deleted_topic_is_not_waited_for(node: Node) -> None:
    """Its publisher hears that it is gone; the other topic goes on."""
    one = begin(node, b"one")
    node.topics[0].store.backend.delete()
    two = begin(node, b"two", topic=1)
    node.jobs.run_all()
    assert one.is_done
    assert (two.is_done, two.error) == (True, None)
