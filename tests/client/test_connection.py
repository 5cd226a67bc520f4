"""One connection to nsqd (trionsq.client.connection). Spec: client, section 1."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.client.network import ADDRESS, Network, Peer
from trionsq.client import (
    AuthRequiredError,
    Config,
    ConnectError,
    Connection,
    IdentifyError,
    NotConnectedError,
    ProtocolError,
)
from trionsq.client.reply import Reply
from trionsq.wire import commands, frames


@asynccontextmanager
async def connected(
    config: Config | None = None,
) -> AsyncIterator[tuple[Connection, Peer, Network]]:
    """An open connection, and nsqd's end of it."""
    network = Network().held()
    async with trio.open_nursery() as nursery:
        peers: list[Peer] = []

        async def hold() -> None:
            peer = await network.peer()
            await peer.identify()
            peers.append(peer)

        nursery.start_soon(hold)
        connection = await Connection.open(ADDRESS, config or Config(), network.dial)
        await nursery.start(connection.run)
        yield connection, peers[0], network
        nursery.cancel_scope.cancel()


async def test_it_identifies() -> None:
    """The client sends the magic and IDENTIFY with its options, and keeps nsqd's answer."""
    network = Network().held()
    async with trio.open_nursery() as nursery:
        told: list[bytes] = []

        async def serve() -> None:
            told.append(await (await network.peer()).identify(b'{"max_rdy_count":7}'))

        nursery.start_soon(serve)
        connection = await Connection.open(ADDRESS, Config(client_id="me"), network.dial)
        assert connection.max_rdy_count == 7
        assert json.loads(told[0])["client_id"] == "me"
        connection.discard()
    assert network.links[0].is_closed


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (frames.error(ProtocolError("E_BAD_BODY", "no")), IdentifyError, "E_BAD_BODY no"),
        (frames.response(b'{"auth_required":true}'), AuthRequiredError, "Auth Required"),
        (frames.response(b"{nonsense"), IdentifyError, "failed to IDENTIFY"),
        (frames.response(b'{"max_rdy_count":"x"}'), IdentifyError, "failed to IDENTIFY"),
        (frames.response(b'{"tls_v1":true}'), IdentifyError, "unasked"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectError, "HTTP"),
        (b"\x00\x00\x00\x02", ConnectError, "frame size"),
        (b"\x00\x00\x00\x20\x00\x00\x00\x02" + bytes(28), ConnectError, "before SUB"),
        (None, ConnectError, "reset by peer"),
    ],
)
async def test_a_bad_answer_is_an_error(
    answer: bytes | None, error: type[Exception], reason: str
) -> None:
    """Any invalid answer to IDENTIFY raises an error and closes the connection."""
    network = Network().held()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            peer = await network.peer()
            if answer is None:
                peer.stream.close()
            else:
                await peer.say(answer)
                await peer.gone()

        nursery.start_soon(serve)
        with pytest.raises(error, match=reason):
            await Connection.open(ADDRESS, Config(), network.dial)
    assert network.links[0].is_closed


async def test_no_feature_negotiation() -> None:
    """An old nsqd answers OK; the defaults of old nsqds apply."""
    network = Network().held()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await (await network.peer()).identify(b"OK")

        nursery.start_soon(serve)
        connection = await Connection.open(ADDRESS, Config(), network.dial)
        assert (connection.features, connection.max_rdy_count) == ({}, 2500)
        connection.discard()


async def test_refused() -> None:
    """A refused TCP connection is a ConnectError."""
    with pytest.raises(ConnectError, match=ADDRESS):
        await Connection.open(ADDRESS, Config(), Network().dial)


async def test_connecting_takes_no_longer_than_dial_timeout(autojump_clock: MockClock) -> None:
    """After dial_timeout the attempt fails."""

    async def dial(host: str, port: int, local: str) -> object:
        await trio.sleep_forever()
        raise AssertionError

    with pytest.raises(ConnectError, match="not connected within 1 s"):
        await Connection.open(ADDRESS, Config(), dial)  # type: ignore[arg-type]
    assert trio.current_time() == 1


async def test_a_peer_that_says_nothing_is_given_up(autojump_clock: MockClock) -> None:
    """Without an answer to IDENTIFY within read_timeout the attempt fails."""
    network = Network().held()
    with pytest.raises(ConnectError, match="no answer"):
        await Connection.open(
            ADDRESS, Config(read_timeout_s=5, heartbeat_interval_s=1), network.dial
        )
    assert trio.current_time() == 5
    assert network.links[0].is_closed


async def test_answers_come_in_the_order_of_requests() -> None:
    """Each request gets its own answer; heartbeats are answered by NOP and are no answers."""
    async with connected() as (connection, peer, _):
        replies = [connection.request(commands.publish("t", b"x")) for _ in range(2)]
        await peer.say(frames.response(b"1"), frames.HEARTBEAT, frames.response(b"2"))
        assert [await reply.wait() for reply in replies] == [b"1", b"2"]
        for _ in range(2):
            assert await peer.line() == b"PUB t"
            await peer.body()
        assert await peer.line() == b"NOP"


async def test_a_cancelled_request_keeps_the_order() -> None:
    """Its answer is dropped, and the next request gets the next answer."""
    async with connected() as (connection, peer, _):
        lost = connection.request(commands.nop())
        with trio.CancelScope() as scope:
            scope.cancel()
            await lost.wait()
        kept = connection.request(commands.nop())
        await peer.say(frames.response(b"1"), frames.response(b"2"))
        assert await kept.wait() == b"2"


async def test_an_error_frame_fails_its_request_and_the_end_the_others() -> None:
    """The request gets nsqd's code; later ones get NotConnectedError."""
    async with connected() as (connection, peer, _):
        refused, behind = (connection.request(commands.nop()) for _ in range(2))
        await peer.refuse("E_BAD_TOPIC", "no")
        with pytest.raises(ProtocolError, match="E_BAD_TOPIC no"):
            await refused.wait()
        with pytest.raises(NotConnectedError, match="E_BAD_TOPIC"):
            await behind.wait()
        with pytest.raises(NotConnectedError):
            await connection.request(commands.nop()).wait()
        await connection.ended.wait()
        assert "E_BAD_TOPIC" in repr(connection)


@pytest.mark.parametrize("broken", [True, False])
async def test_a_lost_connection_fails_all_that_wait(broken: bool) -> None:
    """Every open request fails, whether nsqd closed the connection or it broke."""
    async with connected() as (connection, peer, network):
        replies = [connection.request(commands.nop()) for _ in range(3)]
        if broken:
            network.links[0].incoming.break_with(ConnectionResetError("reset"))
        else:
            peer.stream.end_sending()
        for reply in replies:
            with pytest.raises(NotConnectedError):
                await reply.wait()
        await connection.ended.wait()
        assert network.links[0].is_closed


@pytest.mark.parametrize(
    "nonsense", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x04\x00\x00\x00\x09", frames.OK]
)
async def test_nonsense_closes(nonsense: bytes) -> None:
    """Invalid frames, unknown frame types and unexpected answers close the connection."""
    async with connected() as (connection, peer, _):
        await peer.say(nonsense)
        await connection.ended.wait()
        assert connection.failure is not None


async def test_silence_closes_after_read_timeout(autojump_clock: MockClock) -> None:
    """The connection ends after read_timeout without a byte from nsqd."""
    async with connected(Config(read_timeout_s=60)) as (connection, peer, _):
        await trio.sleep(50)
        await peer.say(frames.HEARTBEAT)
        await trio.sleep(50)
        assert connection.is_open
        await connection.ended.wait()
        assert 110 <= trio.current_time() <= 110.2
        assert "silent for 60 s" in str(connection.failure)


async def test_a_program_that_stood_still_hears_what_came_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """After a long pause of the program, data that has arrived counts before the timeout."""
    async with connected(Config(read_timeout_s=60)) as (connection, peer, _):
        for _ in range(30):  # who is first is left to chance
            await wait_all_tasks_blocked()
            peer.stream.send_nowait(frames.HEARTBEAT)
            autojump_clock.jump(61)
        await wait_all_tasks_blocked()
        assert connection.is_open


async def test_a_peer_that_takes_nothing_is_closed(autojump_clock: MockClock) -> None:
    """The connection ends after write_timeout, plus a moment for a last error of nsqd."""
    async with connected(Config(write_timeout_s=3)) as (connection, _, network):
        reply = connection.request(b"x" * 200_000)
        with pytest.raises(NotConnectedError, match="read nothing"):
            await reply.wait()
        assert 3 <= trio.current_time() <= 3.2
        await connection.ended.wait()
        assert network.links[0].is_closed


async def test_puts_of_one_turn_are_one_write() -> None:
    """Many small commands cost one system call."""
    async with connected() as (connection, peer, network):
        await wait_all_tasks_blocked()
        sizes: list[int] = []
        link = network.links[0]
        write = link.outgoing.write

        def counted(data: bytes | memoryview) -> int:
            sizes.append(len(data))
            return write(data)

        link.outgoing.write = counted  # type: ignore[method-assign]
        for _ in range(100):
            connection.put(b"NOP\n")
        for _ in range(100):
            assert await peer.line() == b"NOP"
        assert sizes == [400]


async def test_the_end_sends_what_was_put() -> None:
    """`end` sends everything, then waits until nsqd closes, so that no reset loses data."""
    async with connected() as (connection, peer, network):
        connection.put(b"NOP\n" * 10)
        connection.end()
        connection.put(b"too late\n")
        for _ in range(10):
            assert await peer.line() == b"NOP"
        with pytest.raises(EOFError):
            await peer.line()
        assert not network.links[0].is_closed
        peer.stream.close()
        await connection.ended.wait()
        assert connection.failure is None


# Replies


async def test_a_reply_wakes_all_who_wait_for_it() -> None:
    """Also after one of them was cancelled; later waits return at once, without a checkpoint."""
    reply = Reply[int]()
    values: list[int] = []

    async def wait() -> None:
        values.append(await reply.wait())

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            scope.cancel()
            await reply.wait()
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        reply.set_value(7)
    assert values == [7, 7]
    with trio.testing.assert_no_checkpoints():
        assert await reply.wait() == 7


async def test_a_connection_takes_a_mebibyte_ahead_of_its_socket() -> None:
    """While nsqd is slow, a program goes on publishing; it waits only above that."""
    async with connected() as (connection, _, _):
        quarter = commands.publish("t", bytes(256 * 1024 - len(b"PUB t\n") - 4))
        sent = 0
        while connection.has_room:
            connection.request(quarter)
            sent += 1
        assert sent * len(quarter) == (1024 + 256) * 1024, "a whole one, and what went over it"


async def test_a_reply_raises_its_error() -> None:
    """Each wait raises the error that was set."""
    reply = Reply[int]()
    reply.set_error(NotConnectedError("gone"))
    for _ in range(2):
        with pytest.raises(NotConnectedError, match="gone"):
            await reply.wait()
