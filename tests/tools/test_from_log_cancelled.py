"""nsq_tail and nsq_to_nsq with --from are cancelled at each await: nothing is cut or stays open."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from tests.broker.support import numbered, publish
from tests.cancellation import BOTH_IN_SOAK, CancelAt, When, run_counted, sweep_awaits
from tests.client.network import ADDRESS, Network
from tests.http.logreader import serving
from tests.http.ways import Way
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from tests.tools.support import PATIENT, drain
from trionsq.client import Producer
from trionsq.testing.memory import nsqd_in_memory
from trionsq.tools.fromlog import read_logs
from trionsq.tools.nsq_tail import NsqTailOptions, _Tail
from trionsq.tools.nsq_to_nsq import NsqToNsqOptions, _Forwarding
from trionsq.tools.stdio import OutputFd

MESSAGES = numbered(25, 50)
RANGE: dict[str, Any] = {
    "topic": ("t",),
    "nsqd_http_address": ("localhost:1",),
    "begin": "beginning",
    "to": "20",
}


@asynccontextmanager
async def growing_log(patch: pytest.MonkeyPatch) -> AsyncIterator[Way]:
    """An nsqd that the tools reach, whose log lacks the last messages of the range."""
    with threads_in_mock_time():
        async with serving() as server:
            for at in range(0, 15, 3):
                publish(server.broker, "t", *MESSAGES[at : at + 3])

            async def dial(_host: str, _port: int) -> trio.SocketStream:
                return server.connect()

            assert read_logs.__kwdefaults__ is not None
            patch.setitem(read_logs.__kwdefaults__, "dial", dial)
            yield server


async def run_on(server: Way, cancel_at: CancelAt, work: Callable[[], Awaitable[object]]) -> None:
    """Run a tool, and publish what the log lacks meanwhile."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_counted, cancel_at, work)
        await trio.sleep(1)
        publish(server.broker, "t", *MESSAGES[15:])
    await trio.sleep(10)  # nsqd gives up the connection


async def tail(cancel_at: CancelAt) -> None:
    """A pipe takes the lines in small pieces."""
    with pytest.MonkeyPatch.context() as patch:
        async with growing_log(patch) as source:
            patch.setattr("trionsq.tools.stdio.OutputFd._PIPE_PIECE_BYTES", 30)
            reader, writer = os.pipe()
            with nothing_left_behind():
                tool = _Tail(NsqTailOptions(**RANGE), PATIENT)
                tool._output = OutputFd(writer)
                await run_on(source, cancel_at, tool.run)
            output = drain(reader)
            os.close(reader)
            os.close(writer)
    *lines, rest = output.split(b"\n")
    assert not rest
    assert lines == MESSAGES[: len(lines)]
    assert cancel_at.has_fired or len(lines) == 20


@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_nsq_tail_cut_off_at_any_await(when: When) -> None:
    """Its lines are the first messages of the range, each once and whole."""
    sweep_awaits(tail, when, least=30, one_in=40)


async def forward(cancel_at: CancelAt) -> None:
    """To one nsqd."""
    with pytest.MonkeyPatch.context() as patch:
        async with growing_log(patch) as source, nsqd_in_memory() as destination:
            topic = destination.topic("t")
            producer = partial(Producer, dial=Network.of(destination).dial)
            patch.setattr("trionsq.tools.nsq_to_nsq.Producer", producer)
            with nothing_left_behind():
                options = NsqToNsqOptions(**RANGE, destination_nsqd_tcp_address=(ADDRESS,))
                await run_on(source, cancel_at, _Forwarding(options, PATIENT, PATIENT).run)
            bodies = [
                body
                for segment in topic.core.peek()
                for body in segment.batch.bodies.slice(segment.first, segment.last)
            ]
    found = Counter(bodies)
    assert found == Counter(MESSAGES[: len(bodies)])
    assert cancel_at.has_fired or len(bodies) == 20


@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_nsq_to_nsq_cut_off_at_any_await(when: When) -> None:
    """The destination has the first messages of the range, each once; nothing stays open."""
    sweep_awaits(forward, when, least=30, one_in=40)
