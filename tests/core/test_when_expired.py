"""when_expired = "dead_letter": what is too old becomes a dead letter instead of nothing."""

from __future__ import annotations

import pytest

from tests.core.helpers import WALL_NS, wall_ns
from tests.core.test_governed import World
from trionsq.core import given_up as given_up_module
from trionsq.core.given_up import DEAD_LETTERED, GivenUp
from trionsq.core.governed import renew_bounds
from trionsq.core.policies import DEAD_LETTER
from trionsq.durations import SECOND_NS

TTL_NS = 10 * SECOND_NS


class Stage(World):
    """A channel whose expired messages are taken by `keep`, as the broker does."""

    def __init__(self, *, mem: int = 10_000, accepts: bool = True) -> None:
        super().__init__(mem, message_ttl_ns=TTL_NS, when_expired=DEAD_LETTER)
        self.wakes = 0
        self.kept: list[tuple[int, str, int, str]] = []
        self.given_up = GivenUp(self.channel, lambda: None, lambda: accepts)
        self.channel.wake = self._wake
        renew_bounds(self.channel, lambda: wall_ns(self.now_s))

    def _wake(self) -> None:
        self.wakes += 1

    def keep(self, max_count: int = 1000) -> int:
        messages = self.given_up.take(max_count, 1 << 20)
        self.kept += [
            (int(one.id, 16), one.reason, one.delivery.attempts, one.client) for one in messages
        ]
        self.given_up.gone(messages)
        self.check()
        return len(messages)

    def drop_old(self) -> bool:
        return self.governor.drop_old(self.now_s, wall_ns(self.now_s))


@pytest.mark.parametrize("mem", [0, 3, 1000])
def test_expired_messages_become_letters(mem: int) -> None:
    """Whether a client would get them, or nobody reads; the clients get the others."""
    for reads in (True, False):
        stage = Stage(mem=mem)
        stage.put(0, 5)
        stage.now_s = 20.0
        if reads:
            stage.subscribe(100)
        else:
            stage.drop_old()
        assert stage.ids == []
        stage.keep()
        assert sorted(stage.kept) == [(id_, "expired", 0, "") for id_ in range(5)]
        assert stage.dropped == {DEAD_LETTERED: 5}
        assert stage.channel.depth == stage.channel.in_flight_count == 0


def test_one_that_was_delivered_keeps_its_attempts() -> None:
    """A letter says how often somebody had it."""
    stage = Stage()
    client = stage.subscribe(1)
    stage.put(7, 1)
    stage.now_s = 20.0
    stage.channel.requeue(client, b"%016x" % 7, 0, 20.0, wall_ns(20.0))
    stage.keep()
    assert stage.kept == [(7, "expired", 1, "")]


def test_without_room_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is dropped because many expire at once: the queue waits, and then goes on."""
    monkeypatch.setattr(given_up_module, "_MAX_MESSAGES", 4)
    stage = Stage()
    for first in range(0, 60, 3):
        stage.put(first, 3)
    stage.now_s = 20.0
    client = stage.subscribe(1)
    stage.put(100, 1)
    assert 4 <= stage.channel.in_flight_count < 10
    while stage.keep(2):
        assert stage.wakes or not stage.channel.depth
        stage.channel.dispatch(stage.now_s)
    assert sorted(one[0] for one in stage.kept) == [*range(60), 100]
    assert client.in_flight == {}
    stage = Stage()
    for first in range(0, 60, 3):
        stage.put(first, 3)
    stage.now_s = 20.0
    stage.drop_old()
    while stage.keep(2):
        stage.drop_old()
    assert len(stage.kept) == 60


def test_where_no_letters_are_kept_they_are_dropped() -> None:
    """When the letters are full, or the policy says drop: a consumer gets none that is too old."""
    stage = Stage(accepts=False)
    stage.put(0, 5)
    stage.now_s = 20.0
    stage.subscribe(10)
    assert (stage.ids, stage.dropped) == ([], {"expired": 5})
    stage = Stage()
    stage.govern(message_ttl_ns=TTL_NS)
    stage.put(0, 5)
    stage.now_s = 20.0
    stage.drop_old()
    assert stage.dropped == {"expired": 5}
    stage.check()


def test_what_cannot_be_kept_expires_again() -> None:
    """A letter that no disk takes goes back to the queue, and is given up again."""
    stage = Stage()
    stage.put(0, 2)
    stage.now_s = 20.0
    stage.subscribe(10)
    stage.given_up.give_back(stage.given_up.take(10, 1 << 20))
    assert stage.channel.depth == 2
    assert stage.wakes
    stage.channel.dispatch(stage.now_s)
    stage.keep()
    assert [one[:3] for one in stage.kept] == [(0, "expired", 0), (1, "expired", 0)]


def test_letters_do_not_expire() -> None:
    """A policy that fits the dead-letter topic as well destroys none of its letters."""
    stage = Stage()
    stage.given_up.is_final = True
    renew_bounds(stage.channel, lambda: wall_ns(stage.now_s))
    stage.put(0, 5)
    stage.now_s = 20.0
    assert wall_ns(stage.now_s) - WALL_NS > TTL_NS
    stage.drop_old()
    stage.subscribe(10)
    assert stage.ids == [0, 1, 2, 3, 4]
    stage.check()
