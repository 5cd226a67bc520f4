"""HTTP connections have a limit of their own (trionsq.web.gate)."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.http.conftest import StartBroker
from tests.http.test_serve import PING, one_answer, serving, to_the_end
from tests.http.ways import loopback_pair
from trionsq.broker.options import NsqdOptions
from trionsq.web import gate
from trionsq.web.gate import ConnectionLimit, Gate


async def test_further_ones_are_told_and_closed(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 names the option, also to who has sent a request; one that ends makes room."""
    monkeypatch.setattr(gate, "_is_of_this_machine", lambda accepted: False)
    caplog.set_level(logging.WARNING, "trionsq")
    broker = await start_broker(NsqdOptions(max_http_connections=2))
    async with serving(broker) as server:
        first, second = await server.connect(), await server.connect()
        for stream in (first, second):
            await stream.send_all(PING)
            await one_answer(stream)
        for _ in range(3):
            answer = await to_the_end(await server.connect())
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"--max-http-connections" in answer
        await second.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        _, page = await one_answer(second)
        assert b"\nnsqd_http_connections 2.0\n" in page
        assert b"\nnsqd_http_connections_refused_total 3.0\n" in page
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked()
        third = await server.connect()
        await third.send_all(PING)
        assert (await one_answer(third))[1] == b"OK"
    assert caplog.text.count("--max-http-connections") == 1


async def test_this_machine_gets_in_still() -> None:
    """A few connections from loopback are let in beyond the limit, so that operators are."""
    limit = ConnectionLimit(1)
    let_in = 0
    for _ in range(40):
        ours, theirs = loopback_pair()
        with ours, theirs:
            let_in += limit.admit(theirs)
    assert (let_in, limit.refused) == (1 + gate._RESERVE, 40 - 1 - gate._RESERVE)


async def test_tls_is_closed_without_a_word() -> None:
    """What is no TLS would only confuse the client."""
    limit = ConnectionLimit(1)
    limit.open = 1 + gate._RESERVE
    ours, theirs = loopback_pair()
    with ours:
        assert not limit.admit(theirs, is_plain=False)
        assert ours.recv(100) == b""


async def test_no_limit_is_none() -> None:
    """0, and where nothing is said: any number of connections."""
    limit = Gate().connections
    limit.open = 1_000_000
    ours, theirs = loopback_pair()
    with ours, theirs:
        assert limit.admit(theirs)
