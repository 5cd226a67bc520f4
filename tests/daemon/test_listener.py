"""Listening and accepting on real sockets."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from trionsq.daemon import listener
from trionsq.daemon.listener import (
    ListenError,
    accept_forever,
    bound_address,
    open_sockets,
)
from trionsq.hostport import split_address

LIMIT_S = 60.0


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        ("0.0.0.0:4150", ("0.0.0.0", 4150)),
        (":4150", ("", 4150)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:4150", ("::1", 4150)),
        ("[::]:4150", ("::", 4150)),
        ("[fe80::1%eth0]:4150", ("fe80::1%eth0", 4150)),
        ("my-host.example:65535", ("my-host.example", 65535)),
        ("/run/nsqd.sock", None),
        ("nsqd.sock", None),
        ("./nsqd:4150", None),
        ("/run/nsqd:4150", None),
        ("host:port", None),
        ("host:", None),
        ("host:-1", None),
        ("", None),
    ],
)
def test_addresses(address: str, target: tuple[str, int] | None) -> None:
    """host:port in all its forms; anything else is the path of a unix socket."""
    assert split_address(address) == target


async def test_listens_on_a_free_port() -> None:
    """Port 0 is any free one; the log line shows which."""
    [sock] = await open_sockets("127.0.0.1:0")
    with sock:
        shown, port = bound_address(sock)
        assert port > 0
        assert shown == f"127.0.0.1:{port}"


async def test_listens_on_ipv6() -> None:
    """The log line shows brackets."""
    try:
        [sock] = await open_sockets("[::1]:0")
    except ListenError:
        pytest.skip("no IPv6 here")
    with sock:
        shown, port = bound_address(sock)
        assert shown == f"[::1]:{port}"


async def test_a_port_in_use_is_a_listen_error() -> None:
    """The text of the FATAL line names the address and why."""
    [sock] = await open_sockets("127.0.0.1:0")
    with sock:
        address = bound_address(sock)[0]
        with pytest.raises(ListenError) as caught:
            await open_sockets(address)
    text = str(caught.value)
    assert text.startswith(f"listen ({address}) failed - ")
    assert os.strerror(errno.EADDRINUSE) in text


@pytest.mark.parametrize("address", ["no-such-host.invalid:4150", "127.0.0.1:70000", "192.0.2.1:0"])
async def test_a_bad_address_is_a_listen_error(address: str) -> None:
    """An unknown name, a port out of range, an address that is not ours."""
    with pytest.raises(ListenError) as caught:
        await open_sockets(address)
    assert str(caught.value).startswith(f"listen ({address}) failed - ")


async def test_a_stale_unix_socket_is_a_listen_error(tmp_path: Path) -> None:
    """A file that is in the way is not removed: it may be another nsqd's."""
    path = str(tmp_path / "nsqd.sock")
    [sock] = await open_sockets(path)
    sock.close()
    with pytest.raises(ListenError) as caught:
        await open_sockets(path)
    assert str(caught.value).startswith(f"listen ({path}) failed - ")
    assert exists(path)


class Served:
    """Takes accepted connections, and closes them in the end."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self._send, self._receive = trio.open_memory_channel[socket.socket](100)

    def __call__(self, accepted: socket.socket) -> None:
        """Serve a connection."""
        self.sockets.append(accepted)
        self._send.send_nowait(accepted)

    async def next(self) -> socket.socket:
        """The next connection that is served."""
        with trio.fail_after(LIMIT_S):
            return await self._receive.receive()

    def close(self) -> None:
        """Close them all."""
        for accepted in self.sockets:
            accepted.close()


@pytest.fixture
def served() -> Iterator[Served]:
    """What was served in a test."""
    served = Served()
    yield served
    served.close()


def exists(path: str) -> bool:
    """Whether there is a file of that name."""
    return os.path.exists(path)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_accepts_until_cancelled(kind: str, served: Served, tmp_path: Path) -> None:
    """Each connection is served; cancelling closes the socket and removes a unix socket's file."""
    path = str(tmp_path / "nsqd.sock")
    [sock] = await open_sockets("127.0.0.1:0" if kind == "tcp" else path)
    async with trio.open_nursery() as nursery:
        await nursery.start(accept_forever, sock, served)
        for _ in range(3):
            with connected(sock):
                await served.next()
        nursery.cancel_scope.cancel()
    assert sock.fileno() == -1
    assert not exists(path)


def connected(to: socket.socket) -> socket.socket:
    """A client connected to a listening socket."""
    client = socket.socket(to.family)
    client.connect(to.getsockname())
    return client


async def test_removing_the_unix_socket_beforehand_is_no_error(tmp_path: Path) -> None:
    """Somebody may have cleaned up already."""
    path = tmp_path / "nsqd.sock"
    [sock] = await open_sockets(str(path))
    async with trio.open_nursery() as nursery:
        await nursery.start(accept_forever, sock, print)
        path.unlink()
        nursery.cancel_scope.cancel()
    assert sock.fileno() == -1


class Failing:
    """A listening socket whose accept fails a few times.

    Attributes:
        failures: how often it has failed.
    """

    def __init__(self, sock: socket.socket, error: OSError, times: int) -> None:
        self.failures = 0
        self._sock = sock
        self._error = error
        self._times = times

    def accept(self) -> Any:
        """Fail, or accept."""
        if self.failures < self._times:
            self.failures += 1
            raise self._error
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize(
    ("number", "pauses"),
    [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOMEM, True), (errno.ECONNABORTED, False)],
)
async def test_a_failing_accept_is_tried_again(
    number: int,
    pauses: bool,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Out of descriptors it says so once, pauses and goes on; a lost connection is skipped."""
    monkeypatch.setattr(listener, "_PAUSE_S", 0.01)
    [sock] = await open_sockets("127.0.0.1:0")
    failing: Any = Failing(sock, OSError(number, os.strerror(number)), times=3)
    with caplog.at_level(logging.ERROR):
        async with trio.open_nursery() as nursery:
            await nursery.start(accept_forever, failing, served)
            with connected(sock):
                await served.next()
            nursery.cancel_scope.cancel()
    assert failing.failures == 3
    assert len(caplog.records) == (1 if pauses else 0)
    assert sock.fileno() == -1


async def test_a_connection_that_cannot_be_served_is_closed(served: Served) -> None:
    """A peer that is gone already costs nothing: its socket is closed, the next is served."""
    [sock] = await open_sockets("127.0.0.1:0")
    refused: list[socket.socket] = []

    def serve(accepted: socket.socket) -> None:
        if not refused:
            refused.append(accepted)
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        served(accepted)

    async with trio.open_nursery() as nursery:
        await nursery.start(accept_forever, sock, serve)
        with connected(sock), connected(sock):
            assert (await served.next()).fileno() != -1
        nursery.cancel_scope.cancel()
    assert refused[0].fileno() == -1


class Heard(logging.Handler):
    """Says when something was logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.event = trio.Event()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
        self.event.set()


async def test_really_out_of_descriptors(served: Served) -> None:
    """With no descriptor left, connections wait in the backlog and are served afterwards."""
    heard = Heard()
    logger = logging.getLogger("trionsq")
    logger.addHandler(heard)
    [sock] = await open_sockets("127.0.0.1:0")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(accept_forever, sock, served)
            with socket.socket() as client:
                with no_descriptors_left(), trio.fail_after(LIMIT_S):
                    client.connect(sock.getsockname())
                    await heard.event.wait()
                    assert not served.sockets
                await served.next()
            nursery.cancel_scope.cancel()
    finally:
        logger.removeHandler(heard)
    assert heard.text.startswith("TCP: accept failed, trying again")


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Every descriptor that the process may have is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _somaxconn() -> int:
    """What the kernel lets wait; 0 where it does not say."""
    path = Path("/proc/sys/net/core/somaxconn")
    return int(path.read_text()) if path.exists() else 0


async def test_a_storm_of_connections_waits_in_the_kernel() -> None:
    """More than a thousand that come at once are connected before the first is accepted."""
    most = _somaxconn()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    storm = 1_500
    if most < storm or files < storm + 200:
        pytest.skip(f"somaxconn is {most}, and {files} files may be open")
    [sock] = await open_sockets("127.0.0.1:0")
    with sock, ExitStack() as connected:
        for _ in range(storm):
            connected.enter_context(socket.create_connection(sock.getsockname(), timeout=0.5))
