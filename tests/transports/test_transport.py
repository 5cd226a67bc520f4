"""A connected socket, tried at once and awaited only if that would block."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from trionsq.transports.trio_sockets import SocketTransport

LIMIT_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[SocketTransport, socket.socket]]:
    """A transport and its peer."""
    near, far = socket.socketpair()
    transport = SocketTransport(near)
    yield transport, far
    near.close()
    far.close()


async def tcp_pair(host: str) -> tuple[SocketTransport, socket.socket]:
    """The same over TCP on the loop-back."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        far = socket.create_connection(listener.getsockname()[:2])
        return SocketTransport(listener.accept()[0]), far


async def test_nothing_there_is_none_and_the_end_is_empty(
    pair: tuple[SocketTransport, socket.socket],
) -> None:
    """Reading never blocks: None if nothing came, bytes, and b"" once the peer has ended."""
    transport, far = pair
    assert transport.receive_nowait(100) is None
    far.send(b"abc")
    await transport.wait_readable()
    assert transport.receive_nowait(2) == b"ab"
    assert transport.receive_nowait(2) == b"c"
    far.shutdown(socket.SHUT_WR)
    await transport.wait_readable()
    assert transport.receive_nowait(2) == b""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
async def test_the_kernel_is_told_when_to_give_up_a_peer() -> None:
    """For what is sent, and, by probes in whole seconds, for a connection that is idle."""
    transport, far = await tcp_pair("127.0.0.1")
    with far:
        transport.set_user_timeout(2.5)
        sock = transport._socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        transport.close()


async def test_a_full_socket_takes_nothing(
    pair: tuple[SocketTransport, socket.socket],
) -> None:
    """Writing never blocks: 0 when the buffers are full, and more once the peer has read."""
    transport, far = pair
    data = b"x" * 65536
    sent = 0
    while taken := transport.send_nowait(data):
        sent += taken
    assert sent > 0
    while sent:
        sent -= len(far.recv(sent))
    await transport.wait_writable()
    assert transport.send_nowait(memoryview(b"y")) == 1


async def test_a_reset_is_an_oserror() -> None:
    """A peer that closes with input unread resets the connection: reading says so."""
    transport, far = await tcp_pair("127.0.0.1")
    transport.send_nowait(b"unread")
    await trio.to_thread.run_sync(far.recv, 1)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    await transport.wait_readable()
    with pytest.raises(ConnectionResetError):
        transport.receive_nowait(100)
    transport.end_sending()
    transport.close()


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_knows_its_peer(host: str, shown: str) -> None:
    """host:port, with brackets around an IPv6 address."""
    try:
        transport, far = await tcp_pair(host)
    except OSError:
        pytest.skip(f"no {host} here")
    assert transport.host == host
    assert transport.peer == f"{shown}:{far.getsockname()[1]}"
    transport.close()
    far.close()


async def test_a_unix_peer_has_no_address(pair: tuple[SocketTransport, socket.socket]) -> None:
    """As the original shows it in its log."""
    transport, _ = pair
    assert (transport.peer, transport.host) == ("@", "")


async def test_end_sending_is_seen_and_reading_goes_on(
    pair: tuple[SocketTransport, socket.socket],
) -> None:
    """A half close: the peer sees the end, and what it still sends arrives."""
    transport, far = pair
    transport.end_sending()
    assert far.recv(1) == b""
    far.send(b"late")
    await transport.wait_readable()
    assert transport.receive_nowait(100) == b"late"


async def test_a_closed_descriptor_can_be_used_again_at_once() -> None:
    """Closing leaves no trace in trio, so the next connection with that number works."""
    numbers = set()
    for _ in range(3):
        near, far = socket.socketpair()
        numbers.add(near.fileno())
        transport = SocketTransport(near)
        with trio.move_on_after(0.001) as waiting:
            await transport.wait_readable()
        assert waiting.cancelled_caught
        far.send(b"x")
        with trio.fail_after(LIMIT_S):
            await transport.wait_readable()
        assert transport.receive_nowait(10) == b"x"
        transport.close()
        far.close()
    assert len(numbers) == 1
