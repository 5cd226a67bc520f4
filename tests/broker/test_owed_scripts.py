"""Any commands and any rounds: the client gets the bytes that it gets if all is safe at once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.rounds import Rounds, nsqd_with_rounds
from tests.broker.session import until_cut_off
from tests.broker.support import check_balances, check_nobody_left, connect, publish
from tests.cancellation import BOTH_IN_SOAK, CancelAt, When, sweep_awaits
from tests.core.helpers import RoundBackend
from tests.soak import by_level, more_in_soak
from trionsq.broker.broker import Broker
from trionsq.core.batch import Segment
from trionsq.core.queue import BackendError
from trionsq.core.round import Round
from trionsq.testing.conversation import Conversation
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame

BAD = b"bad"
REASON = "broken"
UNKNOWN = b"0" * 16
"""The id of a message that is not in flight."""


def _is_bad(segment: Segment) -> bool:
    return BAD in segment.batch.bodies.slice(segment.first, segment.last)


class ImmediateBackend(RoundBackend):
    """All is safe at once, and what is bad is refused at once."""

    @property
    def pending(self) -> Round | None:
        return None

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        if _is_bad(segment):
            raise BackendError(REASON)
        self.segments.append(segment)


class RoundOfEach(RoundBackend):
    """Each append is a round of its own, which fails if it has what is bad."""

    def append(self, segment: Segment, due_ns: Sequence[int] | None = None) -> None:
        self.next_round()
        super().append(segment, due_ns)

    def finish_next(self, place: int) -> None:
        """End one of the rounds."""
        place %= len(self.rounds)
        bad = any(map(_is_bad, self.rounds[place][1]))
        self.finish(REASON if bad else None, place)


def finish_one(rounds: Rounds, random: Random) -> bool:
    """End any round; False if there is none."""
    waiting = [backend for backend in rounds.values() if backend.rounds]
    if not waiting:
        return False
    backend = random.choice(waiting)
    assert isinstance(backend, RoundOfEach)
    backend.finish_next(random.randrange(len(backend.rounds)))
    return True


async def received(
    new_backend: type[RoundBackend], chunks: list[bytes], random: Random, is_half_closed: bool
) -> bytes:
    """Say everything on one connection, end rounds now and then, and return all that came."""
    came = bytearray()
    ended = trio.Event()
    async with nsqd_with_rounds(new_backend) as (broker, rounds), trio.open_nursery() as nursery:
        talk, _, _ = connect(broker)

        async def listen() -> None:
            try:
                while data := await talk.stream.receive_some():
                    came.extend(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            ended.set()

        nursery.start_soon(listen)
        with until_cut_off():
            for chunk in chunks:
                await talk.say(chunk)
                await wait_all_tasks_blocked()
                while random.random() < 0.4 and finish_one(rounds, random):
                    if random.random() < 0.5:
                        await wait_all_tasks_blocked()
            if is_half_closed:
                await talk.stream.send_eof()
        await wait_all_tasks_blocked()
        while finish_one(rounds, random):
            # A command that waited may begin another round.
            if random.random() < 0.5 or not rounds.open_count:
                await wait_all_tasks_blocked()
        if is_half_closed:
            with trio.fail_after(100):
                await ended.wait()
        else:
            await trio.sleep(2)
        talk.close()
        await trio.sleep(2)
        check_nobody_left(broker)
        check_balances(broker)
        assert broker.client_failures == 0
        nursery.cancel_scope.cancel()
    return bytes(came)


bodies = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g", BAD])
topics = st.sampled_from(["t", "u"])
lines = st.one_of(
    st.builds(commands.publish, topics, bodies),
    st.builds(
        lambda topic, count: commands.publish(topic, b"x") * count, topics, st.integers(2, 9)
    ),
    st.builds(commands.publish_many, topics, st.lists(bodies, min_size=1, max_size=3)),
    st.builds(commands.publish_deferred, topics, st.just(100), bodies),
    st.just(commands.finish(UNKNOWN)),
    st.just(commands.touch(UNKNOWN)),
    st.sampled_from([b"CLS\n", b"NONSENSE\n", commands.ready(1)]),
    st.just(commands.nop()),
)
# NOPs keep publishes of two parts from being read as one.
parts = st.lists(lines, max_size=6).map(b"NOP\n".join).map(b"NOP\n%b".__mod__)
begins = st.sampled_from(
    [
        b"",
        commands.subscribe("quiet", "c"),
        commands.publish("t", b"a") + commands.subscribe("quiet", "c"),
        commands.publish("t", b"a") + commands.identify({"client_id": "x"}),
        commands.publish("t", BAD) + commands.identify({"client_id": "x"}),
    ]
)
scripts = st.builds(lambda begin, more: [begin, *more], begins, st.lists(parts, max_size=5))


@more_in_soak
@settings(max_examples=by_level(test=40, short=400, full=10_000), deadline=None)
@given(scripts, st.integers(0, 2**32), st.booleans())
def test_the_same_bytes_as_if_all_were_safe_at_once(
    chunks: list[bytes], seed: int, is_half_closed: bool
) -> None:
    """Rounds may end in any order, well or not: what the client reads tells only when it was."""
    clock = MockClock(autojump_threshold=0)
    expected = trio.run(
        received, ImmediateBackend, chunks, Random(seed), is_half_closed, clock=clock
    )
    clock = MockClock(autojump_threshold=0)
    came = trio.run(received, RoundOfEach, chunks, Random(seed), is_half_closed, clock=clock)
    assert came == expected


# Cancellation


async def end_rounds(rounds: Rounds, random: Random) -> None:
    """A disk that takes its time, for ever."""
    while True:
        await trio.sleep(0.5)
        finish_one(rounds, random)


async def owed_session(talk: Conversation) -> None:
    """Publishes, waits at each bound, and ends while answers are owed."""
    with until_cut_off():
        await talk.say(commands.publish("t", b"a"), commands.subscribe("own", "c"))
        await talk.response()
        await talk.response()
        await talk.say(commands.ready(1), commands.publish("own", b"mine"))
        await talk.response()
        message = await talk.frame()
        assert isinstance(message, MessageFrame)
        await talk.say(commands.publish("t", b"b"), commands.finish(message.message_id))
        await talk.response()
        await talk.say(commands.publish("t", b"x") * 1500, commands.publish("u", b"c") * 9000)
        for _ in range(10_500):
            await talk.response()
        await talk.say(commands.publish("t", b"last"), b"NONSENSE\n")
        await talk.response()
        await talk.error()
        await talk.end()


async def cancel_an_owed_client(cancel_at: CancelAt) -> None:
    """A connection that is closed at one await of a session in which all answers are owed."""
    async with nsqd_with_rounds(RoundOfEach) as (broker, rounds), trio.open_nursery() as nursery:
        assert broker._connections is not None
        talk, client, transport = connect(broker, 1024 * 1024)
        [cancel_at.root] = broker._connections.child_tasks
        cancel_at.cancel = client.close
        nursery.start_soon(end_rounds, rounds, Random(1))
        with trio.fail_after(10_000):
            await owed_session(talk)
            talk.close()
            await trio.sleep(1.1)
        assert transport.is_closed
        check_nobody_left(broker)
        rounds.finish_all()
        await check_still_serves(broker, rounds)
        nursery.cancel_scope.cancel()
    assert broker.client_failures == 0


async def check_still_serves(broker: Broker, rounds: Rounds) -> None:
    """What the connection left does not keep others from being served."""
    check_balances(broker)
    other = Conversation.begin(broker)
    await other.subscribe("after", "c", ready=1)
    publish(broker, "after", b"next")
    rounds.finish("after")
    message = await other.message()
    assert message.body == b"next"
    await other.say(commands.finish(message.message_id))
    await wait_all_tasks_blocked()
    check_balances(broker)


@more_in_soak
@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_a_client_with_answers_owed_is_cancelled_at_any_await(when: When) -> None:
    """Nothing is left of it, and the rounds that it waited for end without harm."""
    sweep_awaits(cancel_an_owed_client, when, least=15)
