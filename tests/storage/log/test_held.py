"""Deferred messages of a log: what is due comes once, at its time, and is read in few jobs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trionsq.core.batch import Segment
from trionsq.core.ids import IdSource
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder
from trionsq.storage.log import budgets, duereader, held, reading
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.rows import PutHeld
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import MemoryState
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_795_263_063_880_871_234
MS_NS = 1_000_000


class Channel:
    """A channel of a log whose messages are deferred, and are on the disk alone; jobs wait until
    they are told to run.

    Attributes:
        woken: how often the channel was asked to look at once.
    """

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.jobs = HeldBackground()
        self.node = LogNode(
            DataFolder(self.disk, self.jobs), MemoryState(self.disk), durability="always"
        )
        self.log = self.node.new_topic("t")
        self.topic = TopicState("t", 0, self.log, IdSource(1))
        self.cursor: Cursor = self.node.new_cursor(self.log, "c")
        self.woken = 0
        self.held = self.cursor.held
        assert self.cursor.new_deferred(self._scan_at) is self.held
        self.jobs.run_all()

    def _scan_at(self, at_s: float) -> None:
        assert at_s == 0.0
        self.woken += 1

    def defer(self, bodies: list[bytes], delay_ms: int) -> None:
        """Publish a batch of messages that are due so long after `NOW_NS`."""
        self.topic.publish(ListBodies(bodies), NOW_NS, delay_ms)
        self.jobs.run_all()
        segment = self.log.read(1000, 1 << 20)
        assert segment is not None
        self.log.cache.clear()
        self.held.add_segment(segment, NOW_NS + delay_ms * MS_NS)

    def pop(self, at_ms: int) -> list[Segment]:
        """Pop what is due so long after `NOW_NS`, and let jobs wait."""
        return list(self.held.pop_due(NOW_NS + at_ms * MS_NS))

    def take(self, at_ms: int) -> list[Segment]:
        """Pop what is due, and run jobs as long as it waits for them."""
        found = self.pop(at_ms)
        while self.held.next_ns is None and self.jobs:
            self.jobs.run_all()
            found += self.pop(at_ms)
        return found

    def free_all(self) -> None:
        """Check that nothing counts as read ahead when all is gone."""
        self.held.drop(1, 1)
        self.jobs.run_all()
        assert repr(self.node._reads) == "<ReadBudget 0 bytes>"


def bodies_of(segments: list[Segment]) -> list[bytes]:
    return [body for one in segments for body in one.batch.bodies.slice(one.first, one.last)]


def test_a_stream_of_due_messages_waits_for_no_read() -> None:
    """Once the first has come the others are read before their time, many in a job, and what was
    read together is delivered together."""
    channel = Channel()
    for at in range(400):
        channel.defer([b"%d" % at, b"%d+" % at], 1_000 + at)
    channel.take(1_000)
    channel.jobs.run_all()
    submitted = channel.jobs.submitted
    found = [channel.pop(at_ms) for at_ms in range(1_100, 1_500, 100)]
    assert [len(bodies_of(one)) for one in found] == [200, 200, 200, 198]
    assert all(len(one) <= 2 for one in found)
    assert channel.jobs.submitted == submitted
    assert len(channel.held) == 0
    channel.free_all()


def test_what_is_not_due_soon_is_not_read() -> None:
    """Memory holds only what will be due within a second, and that only up to a size."""
    channel = Channel()
    channel.defer([b"first"], 1)
    channel.defer([b"later"], 5_000)
    channel.take(1)
    assert len(channel.jobs) == 0
    for at in range(40):
        channel.defer([bytes(100_000)], 5_001 + at)
    assert bodies_of(channel.take(5_000)) == [b"later"]
    channel.jobs.run_all()
    held_bytes = int(repr(channel.node._reads).split()[1])
    assert 1_000_000 <= held_bytes <= 1_200_000
    channel.free_all()


def test_many_large_messages_are_not_read_at_once() -> None:
    """All are due, and each job reads about a megabyte; none is left out."""
    channel = Channel()
    for _ in range(30):
        channel.defer([bytes(200_000)], 1)
    found: list[int] = []
    while len(channel.held):
        found.append(len(channel.pop(1)))
        channel.jobs.run_all()
    assert sum(found) == 30
    assert max(found) <= 6
    channel.free_all()


def test_what_one_scan_leaves_comes_with_the_next() -> None:
    """A scan that has done enough stops in the middle of what was read; it is called again."""
    channel = Channel()
    for number in range(3):
        channel.defer([b"%d" % number], 1)
        channel.defer([b"later"], 60_000)
    channel.pop(1)
    channel.jobs.run_all()
    for number in range(3):
        next_ns = channel.held.next_ns
        assert next_ns is not None
        assert next_ns <= NOW_NS + MS_NS
        assert bodies_of([next(channel.held.pop_due(NOW_NS + MS_NS))]) == [b"%d" % number]
    assert len(channel.held) == 3


@pytest.mark.parametrize("second_ms", [1, 2])
def test_the_state_gets_no_chunk_again_for_what_has_left(
    second_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time says it, but not of messages that are due together: one has left and one not."""
    monkeypatch.setattr(held, "_MAX_DUE", 1)
    channel = Channel()
    channel.defer([b"a"], 1)
    channel.defer([b"b"], second_ms)
    assert any(isinstance(one, PutHeld) for one in channel.held.changes(1))
    channel.pop(1)
    channel.jobs.run_all()
    assert bodies_of([next(channel.held.pop_due(NOW_NS + MS_NS))]) == [b"a"]
    written = any(isinstance(one, PutHeld) for one in channel.held.changes(1))
    assert written == (second_ms == 1)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_channel_is_not_asked_again_before_what_it_waits_for_has_come(is_ahead: bool) -> None:
    """While a job reads, there is no next time; then the channel is woken."""
    channel = Channel()
    if is_ahead:
        channel.defer([b"0"], 1)
    channel.defer([b"1"], 500)
    if is_ahead:
        channel.take(1)
    assert not channel.pop(500)
    assert not channel.pop(500)
    assert channel.held.next_ns is None
    assert len(channel.jobs) == 1
    woken = channel.woken
    channel.jobs.run_all()
    assert channel.woken == woken + 1
    assert bodies_of(channel.pop(500)) == [b"1"]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_lost_message_is_counted_once_at_its_time(is_ahead: bool) -> None:
    """Damage that is found ahead counts when the message is due, and holds up no other."""
    channel = Channel()
    if is_ahead:
        channel.defer([b"now"], 1)
    channel.defer([b"lost1", b"lost2"], 500)
    channel.defer([b"good"], 500)
    [name] = [segment.name for segment in channel.log.segments]
    damage(channel.disk, name, b"lost1")
    if is_ahead:
        assert bodies_of(channel.take(1)) == [b"now"]
        channel.jobs.run_all()
        assert not channel.cursor.dropped
    assert bodies_of(channel.take(500)) == [b"good"]
    assert channel.cursor.dropped == Counter(damaged=2)
    assert channel.held.lost_count == 2
    assert len(channel.held) == 0
    channel.free_all()


def damage(disk: SimulatedDisk, name: str, text: bytes) -> None:
    file = disk.open(name)
    at = file.read(file.size(), 0).index(text)
    file.write(b"?", at)
    file.close()


def test_what_an_emptied_channel_had_read_counts_no_more() -> None:
    """Also what a job brings after that."""
    channel = Channel()
    for at in range(20):
        channel.defer([bytes(1_000)], 100 + at)
    channel.take(100)
    assert len(channel.jobs) == 1  # it reads ahead
    channel.held.drop(1, 1)
    channel.jobs.run_all()
    assert repr(channel.node._reads) == "<ReadBudget 0 bytes>"


STEPS = st.lists(
    st.tuples(st.just("defer"), st.integers(0, 60), st.integers(1, 6), st.booleans())
    | st.tuples(st.just("wait"), st.integers(0, 30), st.just(0), st.just(False))
    | st.tuples(st.just("pop"), st.integers(1, 4), st.just(0), st.booleans())
    | st.tuples(st.just("jobs"), st.integers(1, 3), st.just(0), st.just(False)),
    max_size=40,
)


@given(steps=STEPS, most=st.sampled_from([1, 3, 1000]), share=st.sampled_from([1, 4]))
@settings(deadline=None)
def test_each_message_comes_once_and_never_early(
    steps: list[tuple[str, int, int, bool]], most: int, share: int
) -> None:
    """However scans, jobs and new messages alternate, and however little a job may read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duereader, "_MAX_READ", most)
        patch.setattr(duereader, "_MAX_AHEAD", 2 * most)
        patch.setattr(duereader, "_AHEAD_BYTES", 8_000)
        patch.setattr(budgets, "_BLOCK_BYTES", 1_000)
        patch.setattr(reading, "_MIN_SHARE", share)
        patch.setattr(reading, "_JOINED_MESSAGES", 3 * most)
        _check_steps(steps)


def _check_steps(steps: list[tuple[str, int, int, bool]]) -> None:
    channel = Channel()
    due_ms: dict[bytes, int] = {}
    came: list[bytes] = []
    now_ms = 0

    def pop(most: int) -> None:
        popped = channel.held.pop_due(NOW_NS + now_ms * MS_NS)
        for _, segment in zip(range(most), popped, strict=False):
            for body in bodies_of([segment]):
                assert due_ms[body] <= now_ms
                came.append(body)

    for what, number, count, is_large in steps:
        if what == "defer":
            bodies = [b"%04d" % (len(due_ms) + at) + bytes(3_000 * is_large) for at in range(count)]
            due_ms.update(dict.fromkeys(bodies, now_ms + number))
            channel.defer(bodies, now_ms + number)
        elif what == "wait":
            now_ms += number
        elif what == "pop":
            pop(number)
        else:
            for _ in range(min(number, len(channel.jobs))):
                channel.jobs.run_one()
        assert len(channel.held) == len(due_ms) - len(came)
    now_ms += 100
    misses = 0
    while len(channel.held):
        before = len(channel.held)
        channel.jobs.run_all()
        pop(1000)
        misses = misses + 1 if len(channel.held) == before else 0
        assert misses < 3
    assert sorted(came) == sorted(due_ms)
    channel.free_all()
