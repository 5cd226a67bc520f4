"""Malformed input costs its connection at most: 20,000 cases in memory, 1,000 on sockets."""

from __future__ import annotations

import logging
from contextlib import suppress
from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.http.malformed import malformed
from tests.http.test_fast_connection import PING, autojump_clock, place, pub
from tests.http.ways import cut, way

__all__ = ["autojump_clock"]

SEED = 20261121
CASES_IN_MEMORY = 20_000
CASES_ON_SOCKETS = 1_000
HEALTH_EVERY = 500


def pieces_of(random: Random) -> list[bytes]:
    """A case, cut at random."""
    data = malformed(random)
    return cut(data, [random.randrange(len(data) + 1) for _ in range(random.choice([0, 0, 1, 3]))])


async def test_in_memory(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """The fast path ends or hands back what it does not know; another client is served all along.

    What it hands back is a part of what came.
    """
    random = Random(SEED)
    handed_back = 0
    async with place() as here:
        healthy = here.connect()
        for case in range(CASES_IN_MEMORY):
            talk = here.connect(capacity_bytes=1 << 20)
            pieces = pieces_of(random)
            with suppress(trio.BrokenResourceError):  # it ended before all was sent
                for piece in pieces:
                    await talk.stream.send_all(piece)
                await talk.stream.send_eof()
            await talk.ended.wait()
            if talk.handed_back is not None:
                handed_back += 1
                assert talk.handed_back in b"".join(pieces), f"case {case}"
            if case % HEALTH_EVERY == 0:
                await healthy.stream.send_all(pub(topic=b"healthy") + PING)
                assert await healthy.answers(2) == [b"OK", b"OK"]
        assert len(here.fast_path.connections) == 1
        assert len(here.fast_path.requests) <= 1024
        count = here.broker.topics["healthy"].core.message_count
        assert count == CASES_IN_MEMORY / HEALTH_EVERY
    assert CASES_IN_MEMORY / 2 < handed_back < CASES_IN_MEMORY
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_on_sockets(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """Each connection is answered or closed, nothing is logged as an error, others are served."""
    random = Random(SEED + 1)
    answered = 0
    async with way(fast_path=True) as server:
        for case in range(CASES_ON_SOCKETS):
            outcome = await server.exchange(pieces_of(random))
            answered += bool(outcome.answers)
            assert outcome.answers == b"" or outcome.answers.startswith(b"HTTP/1.1 "), case
        healthy = await server.exchange([PING])
        assert healthy.answers.endswith(b"OK")
    assert answered > CASES_ON_SOCKETS / 2
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
