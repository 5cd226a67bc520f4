"""Streams of commands to a whole broker without sockets."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances
from tests.fuzz.mutate import cut
from tests.fuzz.parser import FuzzError
from tests.fuzz.steady import TOPIC, SteadyPair, Talk
from tests.fuzz.tcp_cases import tcp_case
from tests.fuzz.upgraded import upgraded
from tests.fuzz.watch import MIB, bounded_growth, no_traces, without_groups
from trionsq.broker.broker import Broker
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import MemoryStream, memory_connection

_CAPACITIES: Final = (200, 4096, 65536)
# So many connections are open at any time, and are looked after together.
_TOGETHER: Final = 20
# The share of cases that ask for snappy or deflate.
_UPGRADED: Final = 0.25
_CLEAN_EVERY: Final = 500
_GROWTH_NBYTES_MAX: Final = 150 * MIB


async def _speak(random: Random, data: bytes, stream: MemoryStream) -> None:
    """Send it in pieces, reading or not reading what comes."""
    reads = random.random() < 0.7
    try:
        for piece in cut(random, data):
            stream.send_nowait(piece)
            await trio.lowlevel.checkpoint()
            if reads:
                stream.incoming.read(2**20)
    except (trio.BrokenResourceError, OSError):
        return  # nsqd has closed it


def _leave(random: Random, stream: MemoryStream) -> None:
    """Close, close a half, reset, or stay until time ends it."""
    way = random.random()
    if way < 0.6:
        stream.close()
    elif way < 0.8:
        stream.end_sending()
    elif way < 0.9:
        stream.outgoing.break_with(ConnectionResetError())


async def _some(broker: Broker, seed: int, numbers: range) -> None:
    for number in numbers:
        random, data = tcp_case(seed, number)
        if random.random() < _UPGRADED:
            data = upgraded(random, data)
        stream, transport = memory_connection(random.choice(_CAPACITIES))
        broker.connect(transport)
        await _speak(random, data, stream)
        await wait_all_tasks_blocked()
        _leave(random, stream)


async def _run(count: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    async with nsqd_in_memory(
        seed=seed, mem_queue_size=100, max_msg_size=100_000, max_body_size=400_000
    ) as broker:
        pair = SteadyPair(Talk.in_memory(broker), Talk.in_memory(broker))
        await pair.begin()
        for first in range(0, count, _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, count))
            try:
                await _some(broker, seed, numbers)
                await pair.round()
                assert broker.client_failures == 0
                check_balances(broker)
            except Exception as error:
                raise FuzzError(f"seed {seed}, cases {numbers}: {error!r}") from error
            if first % _CLEAN_EVERY == 0:
                counts["messages"] += sum(t.core.message_count for t in broker.topics.values())
                for name in broker.topics.keys() - {TOPIC}:
                    broker.delete_topic(name)
        # Whoever stayed is silent, and closed for it; the pair answers heartbeats while it reads.
        await _wait_for_silence(broker, pair)
        counts["rounds of the pair"] = pair.rounds
    return counts


async def _wait_for_silence(broker: Broker, pair: SteadyPair) -> None:
    """Nobody but the pair and those without heartbeats is left after some intervals."""
    for _ in range(20):
        await trio.sleep(10)
        await pair.round()
    left = [c for c in broker.clients if c.identity.heartbeat_interval_ms is not None]
    assert len(left) == 2, left


def fuzz_in_memory(count: int, seed: int) -> Counter[str]:
    """Run ``count`` connections against a broker in this process.

    Raises:
        FuzzError: with the seed and the numbers of the cases.
    """
    with no_traces(), bounded_growth(_GROWTH_NBYTES_MAX), without_groups():
        return trio.run(_run, count, seed, clock=MockClock(autojump_threshold=0))
