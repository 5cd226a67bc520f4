"""What a channel gives up: counted as in flight until the dead letters have it, and never lost."""

from __future__ import annotations

from random import Random

import pytest

from tests.core.helpers import MemoryBackend, batch, message_ids, run_out, wall_ns
from tests.soak import by_level
from trionsq.core import given_up as given_up_module
from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.given_up import DEAD_LETTERED, GivenUp
from trionsq.core.policies import AppliedSettings
from trionsq.core.subscription import Delivery, Subscription

COUNT = 6


class Stage:
    """A channel with one client, whose messages are given up at the second return."""

    def __init__(self, max_attempts: int = 2, *, accepts: bool = True) -> None:
        self.core = ChannelState("c", 100, MemoryBackend(), Random(1))
        self.core.settings = AppliedSettings(max_attempts=max_attempts)
        self.wakes = 0
        self.given_up = GivenUp(self.core, self.wake, lambda: accepts)
        self.deliveries: list[Delivery] = []
        self.client = Subscription(self.offer, msg_timeout_s=10.0)
        self.client.client = "worker 127.0.0.1:1"
        self.core.add_subscription(self.client)
        self.core.set_ready(self.client, 100, 0.0)

    def wake(self) -> None:
        self.wakes += 1

    def offer(self, delivery: Delivery) -> bool:
        delivery.written = True
        self.deliveries.append(delivery)
        return True

    def publish(self, first: int = 0, count: int = COUNT) -> list[bytes]:
        self.core.put(Segment(batch(first, count), 0, count), 0.0, wall_ns(0.0))
        return message_ids(first, count)

    def requeue(self, id_: bytes, delay_ms: int = 0) -> bool:
        return self.core.requeue(self.client, id_, delay_ms, 0.0, wall_ns(0.0))

    def check(self) -> None:
        core = self.core
        assert core.check() is None
        held = core.depth + core.in_flight_count + core.deferred_count
        assert core.message_count == core.finish_count + held + core.dropped.total()


@pytest.mark.parametrize("delay_ms", [0, 5000])
def test_the_last_return_gives_a_message_up(delay_ms: int) -> None:
    """Whatever delay the client wants: what was delivered twice is not queued a third time."""
    stage = Stage()
    id_, *_ = stage.publish(count=1)
    assert stage.requeue(id_)
    assert stage.wakes == 0
    assert stage.requeue(id_, delay_ms)
    assert (stage.core.depth, stage.core.deferred_count, stage.core.in_flight_count) == (0, 0, 1)
    [one] = stage.given_up.take(10, 1000)
    assert (one.id, one.reason, one.client) == (id_, "requeued", "worker 127.0.0.1:1")
    assert one.delivery.attempts == 2
    assert (one.body, one.published_ns) == (batch(0, 1).bodies.body_at(0), wall_ns(0.0))
    stage.given_up.gone([one])
    assert stage.core.dropped == {DEAD_LETTERED: 1}
    assert stage.core.in_flight_count == 0
    stage.check()


def test_what_times_out_as_often_is_given_up() -> None:
    """With its reason; what a client that has gone held has another one."""
    stage = Stage()
    stage.publish()
    stage.core.scan(10.0, wall_ns(10.0))
    assert stage.core.in_flight_count == COUNT
    stage.core.scan(20.0, wall_ns(20.0))
    taken = stage.given_up.take(100, 1 << 20)
    assert [one.reason for one in taken] == ["timed_out"] * COUNT
    assert stage.core.timeout_count == 2 * COUNT
    stage.check()
    other = Stage(max_attempts=1)
    other.publish()
    other.core.remove_subscription(other.client, [], True, 1.0)
    assert {one.reason for one in other.given_up.take(100, 1 << 20)} == {"disconnected"}
    other.check()


def test_without_a_limit_all_return() -> None:
    """No policy, or one without max_attempts: messages circle as ever."""
    for settings in (None, AppliedSettings()):
        stage = Stage()
        stage.core.settings = settings
        id_, *_ = stage.publish(count=1)
        for _ in range(5):
            assert stage.requeue(id_)
        assert stage.deliveries[-1].attempts == 6
        assert not stage.wakes


def test_somebody_may_ask_for_it() -> None:
    """At any attempt and without a policy; an id that is not in flight there is refused."""
    stage = Stage()
    stage.core.settings = None
    first, second = stage.publish(count=2)
    assert stage.given_up.ask(stage.client, first, "no such customer", 0.0)
    assert not stage.given_up.ask(stage.client, first, "again", 0.0)
    assert not stage.given_up.ask(stage.client, b"x" * 16, "unknown", 0.0)
    [one] = stage.given_up.take(10, 1000)
    assert (one.reason, one.delivery.attempts) == ("no such customer", 1)
    stage.core.finish(stage.client, [second], 0.0)
    stage.check()


def test_without_room_messages_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same if nobody accepts dead letters: nothing waits for a place without an end."""
    for stage, most, nbytes in (
        (Stage(max_attempts=1), 2, 1 << 20),
        (Stage(max_attempts=1), 100, 2 * 16),
        (Stage(max_attempts=1, accepts=False), 100, 1 << 20),
    ):
        monkeypatch.setattr(given_up_module, "_MAX_MESSAGES", most)
        monkeypatch.setattr(given_up_module, "_MAX_BYTES", nbytes)
        stage.core.paused = False
        ids = stage.publish()
        stage.core.paused = True
        for id_ in ids:
            assert stage.requeue(id_)
        kept = len(stage.given_up)
        assert kept == (2 if stage.given_up.accepts() else 0)
        assert stage.core.depth == COUNT - kept
        stage.check()


def test_they_can_go_back_to_the_queue() -> None:
    """With their attempts, so that they are given up at the next return."""
    stage = Stage(max_attempts=1)
    id_, *_ = stage.publish(count=1)
    stage.requeue(id_)
    stage.given_up.give_back(stage.given_up.take(10, 1000))
    assert stage.core.depth == 1
    stage.core.dispatch(0.0)
    assert stage.deliveries[-1].attempts == 2
    stage.requeue(id_)
    [again] = stage.given_up.take(10, 1000)
    stage.given_up.put_off([again])
    assert stage.given_up.take(10, 1000) == [again]
    stage.check()


def test_what_is_emptied_is_not_given_up_any_more() -> None:
    """Neither what nobody has taken, nor what somebody is about to keep; a stop saves the rest."""
    stage = Stage(max_attempts=1)
    for id_ in stage.publish():
        stage.requeue(id_)
    taken = stage.given_up.take(2, 1 << 20)
    run_out(stage.core.empty())
    assert stage.core.in_flight_count == 0
    assert not stage.given_up.take(10, 1 << 20)
    stage.given_up.gone(taken)
    assert stage.core.dropped == {"emptied": COUNT, DEAD_LETTERED: 0}
    for id_ in stage.publish(first=100):
        stage.requeue(id_)
    stage.core.save()
    assert stage.core.store.backend.depth == COUNT
    stage.check()


@pytest.mark.parametrize("seed", range(by_level(test=20, short=100, full=1000)))
def test_each_message_is_in_one_place(seed: int) -> None:
    """Whatever happens in any order, the account is right, and each message ends once."""
    random = Random(seed)
    stage = Stage(max_attempts=random.randint(1, 3))
    core, now_s, first = stage.core, 0.0, 0
    held: list[object] = []
    letters = 0
    for _ in range(200):
        ids = list(stage.client.in_flight)
        match random.randrange(9):
            case 0:
                core.put(Segment(batch(first, 3), 0, 3), now_s, wall_ns(now_s))
                first += 3
            case 1 | 2 if ids:
                id_ = random.choice(ids)
                core.requeue(stage.client, id_, random.choice([0, 500]), now_s, wall_ns(now_s))
            case 3 if ids:
                core.finish(stage.client, [random.choice(ids)], now_s)
            case 4 if ids:
                stage.given_up.ask(stage.client, random.choice(ids), "asked", now_s)
            case 5:
                now_s += random.choice([0.25, 5.0])
                core.scan(now_s, wall_ns(now_s))
            case 6:
                taken = stage.given_up.take(random.randint(1, 3), 1 << 20)
                before = core.dropped[DEAD_LETTERED]
                random.choice([stage.given_up.gone, stage.given_up.gone, stage.given_up.give_back])(
                    taken
                )
                letters += core.dropped[DEAD_LETTERED] - before
            case 7:
                held += stage.given_up.take(1, 1 << 20)
            case 8 if not random.randrange(8):
                run_out(core.empty())
        core.dispatch(now_s)
        stage.check()
    assert letters == core.dropped[DEAD_LETTERED]
