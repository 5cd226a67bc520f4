"""What IDENTIFY lays over a connection, in memory: order, heartbeats, faults, statistics."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.statistics import document_of
from tests.broker.support import check_nobody_left, publish
from tests.broker.upgrading import Upgrading, certificate, identify, until_gone
from tests.golden.layers import Deflate, Snappy, TlsConnection
from tests.golden.peer import Peer
from tests.golden.test_in_process import MemoryPeer
from tests.transports.ends import client_context
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

LAYERS = [
    ("tls",),
    ("snappy",),
    ("deflate",),
    ("tls", "snappy"),
    ("tls", "deflate"),
]
names = [" ".join(layers) for layers in LAYERS]


@pytest.mark.parametrize("layers", LAYERS, ids=names)
async def test_messages_go_both_ways(
    autojump_clock: MockClock, tmp_path: Path, layers: tuple[str, ...]
) -> None:
    """Published, delivered and finished through every combination, small and large."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker)
        await client.upgrade(*layers)
        bodies = [b"small", bytes(range(256)) * 1200, b"x" * 900_000, b"last"]
        await client.say(commands.publish_many("t", bodies))
        assert await client.frame() == b"OK"
        await client.say(commands.subscribe("t", "c") + commands.ready(10))
        assert await client.frame() == b"OK"
        for body in bodies:
            frame = await client.frame()
            assert frame[26:] == body
            await client.say(commands.finish(frame[10:26]))
        await wait_all_tasks_blocked()
        assert broker.topics["t"].channels["c"].core.finish_count == len(bodies)
        client.stream.close()
        await until_gone(client.client)
        check_nobody_left(broker)


@pytest.mark.parametrize("layers", LAYERS, ids=names)
async def test_statistics_tell_the_layers(
    autojump_clock: MockClock, tmp_path: Path, layers: tuple[str, ...]
) -> None:
    """tls, its version and suite, snappy and deflate, in the words of nsqd."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker)
        await client.upgrade(*layers)
        await client.say(commands.publish("t", b"x"))
        await client.frame()
        producers = (await document_of(broker))["producers"]
        assert producers is not None
        (shown,) = producers
        is_tls = "tls" in layers
        assert (shown["snappy"], shown["deflate"]) == ("snappy" in layers, "deflate" in layers)
        assert (shown["tls"], shown["tls_negotiated_protocol_is_mutual"]) == (is_tls, is_tls)
        assert shown["tls_version"] == ("TLS1.3" if is_tls else "")
        assert shown["tls_cipher_suite"].startswith("Unknown 48" if is_tls else "")
        assert bool(shown["tls_cipher_suite"]) == is_tls
        assert shown["tls_negotiated_protocol"] == ""


async def test_the_common_name_is_known(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Of a client that shows a certificate, for the auth servers."""
    options = {**certificate(tmp_path), "tls_client_auth_policy": "require-verify"}
    async with nsqd_in_memory(**options) as broker:
        client = Upgrading(broker)
        await client.upgrade("tls")
        assert client.client.tls is not None
        assert client.client.tls.common_name == "worker"


@pytest.mark.parametrize("policy", ["require", "require-verify"])
async def test_a_client_without_certificate_is_refused(
    autojump_clock: MockClock, tmp_path: Path, policy: str
) -> None:
    """Where the policy wants one. With TLS 1.3 it hears of it only after its own handshake."""
    options = {**certificate(tmp_path), "tls_client_auth_policy": policy}
    async with nsqd_in_memory(**options) as broker:
        client = Upgrading(broker)
        await client.identify(tls_v1=True)
        connection = TlsConnection(client.peer.connection, client_context(), "127.0.0.1")
        with contextlib.suppress(ssl.SSLError):
            await connection.start()
        with pytest.raises(ssl.SSLError):
            await Peer(connection).read_frame()
        client.stream.close()
        await until_gone(client.client)
        assert broker.client_failures == 0


@pytest.mark.parametrize("layers", [("tls",), ("snappy",), ("deflate",)], ids=" ".join)
async def test_what_comes_with_identify_is_of_the_layer(
    autojump_clock: MockClock, tmp_path: Path, layers: tuple[str, ...]
) -> None:
    """Bytes of the next layer that arrive in the same read as IDENTIFY are not lost."""
    (layer,) = layers
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker)
        asked = identify(**{"tls_v1" if layer == "tls" else layer: True})
        if layer == "tls":
            tls = TlsConnection(MemoryPeer(client.stream), client_context(), "127.0.0.1")
            with pytest.raises(ssl.SSLWantReadError):
                tls._tls.do_handshake()
            client.stream.send_nowait(asked + tls._to_peer.read())
            await client.frame()
            tls._inner = MemoryPeer(client.stream)
            tls._from_peer.write(bytes(client.peer.received))
            await tls.start()
            client.peer = Peer(tls)
            assert await client.frame() == b"OK"
            await client.say(commands.publish("t", b"x"))
        else:
            transform = Snappy() if layer == "snappy" else Deflate()
            client.stream.send_nowait(asked + transform.outgoing(commands.publish("t", b"x")))
            await client.frame()
            await client.compress(layer)
        assert await client.frame() == b"OK"
        assert broker.topics["t"].core.message_count == 1


async def test_a_handshake_ends_after_five_seconds(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Without heartbeats in between, however short their interval; told in clear text."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker)
        await client.identify(tls_v1=True, heartbeat_interval=1000)
        began_s = trio.current_time()
        assert await client.frame() == b"E_IDENTIFY_FAILED IDENTIFY failed TLS handshake timed out"
        assert trio.current_time() - began_s == pytest.approx(5.0, abs=0.1)
        assert await client.ended() == b""
        client.stream.close()
        await wait_all_tasks_blocked()
        check_nobody_left(broker)


async def test_a_slow_handshake_is_no_silence(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A client may use its five seconds whatever its heartbeat interval; then heartbeats begin."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker)
        await client.identify(tls_v1=True, heartbeat_interval=1000)
        await trio.sleep(4.5)
        await client.tls()
        assert await client.frame() == b"_heartbeat_"


async def test_a_client_that_goes_amid_the_handshake(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It is let go of at once."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        for half_close in (True, False):
            client = Upgrading(broker)
            await client.identify(tls_v1=True)
            began_s = trio.current_time()
            if half_close:
                client.stream.end_sending()
                said = await client.ended()
                assert b"E_IDENTIFY_FAILED IDENTIFY failed" in said
                assert b"timed out" not in said
                client.stream.close()
            else:
                client.stream.close()
            await until_gone(client.client)
            assert trio.current_time() - began_s < 2
        check_nobody_left(broker)
        assert broker.client_failures == 0


async def test_a_client_that_takes_no_answer(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Is given up even if it wants no heartbeats."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker, capacity_bytes=200)
        await client.say(identify(tls_v1=True, heartbeat_interval=-1))
        await until_gone(client.client)
        assert trio.current_time() < 15
        check_nobody_left(broker)


@pytest.mark.parametrize("layer", ["snappy", "deflate"])
async def test_a_broken_stream_ends_the_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, layer: str
) -> None:
    """With a line in the log, and no harm to others."""
    async with nsqd_in_memory() as broker:
        client = Upgrading(broker)
        await client.upgrade(layer)
        client.stream.send_nowait(b"\xff" * 100)
        await client.ended()
        check_nobody_left(broker)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"client({client.client.peer}) - {layer}: " in errors[0]


async def test_a_bomb_does_not_grow_the_broker(autojump_clock: MockClock) -> None:
    """What is read of it at once is bounded; it is refused as the long line that it is."""
    async with nsqd_in_memory() as broker:
        client = Upgrading(broker, capacity_bytes=2**20)
        await client.upgrade("deflate")
        bomb = client.peer.connection._transform.outgoing(bytes(256 * 2**20))  # type: ignore[attr-defined]
        assert len(bomb) < 2**20
        client.stream.send_nowait(bomb)
        await client.ended()
        check_nobody_left(broker)


@pytest.mark.parametrize(
    ("first", "second", "is_fine"),
    [
        (("tls",), {"tls_v1": True}, False),
        (("snappy",), {"snappy": True}, False),
        (("snappy",), {"deflate": True}, False),
        (("deflate",), {"tls_v1": True}, False),
        (("tls", "snappy"), {"deflate": True}, False),
        (("tls",), {"deflate": True}, True),
        (("tls",), {}, True),
        ((), {"snappy": True}, True),
    ],
)
async def test_a_second_identify(
    autojump_clock: MockClock,
    tmp_path: Path,
    first: tuple[str, ...],
    second: dict[str, Any],
    is_fine: bool,
) -> None:
    """What is over a connection stays; what can still go over it may be asked for."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker)
        await client.upgrade(*first)
        if not is_fine:
            await client.say(identify(**second))
            assert await client.frame() == b"E_IDENTIFY_FAILED IDENTIFY failed already upgraded"
            await client.ended()
            return
        await client.upgrade(*second)
        await client.say(commands.publish("t", b"x"))
        assert await client.frame() == b"OK"
        assert (client.client.tls is not None) == ("tls" in first)
        assert client.client.snappy == ("snappy" in {*first, *second})


@pytest.mark.parametrize("option", ["snappy", "deflate"])
async def test_what_is_not_offered_is_not_begun(autojump_clock: MockClock, option: str) -> None:
    """The answer says no, and the connection goes on in clear."""
    options: dict[str, Any] = {option: False}
    async with nsqd_in_memory(**options) as broker:
        client = Upgrading(broker)
        answer = await client.identify(tls_v1=True, **{option: True})
        assert (answer["tls_v1"], answer[option]) == (False, False)
        await client.say(commands.publish("t", b"x"))
        assert await client.frame() == b"OK"


async def test_many_small_messages_are_joined(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What is delivered together is compressed and encrypted together, not one by one."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        client = Upgrading(broker, capacity_bytes=2**20)
        await client.upgrade("tls", "deflate")
        await client.say(commands.subscribe("t", "c") + commands.ready(1000))
        await client.frame()
        before = client.transport.outgoing.passed_bytes
        publish(broker, "t", *[b"%d" % number for number in range(1000)])
        for _ in range(1000):
            await client.frame()
        # A record of TLS alone has 22 bytes more than what is in it.
        assert client.transport.outgoing.passed_bytes - before < 20_000


async def test_cancellation_amid_each_step(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A broker that stops leaves nothing of a client behind that is being upgraded."""
    async with nsqd_in_memory(**certificate(tmp_path)) as broker:
        waiting = Upgrading(broker)
        await waiting.identify(tls_v1=True)
        blocked = Upgrading(broker, capacity_bytes=100)
        await blocked.say(identify(snappy=True))
        await wait_all_tasks_blocked()
    assert not broker.clients
    assert waiting.transport.is_closed
    assert blocked.transport.is_closed
