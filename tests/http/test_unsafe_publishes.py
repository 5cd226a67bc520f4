"""Publishes whose messages are not safe yet: their answers wait, on both ways."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.rounds import use_rounds
from tests.http.talk import HttpTalk, post
from tests.http.test_fast_connection import PING, place, pub
from tests.http.ways import way

OK = b"OK"
REFUSED = b'{"message":"PUB_FAILED: no space"}'
both = pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "framework"])


@pytest.fixture
def autojump_clock() -> MockClock:
    """Time leaps when all tasks wait."""
    return MockClock(autojump_threshold=0)


@both
@pytest.mark.parametrize("path", ["pub", "mpub"])
async def test_an_answer_waits_until_the_messages_are_safe(
    fast_path: bool, path: str, autojump_clock: MockClock
) -> None:
    """200 when the round has ended well, 503 with the reason if it has not."""
    async with way(fast_path=fast_path) as here:
        rounds = use_rounds(here.broker)
        async with here.connect() as stream:
            talk = HttpTalk(stream)
            await talk.send(post(f"/{path}?topic=t", b"a"))
            assert rounds.open_count == 1
            assert here.broker.topics["t"].core.depth == 0
            rounds.finish("t")
            assert await talk.answer() == (200, OK)
            await talk.send(post(f"/{path}?topic=t", b"b"))
            rounds.finish("t", "no space")
            failed = b'{"message":"%b_FAILED: no space"}' % path.upper().encode()
            assert await talk.answer() == (503, failed)
        assert here.broker.topics["t"].core.depth == 1


@both
async def test_a_client_that_does_not_wait(fast_path: bool, autojump_clock: MockClock) -> None:
    """A round that ends after its client has gone does no harm."""
    async with way(fast_path=fast_path) as here:
        rounds = use_rounds(here.broker)
        async with here.connect() as stream:
            await HttpTalk(stream).send(post("/pub?topic=t", b"a"))
        await wait_all_tasks_blocked()
        rounds.finish("t")
        await wait_all_tasks_blocked()
        assert here.broker.topics["t"].core.depth == 1


async def test_requests_of_one_read_wait_together(autojump_clock: MockClock) -> None:
    """All are published before the first wait; the answers keep their order, also a refusal."""
    async with place() as here:
        rounds = use_rounds(here.broker)
        talk = here.connect()
        await talk.send(pub() * 2 + PING + pub(topic=b"u") * 2 + pub(topic=b"v"))
        assert rounds.open_count == 3
        rounds.finish("v")
        rounds.finish("u", "no space")
        await wait_all_tasks_blocked()
        assert len(talk.transport.outgoing) == 0
        rounds.finish("t")
        assert await talk.answers(6) == [OK, OK, OK, REFUSED, REFUSED, OK]
        await talk.send(PING)
        assert await talk.answers(1) == [OK]


async def test_single_messages_of_one_read_are_one_batch(autojump_clock: MockClock) -> None:
    """But for the first one, which may be alone. Each is answered as its round ends."""
    async with place() as here:
        rounds = use_rounds(here.broker)
        talk = here.connect()
        t, u = pub(), pub(topic=b"u")
        await talk.send(t + u)
        rounds.finish_all()
        await talk.answers(2)
        await talk.send(t + u + t + u + t)
        batches = [[it.count for it in segments] for _, segments in rounds["t"].rounds]
        assert batches == [[1, 2]]
        rounds.finish("u")
        rounds.finish("t", "no space")
        assert await talk.answers(5) == [REFUSED, OK, REFUSED, OK, REFUSED]


async def test_single_messages_in_memory_are_one_batch(autojump_clock: MockClock) -> None:
    """They keep their order, also with those that are published otherwise."""
    async with place() as here:
        talk = here.connect()
        b = pub(b"-", topic=b"u")
        await talk.send(pub(b"0") + b)
        await talk.answers(2)
        parts = [pub(b"1"), b, pub(b"2"), b, pub(b"3"), b, pub(b"4") + pub(b"5"), b, pub(b"6")]
        await talk.send(b"".join(parts))
        assert await talk.answers(10) == [OK] * 10
        batches = here.broker.topics["t"].core.peek()
        bodies = [list(it.batch.bodies.slice(it.first, it.last)) for it in batches]
        assert bodies == [[b"0"], [b"1"], [b"2", b"3"], [b"4", b"5"], [b"6"]]


async def test_a_refusal_closes_as_was_asked(autojump_clock: MockClock) -> None:
    """Of several requests that a round refuses the last one ends the connection, if it said so."""
    async with place() as here:
        rounds = use_rounds(here.broker)
        talk = here.connect()
        await talk.send(pub() + pub(more=b"Connection: close\r\n") + PING)
        rounds.finish("t", "no space")
        assert await talk.answers(2) == [REFUSED, REFUSED]
        await talk.ended.wait()


async def test_a_stop_lets_the_answer_out(autojump_clock: MockClock) -> None:
    """A connection that waits for a round ends after its answer, not before."""
    async with place() as here:
        rounds = use_rounds(here.broker)
        talk = here.connect()
        await talk.send(pub())
        here.fast_path.end_connections()
        await wait_all_tasks_blocked()
        assert not talk.ended.is_set()
        rounds.finish("t")
        assert await talk.answers(1) == [OK]
        await talk.ended.wait()


async def test_a_slow_round_is_not_the_clients_fault(autojump_clock: MockClock) -> None:
    """No time limit of a connection runs while nsqd waits for its disk."""
    async with place() as here:
        rounds = use_rounds(here.broker)
        talk = here.connect()
        await talk.send(pub())
        autojump_clock.autojump_threshold = float("inf")
        for _ in range(100):
            autojump_clock.jump(60)
            await wait_all_tasks_blocked()
        assert not talk.ended.is_set()
        rounds.finish("t")
        assert await talk.answers(1) == [OK]
