"""Who is let in (trionsq.broker.admission): the connection rate of one address."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trionsq.broker.admission import Admission
from trionsq.broker.options import NsqdOptions, OptionsError, validated
from trionsq.testing import open_broker
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import memory_connection
from trionsq.wire import commands
from trionsq.wire.states import MAGIC_V2


def test_without_a_rate_there_is_no_limit() -> None:
    """The default costs nothing and refuses nobody."""
    admission = Admission(0)
    assert all(admission.admit("10.0.0.1", "10.0.0.1:1", 0.0) for _ in range(1000))
    assert admission.refused == 0


def test_the_burst_is_twice_the_rate_unless_given() -> None:
    """--max-connection-burst=0."""
    admission = Admission(0, rate=3)
    assert sum(admission.admit("10.0.0.1", "10.0.0.1:1", 0.0) for _ in range(20)) == 6
    admission = Admission(0, rate=3, burst=1)
    assert sum(admission.admit("10.0.0.1", "10.0.0.1:1", 0.0) for _ in range(20)) == 1


def test_whoever_finds_no_room_uses_up_no_rate() -> None:
    """--max-connections comes first."""
    admission = Admission(1, rate=1, burst=1)
    admission.connections = 1
    assert not admission.admit("10.0.0.1", "10.0.0.1:1", 0.0)
    admission.connections = 0
    assert admission.admit("10.0.0.1", "10.0.0.1:1", 0.0)
    assert admission.refused_by == {"max_connections": 1, "max_connection_rate": 0}


@pytest.mark.parametrize("name", ["max_connection_rate", "max_connection_burst"])
def test_negative_limits_are_refused(name: str) -> None:
    """At the start."""
    with pytest.raises(OptionsError, match=r"must be >= 0"):
        validated(NsqdOptions(**{name: -1}))  # type: ignore[arg-type]


async def test_a_flood_of_one_address_is_closed_counted_and_logged_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Others come in meanwhile, and the flooder too when it has calmed down."""
    async with nsqd_in_memory(max_connection_rate=5, max_connection_burst=10) as broker:

        def came(host: str) -> bool:
            _, transport = memory_connection(host=host)
            broker.accept(transport)
            return not transport.is_closed

        with caplog.at_level(logging.WARNING):
            assert sum(came("10.0.0.1") for _ in range(1000)) == 10
            assert came("10.0.0.2")
            assert broker.admission.refused_by["max_connection_rate"] == 990
            await trio.sleep(1)
            assert sum(came("10.0.0.1") for _ in range(1000)) == 5
        assert [
            record.getMessage().count("--max-connection-rate") for record in caplog.records
        ] == [
            1,
            1,
        ]


async def test_unix_sockets_and_http_have_no_rate(tmp_path: Path) -> None:
    """Only TCP addresses have: who may connect to a unix socket, its permissions say."""
    path = str(tmp_path / "nsqd.sock")
    limits: dict[str, Any] = {"max_connection_rate": 1, "max_connection_burst": 1}
    publish = MAGIC_V2 + commands.publish("t", b"x")

    async def goes(stream: trio.SocketStream, said: bytes) -> bool:
        try:
            await stream.send_all(said)
            return bool(await stream.receive_some())
        except trio.BrokenResourceError:
            return False

    async with open_broker(**limits, tcp_address=path) as nsqd:
        with trio.fail_after(60):
            for _ in range(20):
                sock = trio.socket.socket(socket.AF_UNIX)
                await sock.connect(path)
                assert await goes(trio.SocketStream(sock), publish)
                sock.close()
            host, port = nsqd.http_address.split(":")
            for _ in range(20):
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    assert await goes(stream, b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
    async with open_broker(**limits) as nsqd:
        host, port = nsqd.tcp_address.split(":")
        with trio.fail_after(60):
            went = []
            for _ in range(20):
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    went.append(await goes(stream, publish))
            assert went[0]
            assert not all(went)
            assert went.count(False) == nsqd.broker.admission.refused
