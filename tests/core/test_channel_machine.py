"""Any sequence of events leaves a channel as a dictionary model has it (trionsq.core.channel).

Published = finished + waiting + in flight + deferred + dropped by a counted reason, and each
message is in one place; RDY is never exceeded; nobody starves; no scan is asked for too late.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.core.channel_model import SIZES, Model, Peer
from tests.core.helpers import NS_PER_MS, WALL_NS, batch, message_ids, reasons, run_out
from tests.machines import run_until_seen
from tests.soak import by_level, more_in_soak
from trionsq.core.batch import Segment
from trionsq.core.channel import MAX_DIRECT_MESSAGES, MAX_SCAN
from trionsq.core.queue import BackendError

SEEN: Counter[str] = Counter()
"""What happened in all examples together: a fault that never fires tests nothing."""

EVENTS = (
    "deliveries", "finished", "failed FINs", "requeued", "touched", "timeouts", "came due",
    "sampled", "emptied", "unwritten put back", "refused offers", "woken again",
    "backend refusals", "saved deferred", "saved in flight", "saved in part", "read deferred",
    "acts amid an empty",
)  # fmt: skip
EVENTS_IN_TURNS = (
    "deliveries", "finished", "timeouts", "came due", "emptied",
    "acts amid an empty", "scans in turns",
)  # fmt: skip

steps_s = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 12.0])
which = st.integers(0, 10**6)


class ChannelMachine(RuleBasedStateMachine):
    """A channel with a few clients, a small memory queue, and a backend that may refuse."""

    model: Model
    next_id = 0

    @initialize(mem=st.sampled_from([0, 3, 10, 1000]), seed=st.integers(0, 99))
    def begin(self, mem: int, seed: int) -> None:
        self.model = Model(mem, seed)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            SEEN.update(self.model.counts)
            SEEN["backend refusals"] += self.model.backend.refusals

    def peer(self, number: int) -> Peer:
        return self.model.peers[number % len(self.model.peers)]

    def holder(self, number: int) -> Peer:
        """Mostly a client with something in flight."""
        holders = [peer for peer in self.model.peers if peer.consumer.in_flight]
        return holders[number % len(holders)] if holders and number % 5 else self.peer(number)

    def an_id(self, peer: Peer, number: int) -> bytes:
        """Mostly one in flight at the client, else any that was ever published."""
        held = self.model.in_flight_at(peer)
        if held and number % 4:
            return held[number % len(held)]
        return message_ids(number % (self.next_id + 1), 1)[0]

    # From the topic

    @rule(
        # Some in the topic's turn, some in the task's.
        count=st.integers(1, 12) | st.integers(MAX_DIRECT_MESSAGES + 1, MAX_DIRECT_MESSAGES + 5),
        equal=st.booleans(),
        delay_s=st.sampled_from([0, 0, 0, 0.5, 2]),
    )
    def publish(self, count: int, equal: bool, delay_s: float) -> None:
        model = self.model
        ids = message_ids(self.next_id, count)
        one = batch(self.next_id, count, SIZES[:1] if equal else SIZES, int(delay_s * 1000))
        # Due times are kept to the millisecond: from such a time on they are exact.
        one.timestamp_ns = WALL_NS + self.next_id % 200 * NS_PER_MS
        # Known before it is put, because a put may deliver.
        before = model.counts.copy()
        model.accept(ids, delay_s)
        if equal:
            for id_ in ids:
                model.messages[id_].body = id_
        try:
            model.channel.put(Segment(one, 0, count), model.now_s, model.now_ns)
        except BackendError:
            assert model.backend.refuses
            model.counts = before
            for id_ in ids:
                del model.messages[id_]
        self.next_id += count

    @precondition(lambda self: self.model.peers)
    @rule(number=which)
    def burst(self, number: int) -> None:
        """Several batches before the task has its turn, while a client waits."""
        self.ready(number, 40)
        for _ in range(3):
            self.publish(MAX_DIRECT_MESSAGES + 1, True, 0)

    @rule()
    def run_task(self) -> None:
        self.model.run_task()

    # Clients

    @precondition(lambda self: len(self.model.peers) < 4)
    @rule(timeout_s=st.sampled_from([1.0, 3.0, 10.0]), sampling=st.integers(0, 9), rdy=which)
    def join(self, timeout_s: float, sampling: int, rdy: int) -> None:
        model = self.model
        peer = Peer(model, timeout_s, 60 if sampling == 0 else 0)
        model.channel.add_subscription(peer.consumer)
        model.peers.append(peer)
        model.channel.set_ready(peer.consumer, rdy % 20, model.now_s)

    @precondition(lambda self: self.model.peers)
    @rule(number=which, requeue_now=st.booleans())
    def leave(self, number: int, requeue_now: bool) -> None:
        model, peer = self.model, self.peer(number)
        model.leave(peer, requeue_now)
        model.channel.remove_subscription(peer.consumer, peer.unwritten, requeue_now, model.now_s)
        if requeue_now and model.channel.wake_at_s <= model.now_s:
            self.scan()

    @precondition(lambda self: self.model.peers)
    @rule(number=which, rdy=st.sampled_from([0, 1, 2, 5, 40, 40]))
    def ready(self, number: int, rdy: int) -> None:
        self.model.channel.set_ready(self.peer(number).consumer, rdy, self.model.now_s)

    @precondition(lambda self: any(peer.unwritten for peer in self.model.peers))
    @rule(number=which)
    def write(self, number: int) -> None:
        peers = [peer for peer in self.model.peers if peer.unwritten]
        peers[number % len(peers)].write()

    @precondition(lambda self: self.model.peers)
    @rule(number=which)
    def fill_or_free(self, number: int) -> None:
        peer = self.peer(number)
        peer.full = not peer.full
        if not peer.full and peer.consumer.blocked:
            self.model.channel.unblock(peer.consumer, self.model.now_s)

    @precondition(lambda self: self.model.peers)
    @rule(number=which, numbers=st.lists(which, min_size=1, max_size=6))
    def finish(self, number: int, numbers: list[int]) -> None:
        model, peer = self.model, self.holder(number)
        ids = [self.an_id(peer, one) for one in numbers]
        failed = model.finish(peer, ids)
        missed = model.channel.finish(peer.consumer, ids, model.now_s)
        assert [id_ for id_, _ in reasons(missed)] == failed
        model.counts["failed FINs"] += len(failed)

    @precondition(lambda self: self.model.peers)
    @rule(number=which, id_number=which, delay_s=st.sampled_from([0, 0, 0.25, 2]))
    def requeue(self, number: int, id_number: int, delay_s: float) -> None:
        model, peer = self.model, self.holder(number)
        id_ = self.an_id(peer, id_number)
        message = model.messages.get(id_)
        here = message is not None and message.owner is peer
        if here and message is not None:
            model.counts["requeued"] += 1
            if delay_s:
                message.defer(model.now_s + delay_s)
            else:
                message.queue()
        delay_ms = int(delay_s * 1000)
        done = model.channel.requeue(peer.consumer, id_, delay_ms, model.now_s, model.now_ns)
        assert done == here

    @precondition(lambda self: self.model.peers)
    @rule(number=which, id_number=which, limit_s=st.sampled_from([1.0, 3.5, 12.0, 900.0]))
    def touch(self, number: int, id_number: int, limit_s: float) -> None:
        model, peer = self.model, self.holder(number)
        id_ = self.an_id(peer, id_number)
        message = model.messages.get(id_)
        here = message is not None and message.owner is peer
        if here:
            model.touch(id_, limit_s)
            model.counts["touched"] += 1
        assert model.channel.touch(peer.consumer, id_, model.now_s, limit_s) == here

    # Time and the operator

    @rule(step_s=steps_s)
    def time_passes(self, step_s: float) -> None:
        """The scan runs at the time that the channel asked for, and not before."""
        model = self.model
        model.now_s += step_s
        if model.channel.wake_at_s <= model.now_s:
            self.scan()
        assert not [
            message
            for message in model.messages.values()
            if message.owner is not None and message.deadline_s <= model.now_s
        ]

    @rule()
    def scan(self) -> None:
        """As the timer does it: again as long as there is more to do."""
        model = self.model
        model.scan()
        scans = 0
        while scans == 0 or model.channel.wake_at_s <= model.now_s:
            looked = model.channel.scan(model.now_s, model.now_ns)
            assert looked <= 2 * MAX_SCAN + 2
            scans += 1
            assert scans < 1000, "it asks to be called again, and does nothing"
        model.counts["scans in turns"] += scans - 1

    @rule(kind=st.integers(0, 4))
    def pause(self, kind: int) -> None:
        if kind == 4:
            self.model.channel.pause()
        else:
            self.model.channel.unpause(self.model.now_s)

    @precondition(lambda self: self.next_id % 5 == 4)
    @rule(numbers=st.lists(which, max_size=3))
    def empty(self, numbers: list[int]) -> None:
        """With clients that finish, give back or leave while it is under way."""
        model = self.model
        steps = model.begin_empty()
        for number in numbers:
            next(steps, None)
            if model.peers:
                self.act_amid_empty(self.peer(number), number)
        run_out(steps)
        model.end_empty()

    def act_amid_empty(self, peer: Peer, number: int) -> None:
        model, channel, consumer = self.model, self.model.channel, peer.consumer
        model.counts["acts amid an empty"] += 1
        held = list(consumer.in_flight)
        if number % 3 == 0:
            before = channel.finish_count
            channel.finish(consumer, held[:1], model.now_s)
            done = channel.finish_count - before
            model.counts["finished"] += done
            model.counts["emptied"] -= done
        elif number % 3 == 1 and held:
            assert not channel.requeue(consumer, held[0], 0, model.now_s, model.now_ns)
        else:
            model.peers.remove(peer)
            channel.remove_subscription(consumer, peer.unwritten, number % 2 == 0, model.now_s)
        assert channel.depth == 0, "what was emptied came back"
        assert channel.check() is None

    @precondition(lambda self: self.next_id % 3 == 2)
    @rule(takes=st.none() | st.integers(0, 3))
    def save_and_restart(self, takes: int | None) -> None:
        """Whether or not the backend refuses at some point: then it is tried again."""
        model = self.model
        model.backend.takes = takes
        try:
            model.channel.save()
        except BackendError:
            model.counts["saved in part"] += 1
            model.backend.takes, model.backend.refuses = None, False
            model.channel.save()
        model.backend.takes = None
        assert model.channel.held == 0
        model.restart()

    @rule(kind=st.integers(0, 2))
    def backend_refuses(self, kind: int) -> None:
        self.model.backend.refuses = kind == 2

    @rule()
    def backend_gives_nothing(self) -> None:
        backend = self.model.backend
        backend.reads_nothing = not backend.reads_nothing
        if not backend.reads_nothing:
            self.model.channel.dispatch(self.model.now_s)

    @invariant()
    def all_is_as_the_model_has_it(self) -> None:
        self.model.check()


@more_in_soak
@pytest.mark.parametrize("budget", [None, 2])
def test_any_sequence_of_events_keeps_the_balance(
    budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every kind of fault did happen on the way; also if a turn is over after two messages."""
    if budget is not None:
        monkeypatch.setattr("trionsq.core.dispatch.MAX_DISPATCH", budget)
        monkeypatch.setattr("trionsq.core.channel.MAX_SCAN", budget)
        monkeypatch.setattr("trionsq.core.in_flight.MAX_DIRECT_LOOKUPS", 1)
        monkeypatch.setattr("trionsq.core.channel._MAX_DROPS", 1)
        monkeypatch.setattr("trionsq.core.containers._MAX_FREE_COUNT", 1)
    SEEN.clear()
    if budget is None:
        counts = by_level(test=(60, 250), short=(200,), full=(4_000,))
        run_until_seen(ChannelMachine, SEEN, EVENTS, counts, steps=60)
    else:
        counts = by_level(test=(30, 100), short=(150,), full=(1_500,))
        run_until_seen(ChannelMachine, SEEN, EVENTS_IN_TURNS, counts, steps=60)
