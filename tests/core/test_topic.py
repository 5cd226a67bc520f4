"""A topic: what is admitted, and how it fans out (trionsq.core.topic)."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.helpers import MemoryBackend, RoundBackend, run_out, wall_ns
from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.ids import IdSource
from trionsq.core.queue import BackendBusy, BackendError
from trionsq.core.topic import TopicState
from trionsq.wire.bodies import ListBodies

MEM = 5


def new_topic(mem: int = MEM) -> tuple[TopicState, MemoryBackend]:
    backend = MemoryBackend()
    return TopicState("t", mem, backend, IdSource(1)), backend


def new_channel(name: str = "c", mem: int = MEM) -> tuple[ChannelState, MemoryBackend]:
    backend = MemoryBackend()
    return ChannelState(name, mem, backend, Random(1)), backend


def bodies(*texts: bytes) -> ListBodies:
    return ListBodies(list(texts))


def pump_all(topic: TopicState) -> int:
    """Until nothing moves any more; how many messages every channel has got by that."""
    before = topic.fanned_out_count
    while topic.pump(1.0, wall_ns(1.0)):
        pass
    return topic.fanned_out_count - before


def drain(channel: ChannelState) -> list[bytes]:
    """The bodies of all that waits in a channel, memory first; takes them out."""
    found: list[bytes] = []
    store = channel.store
    while store.memory:
        one = store.memory.pop_segment(2**63, 2**63)
        found += one.batch.bodies.slice(one.first, one.last)
    while (one_read := store.backend.read(2**63, 2**63)) is not None:
        found += one_read.batch.bodies.slice(one_read.first, one_read.last)
    return found


def test_messages_wait_for_a_channel() -> None:
    """Nothing moves without one; the first channel gets the backlog, a later one does not."""
    topic, _ = new_topic()
    topic.publish(bodies(b"a", b"b"), wall_ns(0))
    assert (pump_all(topic), topic.depth) == (0, 2)
    (first, _), (late, _) = new_channel("first"), new_channel("late")
    topic.add_channel(first)
    assert (pump_all(topic), topic.depth, first.depth) == (2, 0, 2)
    topic.add_channel(late)
    topic.publish(bodies(b"c"), wall_ns(1))
    assert pump_all(topic) == 1
    assert (drain(first), drain(late)) == ([b"a", b"b", b"c"], [b"c"])


def test_copies_share_id_and_timestamp() -> None:
    """Every channel has the same message."""
    topic, _ = new_topic()
    channels = [new_channel(name)[0] for name in "ab"]
    for channel in channels:
        topic.add_channel(channel)
    topic.publish(bodies(b"x"), wall_ns(3))
    pump_all(topic)
    one, other = (channel.store.memory.pop_segment(9, 99) for channel in channels)
    assert one.ids() == other.ids()
    assert one.batch.timestamp_ns == other.batch.timestamp_ns == wall_ns(3)
    assert (one.attempts, other.attempts) == (0, 0)


def test_counters_count_what_was_admitted() -> None:
    """A refused publish is not counted and leaves nothing."""
    topic, backend = new_topic(3)
    topic.publish(bodies(b"abc", b"de"), wall_ns(0))
    backend.refuses = True
    with pytest.raises(BackendError):
        topic.publish(bodies(b"x", b"y"), wall_ns(0))
    assert (topic.message_count, topic.message_bytes, topic.depth) == (2, 5, 2)
    assert backend.refusals == 1


def test_a_paused_topic_does_not_pump() -> None:
    """Publishing goes on."""
    topic, _ = new_topic()
    topic.add_channel(new_channel()[0])
    topic.paused = True
    topic.publish(bodies(b"a"), wall_ns(0))
    assert (pump_all(topic), topic.depth) == (0, 1)
    topic.paused = False
    assert pump_all(topic) == 1


def test_a_deferred_publish_is_deferred_by_each_channel() -> None:
    """From the moment that the topic hands it over."""
    topic, _ = new_topic()
    channel, _ = new_channel()
    topic.add_channel(channel)
    topic.publish(bodies(b"a"), wall_ns(0), defer_ms=500)
    topic.pump(10.0, wall_ns(10.0))
    assert (channel.deferred_count, channel.depth, channel.wake_at_s) == (1, 0, 10.5)
    channel.scan(10.499, wall_ns(10.499))
    assert channel.deferred_count == 1
    channel.scan(10.5, wall_ns(10.5))
    assert (channel.deferred_count, drain(channel)) == (0, [b"a"])


@pytest.mark.parametrize("mem", [0, 2])
def test_the_task_hears_of_messages_that_went_to_the_backend(mem: int) -> None:
    """Also when memory kept none of them."""
    topic, backend = new_topic(mem)
    channel, _ = new_channel(mem=99)
    topic.add_channel(channel)
    woken: list[bool] = []
    topic.wake = lambda: woken.append(True)
    topic.publish(bodies(b"a", b"b", b"c"), wall_ns(0))
    assert (len(woken), topic.depth, backend.depth) == (1, 3, 3 - mem)
    assert (pump_all(topic), topic.depth) == (3, 0)
    assert drain(channel) == [b"a", b"b", b"c"]


def test_a_stream_through_memory_does_not_hold_up_the_backend() -> None:
    """Both are served in turn."""
    topic, backend = new_topic(1)
    channel, _ = new_channel(mem=99)
    for text in (b"memory", b"backend"):
        topic.publish(bodies(text), wall_ns(0))
    topic.add_channel(channel)
    for _ in range(3):
        topic.pump(1.0, wall_ns(1.0))
        if topic.store.room > 0:
            topic.publish(bodies(b"more"), wall_ns(1.0))
    assert backend.depth == 0


def stuck_topic(
    *names: str,
) -> tuple[TopicState, dict[str, ChannelState], dict[str, MemoryBackend]]:
    """A topic whose last channel has no room for the message that was pumped."""
    topic, _ = new_topic()
    channels, backends = {}, {}
    for name in names:
        channels[name], backends[name] = new_channel(name, 0 if name == names[-1] else MEM)
        topic.add_channel(channels[name])
    backends[names[-1]].refuses = True
    topic.publish(bodies(b"a"), wall_ns(0))
    assert topic.pump(1.0, wall_ns(1.0)) == 0
    assert topic.error is not None
    return topic, channels, backends


def stuck_at(topic: TopicState) -> ChannelState | None:
    """The channel that holds it up now."""
    return topic.stuck_at


def test_a_channel_without_room_holds_up_the_topic() -> None:
    """The message stays with the channels that lack it; the others don't get it twice."""
    topic, channels, backends = stuck_topic("a", "full")
    topic.publish(bodies(b"b"), wall_ns(1))
    assert (pump_all(topic), topic.depth, channels["a"].depth) == (0, 2, 1)
    assert stuck_at(topic) is channels["full"]
    assert topic.retry()
    assert stuck_at(topic) is None, "unknown until it is tried again"
    assert (pump_all(topic), topic.depth, backends["full"].refusals) == (0, 2, 2)
    assert stuck_at(topic) is channels["full"]
    backends["full"].refuses = False
    assert topic.retry()
    assert (pump_all(topic), topic.depth) == (2, 0)
    assert drain(channels["a"]) == drain(channels["full"]) == [b"a", b"b"]
    assert not topic.retry()


def test_a_stuck_topic_takes_messages_until_it_is_full() -> None:
    """Then the publisher hears of it."""
    topic, _, _ = stuck_topic("full")
    assert isinstance(topic.store.backend, MemoryBackend)
    topic.store.backend.refuses = True
    for _ in range(MEM):
        topic.publish(bodies(b"x"), wall_ns(1))
    with pytest.raises(BackendError):
        topic.publish(bodies(b"x"), wall_ns(1))
    assert topic.depth == MEM + 1


@pytest.mark.parametrize("retries", [0, 2])
def test_deleting_the_full_channel_frees_the_topic(retries: int) -> None:
    """What another channel has already is done, however often the rest was tried."""
    topic, channels, _ = stuck_topic("a", "full")
    for _ in range(retries):
        topic.retry()
        assert pump_all(topic) == 0
    topic.publish(bodies(b"b"), wall_ns(1))
    topic.remove_channel("full")
    assert (topic.error, pump_all(topic), topic.depth) == (None, 1, 0)
    assert drain(channels["a"]) == [b"a", b"b"]


def test_deleting_the_only_channel_does_not_delete_what_it_lacked() -> None:
    """No channel had got the message: it waits, in front, for the next one."""
    topic, _, _ = stuck_topic("full")
    topic.publish(bodies(b"b"), wall_ns(1))
    topic.remove_channel("full")
    assert (topic.error, topic.depth) == (None, 2)
    channel, _ = new_channel("next")
    topic.add_channel(channel)
    assert (pump_all(topic), drain(channel)) == (2, [b"a", b"b"])


@pytest.mark.parametrize(("names", "dropped"), [(("full",), 2), (("a", "full"), 1)])
def test_empty_counts_what_no_channel_has_got(names: tuple[str, ...], dropped: int) -> None:
    """And ends the stand-still."""
    topic, _, _ = stuck_topic(*names)
    topic.publish(bodies(b"b"), wall_ns(1))
    run_out(topic.empty())
    assert (topic.depth, topic.error, topic.dropped["emptied"]) == (0, None, dropped)


def test_saving_hands_a_stuck_message_to_the_channels_that_lack_it() -> None:
    """Not to those that have it; what waited behind it goes to the topic's own backend."""
    topic, channels, backends = stuck_topic("a", "full")
    topic.publish(bodies(b"b"), wall_ns(1))
    with pytest.raises(BackendError):
        topic.save()
    assert (topic.depth, topic.held) == (2, 2)
    backends["full"].refuses = False
    topic.save()
    assert (topic.depth, topic.held, topic.store.backend.depth) == (1, 0, 1)
    assert drain(channels["a"]) == drain(channels["full"]) == [b"a"]
    assert channels["full"].message_count == channels["a"].message_count == 1


def test_a_save_that_fails_part_way_goes_on_there() -> None:
    """Of two channels that lack a message one takes it: it does not get it again."""
    topic, channels, backends = stuck_topic("full")
    channels["more"], backends["more"] = new_channel("more", 0)
    topic.remove_channel("full")
    for name in ("full", "more"):
        topic.add_channel(channels[name])
    assert pump_all(topic) == 0
    backends["full"].refuses, backends["more"].refuses = False, True
    with pytest.raises(BackendError):
        topic.save()
    assert (backends["full"].depth, topic.held) == (1, 1)
    backends["more"].refuses = False
    topic.save()
    assert (topic.held, topic.depth) == (0, 0)
    assert drain(channels["full"]) == drain(channels["more"]) == [b"a"]


def test_a_deferred_message_is_saved_with_its_due_time() -> None:
    """In the topic's backend as in the channel's: what was published with a delay keeps it."""
    topic, backend = new_topic()
    topic.publish(bodies(b"x", b"y"), wall_ns(3.0), 1500)
    topic.save()
    for one in backend.segments:
        assert (one.count, one.batch.timestamp_ns, one.batch.defer_ms) == (1, wall_ns(3.0), 1500)
    assert backend.depth == 2


def test_a_publisher_must_wait_while_the_backend_is_behind() -> None:
    """That is told apart from a refusal, and changes nothing; memory is used all the same."""
    topic, backend = new_topic()
    backend.behind = True
    topic.publish(bodies(b"a", b"b", b"c"), wall_ns(0))
    with pytest.raises(BackendBusy):
        topic.publish(bodies(b"d", b"e", b"f"), wall_ns(0))
    assert (topic.depth, topic.message_count, backend.depth) == (3, 3, 0)
    backend.behind = False
    topic.publish(bodies(b"d", b"e", b"f"), wall_ns(0))
    assert (topic.depth, backend.depth) == (6, 1)


def test_a_fan_out_waits_for_a_channel_that_is_behind() -> None:
    """It is stuck as with a refusal, but the error tells that this passes by itself."""
    topic, channels, backends = stuck_topic("a", "full")
    backends["full"].refuses, backends["full"].behind = False, True
    assert topic.retry()
    assert pump_all(topic) == 0
    assert isinstance(topic.error, BackendBusy)
    assert backends["full"].refusals == 1
    backends["full"].behind = False
    assert topic.retry()
    assert pump_all(topic) == 1
    assert drain(channels["full"]) == [b"a"]


def numbers_in(segments: Iterable[Segment]) -> list[int]:
    return [int(body) for one in segments for body in one.batch.bodies.slice(one.first, one.last)]


class RecoveringBackend(MemoryBackend):
    """One whose messages are all from before an unclean stop."""

    def is_recovering(self) -> bool:
        return True


def test_it_notes_what_it_reads_as_long_as_a_channel_needs_it() -> None:
    """A channel needs it until it has read its own messages, or is removed."""
    topic, _ = new_topic(0)
    topic.publish(bodies(b"a"), 0)
    backends = [RecoveringBackend(), RecoveringBackend()]
    for name, backend in zip("ab", backends, strict=True):
        topic.add_channel(ChannelState(name, 0, backend, Random(1)))
    stores = [topic.channels[name].store for name in "ab"]
    noted = topic._recovered
    assert noted is not None
    assert [store.recovered for store in stores] == [noted, noted]
    pump_all(topic)
    assert (len(noted), noted.user_count) == (1, 2)
    assert stores[0].pop_segment(10) is None
    assert [store.recovered for store in stores] == [None, noted]
    assert (len(noted), noted.user_count) == (1, 1)
    topic.remove_channel("b")
    assert (len(noted), noted.user_count) == (0, 0)
    topic.publish(bodies(b"b"), 0)
    pump_all(topic)
    assert not noted
    assert topic._recovered is not noted


class TopicMachine(RuleBasedStateMachine):
    """A topic against lists: each channel gets what is pumped after its creation, once, in order.

    Channels keep what they get in backends that take or refuse; memory holds a few.
    """

    def __init__(self) -> None:
        super().__init__()
        self.topic, self.backend = new_topic(4)
        self.backends: dict[str, MemoryBackend] = {}
        self.published = 0
        self.dropped = 0
        self.waiting: list[int] = []
        self.stuck: list[int] = []
        self.lacking: set[str] = set()
        self.some_got_it = False
        self.expected: dict[str, list[int]] = {}
        self.names = 0
        self.put_back = False
        self.was_saved = False
        self.published_before = 0

    @rule(count=st.integers(1, 7))
    def publish(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        try:
            self.topic.publish(bodies(*(b"%d" % number for number in numbers)), wall_ns(0))
        except BackendError:
            assert self.backend.refuses
            return
        self.published += count
        self.waiting += numbers

    @rule()
    def pump(self) -> None:
        before = {name: self.got(name) for name in self.expected}
        may_pump = self.topic.can_pump
        pumped = self.topic.fanned_out_count
        self.topic.pump(1.0, wall_ns(1.0))
        count = self.topic.fanned_out_count - pumped
        if not self.stuck:
            self.stuck, self.lacking, self.some_got_it = self._taken(), set(self.expected), False
        assert count in (0, len(self.stuck))
        for name, got in before.items():
            if self.got(name) != got:
                assert name in self.lacking
                self.expected[name] += self.stuck
                self.lacking.discard(name)
                self.some_got_it = True
        assert may_pump or not count
        if self.lacking and self.stuck:
            assert self.topic.error is not None or self.topic.paused
        elif may_pump and self.waiting:
            assert count
        if not self.lacking:
            self.stuck = []

    def _taken(self) -> list[int]:
        """What the topic no longer holds, by its own account: one segment's worth."""
        held = self.held()
        moved = [number for number in self.waiting if number not in held]
        self.waiting = [number for number in self.waiting if number in held]
        return moved

    def held(self) -> set[int]:
        parts = [self.topic.store.memory._segments, self.backend.segments]
        return {number for part in parts for number in numbers_in(part)}

    def got(self, name: str) -> list[int]:
        memory = self.topic.channels[name].store.memory
        return numbers_in(memory._segments) + numbers_in(self.backends[name].segments)

    @rule(mem=st.sampled_from([0, 3, 1000]), refuses=st.booleans())
    def add_channel(self, mem: int, refuses: bool) -> None:
        name = f"c{self.names}"
        self.names += 1
        channel, backend = new_channel(name, mem)
        backend.refuses = refuses
        self.topic.add_channel(channel)
        self.backends[name] = backend
        self.expected[name] = []

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove_channel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected)))
        self.topic.remove_channel(name)
        del self.expected[name], self.backends[name]
        self.lacking.discard(name)
        if self.stuck and not self.lacking:
            if not self.some_got_it:
                self.waiting = self.stuck + self.waiting
                self.put_back = True
            self.stuck = []

    @precondition(lambda self: self.backends)
    @rule(data=st.data())
    def change_room(self, data: st.DataObject) -> None:
        backend = self.backends[data.draw(st.sampled_from(sorted(self.backends)))]
        backend.refuses = not backend.refuses

    @rule()
    def change_own_room(self) -> None:
        self.backend.refuses = not self.backend.refuses

    @rule()
    def retry(self) -> None:
        had_error = self.topic.error is not None
        assert self.topic.retry() == had_error
        assert self.topic.error is None

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.topic.paused = paused

    @rule()
    def empty(self) -> None:
        self.dropped += len(self.waiting)
        self.dropped += 0 if self.some_got_it else len(self.stuck)
        self.waiting.clear()
        self.stuck, self.lacking = [], set()
        run_out(self.topic.empty())

    @precondition(lambda self: self.published % 4 == 3)
    @rule(takes=st.integers(0, 2))
    def save_and_restart(self, takes: int) -> None:
        """All goes to disk, to the channels what they lack, also if that takes two attempts."""
        self.backend.takes = takes
        try:
            self.topic.save()
        except BackendError:
            self.backend.takes, self.backend.refuses = None, False
            for backend in self.backends.values():
                backend.refuses = False
            self.topic.save()
        self.backend.takes = None
        for name in self.lacking if self.stuck else ():
            self.expected[name] += self.stuck
        if self.stuck and not self.lacking:
            assert not self.some_got_it
        self.stuck, self.lacking = [], set()
        assert self.topic.held == 0
        channels = self.topic.channels.values()
        self.topic = TopicState("t", 4, self.backend, IdSource(1))
        for channel in channels:
            self.topic.add_channel(channel)
        self.was_saved = True
        self.published_before, self.dropped = self.published, 0

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """Every message is at the topic, with the channels, or counted as dropped."""
        assert self.held() == set(self.waiting)
        assert self.topic.depth == len(self.waiting) + len(self.stuck)
        assert self.topic.message_count == self.published - self.published_before
        assert self.topic.dropped["emptied"] == self.dropped
        for name, expected in self.expected.items():
            got = self.got(name)
            assert sorted(got) == sorted(expected), name
            assert len(set(got)) == len(got)

    @invariant()
    def order_is_kept_in_each_queue(self) -> None:
        """FIFO inside the memory queue and inside the backend, at the topic.

        But what a deleted channel lacked is put in front, wherever it came from; and what was
        saved is behind what was on disk, although some of that came later.
        """
        if self.was_saved:
            return
        memory = self.topic.store.memory._segments
        for part in (self.backend.segments, () if self.put_back else memory):
            numbers = numbers_in(part)
            assert numbers == sorted(numbers)


TestTopicMachine = TopicMachine.TestCase
TestTopicMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_is_published_is_handed_over_when_it_is_safe() -> None:
    """Until its round has ended it is in no queue; a round that failed leaves nothing behind."""
    backend = RoundBackend()
    topic = TopicState("t", MEM, backend, IdSource(1))
    channel, _ = new_channel()
    topic.add_channel(channel)
    woken: list[str] = []
    topic.wake = lambda: woken.append("publish")
    backend.caught_up = lambda: woken.append("safe")
    first = topic.publish(bodies(b"a", b"b"), 1)
    assert first is not None
    assert topic.publish(bodies(b"c"), 2) is first
    assert (topic.depth, pump_all(topic), woken) == (0, 0, [])
    backend.next_round()
    second = topic.publish(bodies(b"lost"), 3)
    assert second is not first
    backend.finish()
    assert (first.is_done, first.error, woken) == (True, None, ["safe"])
    assert pump_all(topic) == 3
    backend.finish("no space")
    assert second is not None
    assert (second.error, pump_all(topic)) == ("no space", 0)
    assert drain(channel) == [b"a", b"b", b"c"]
    assert topic.check() is None


def test_a_topic_in_memory_has_no_rounds() -> None:
    """Nobody waits for what memory or today's disk queue has taken."""
    topic, _ = new_topic()
    assert topic.publish(bodies(b"a"), 1) is None
    assert topic.publish(bodies(*[b"b"] * (MEM + 1)), 1) is None
