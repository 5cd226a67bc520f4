"""Single messages of one turn are published as one batch (trionsq.broker.gathering)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.broker.support import check_balances, connect, full_disk, publish
from tests.core.helpers import MemoryBackend, RoundBackend
from trionsq.broker.gathering import Gathering
from trionsq.broker.runtime import Clock
from trionsq.core.batch import Segment
from trionsq.core.ids import IdSource
from trionsq.core.queue import BackendError
from trionsq.core.round import STORED, Round
from trionsq.core.topic import TopicState
from trionsq.testing.memory import nsqd_in_memory
from trionsq.transports.turn import Turn
from trionsq.wire import commands
from trionsq.wire.bodies import Bodies, ListBodies


class LogBackend(RoundBackend):
    """Takes all that is published, in one round, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if self.error is not None:
            raise self.error
        super().append(segment, due_ns)


def one(body: bytes) -> Bodies:
    return ListBodies([body])


def gathering(
    limit: int = 100, backend: MemoryBackend | None = None
) -> tuple[Gathering, TopicState, Turn, list[Exception]]:
    core = TopicState("t", limit, backend or MemoryBackend(), IdSource(1))
    turn, defects = Turn(), list[Exception]()
    clock = Clock(lambda: 0.0, lambda: 10**18)
    it = Gathering(core, clock, turn, defects.append)
    it._pays = True
    return it, core, turn, defects


def bodies_of(core: TopicState) -> list[list[bytes]]:
    """The bodies of each batch in memory."""
    return [list(it.batch.bodies.slice(it.first, it.last)) for it in core.store.memory.peek()]


def test_messages_of_a_turn_are_one_batch() -> None:
    """In their order; the next turn begins another one."""
    it, core, turn, _ = gathering()
    with turn:
        assert it.add_message(one(b"a")) is STORED
        assert it.add_message(one(b"bb")) is STORED
        assert core.depth == 0
    assert bodies_of(core) == [[b"a", b"bb"]]
    with turn:
        it.add_message(one(b"c"))
    assert bodies_of(core) == [[b"a", b"bb"], [b"c"]]
    assert core.message_count == 3


def test_a_topic_gathers_when_turns_bring_several_messages() -> None:
    """It begins with the second one of a turn, and ends with a turn that brought one alone."""
    it, core, turn, _ = gathering()
    it._pays = False

    def look(count: int) -> list[bool]:
        with turn:
            return [it.add_message(one(b"a")) is not None for _ in range(count)]

    assert [look(1), look(1)] == [[False], [False]]
    assert look(3) == [False, True, True]
    assert look(2) == [True, True]
    assert [look(1), look(1)] == [[True], [False]]
    assert core.message_count == 5  # the others are published by who asked


def test_outside_of_a_turn_nothing_gathers() -> None:
    it, core, _, _ = gathering()
    assert it.add_message(one(b"a")) is None
    assert core.depth == 0


def test_no_more_gathers_than_memory_has_room_for() -> None:
    """What is over goes to the disk, with the refusals of that."""
    it, core, turn, _ = gathering(limit=2)
    with turn:
        assert [it.add_message(one(b"a")) for _ in range(3)] == [STORED, STORED, None]
        it.publish()
        assert it.add_message(one(b"a")) is None
    assert core.store.memory.depth == 2


def test_large_messages_are_not_copied() -> None:
    it, _, turn, _ = gathering()
    with turn:
        assert it.add_message(one(b"a" * 2049)) is None
        assert it.add_message(one(b"a" * 2048)) is STORED


def test_a_log_says_when_messages_are_safe() -> None:
    """The round of the publishers ends with that of the log, and calls them in their order."""
    backend = LogBackend()
    it, core, turn, _ = gathering(backend=backend)
    told: list[str] = []
    with turn:
        rounds = [it.add_message(one(b"a")) for _ in range(2)]
        assert rounds[0] is rounds[1]
        assert isinstance(rounds[0], Round)
        assert not rounds[0].is_done
        rounds[0].when_done(lambda: told.append("first"))
        rounds[0].when_done(lambda: told.append("second"))
    assert (told, core.message_count) == ([], 2)
    backend.finish("the disk is broken")
    assert told == ["first", "second"]
    assert (rounds[0].is_done, rounds[0].error) == (True, "the disk is broken")


def test_a_log_that_is_behind_gathers_nothing() -> None:
    backend = LogBackend()
    it, _, turn, _ = gathering(backend=backend)
    backend.behind = True
    with turn:
        assert it.add_message(one(b"a")) is None


@pytest.mark.parametrize("error", [BackendError("full"), ValueError("defect")])
def test_who_waits_hears_why_messages_are_not_stored(error: Exception) -> None:
    """An error of ours is noted as well."""
    backend = LogBackend()
    it, core, turn, defects = gathering(backend=backend)
    backend.error = error
    with turn:
        round_ = it.add_message(one(b"a"))
    assert round_ is not None
    assert (round_.is_done, round_.error, core.message_count) == (True, str(error), 0)
    assert defects == ([] if isinstance(error, BackendError) else [error])


def test_a_defect_does_not_end_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    it, core, turn, defects = gathering()
    monkeypatch.setattr(core, "publish", None)
    with turn:
        it.add_message(one(b"a"))
    assert [type(defect) for defect in defects] == [TypeError]
    assert STORED.error is None


@given(st.lists(st.sampled_from(["single", "long", "flush"]), max_size=200))
def test_order_and_number_stay(steps: list[str]) -> None:
    """Whatever cannot gather is published behind what has gathered, as `Topic.publish` does."""
    it, core, turn, _ = gathering(limit=1000)
    sent: list[bytes] = []
    with turn:
        for number, step in enumerate(steps):
            body = b"%d" % number if step != "long" else b"%04000d" % number
            sent.append(body)
            if step == "flush" or it.add_message(one(body)) is None:
                it.publish()
                core.publish(one(body), 10**18)
    assert [body for batch in bodies_of(core) for body in batch] == sent
    assert core.check() is None
    assert core.message_bytes == sum(map(len, sent))


def other_publish(kind: str) -> bytes:
    return {
        "mpub": commands.publish_many("t", [b"x", b"y"]),
        "dpub": commands.publish_deferred("t", 1, b"x"),
        "sub": commands.subscribe("t", "new"),
    }[kind]


@pytest.mark.parametrize("kind", ["mpub", "dpub", "sub"])
async def test_other_commands_of_the_turn_find_the_messages_queued(
    kind: str, autojump_clock: MockClock
) -> None:
    """Ids rise in the order in which the messages were published."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"first")
        client, _, _ = connect(broker)
        await client.say(commands.publish("t", b"a") + other_publish(kind))
        await client.response()
        await client.response()
        topic = broker.topics["t"]
        assert topic.core.message_count == {"mpub": 4, "dpub": 3, "sub": 2}[kind]
        ids = [id_ for it in topic.core.peek() for id_ in it.ids()]
        assert ids == sorted(ids)
        client.close()


async def test_a_full_disk_refuses_what_memory_has_no_room_for(autojump_clock: MockClock) -> None:
    """And no more; what was answered OK is there."""
    async with nsqd_in_memory(disk=full_disk("t"), mem_queue_size=2) as broker:
        publish(broker, "t", b"first")
        client, _, _ = connect(broker)
        await client.say(commands.publish("t", b"a") + commands.publish("u", b"b"))
        await client.response()
        await client.response()
        await client.say(commands.publish("t", b"over"))
        assert (await client.error()).startswith("E_PUB_FAILED")
        assert broker.topics["t"].core.depth == 2
        check_balances(broker)
