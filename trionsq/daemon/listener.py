"""Accepting TCP and unix socket connections."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

import trio

from trionsq.hostport import format_address, split_address

__all__ = ["ListenError", "accept_forever", "bound_address", "open_sockets", "peer_address"]

log = logging.getLogger("trionsq")

# As many as the kernel allows (net.core.somaxconn); beyond it clients retry after a second.
_BACKLOG: Final = 65_535
# Connections accepted per turn of the event loop.
_MAX_ACCEPTS: Final = 64
_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S: Final = 0.1


class ListenError(Exception):
    """The address can't be listened on; ``str()`` is the text of the FATAL log line."""

    def __init__(self, address: str, error: object) -> None:
        super().__init__(f"listen ({address}) failed - {error}")


async def open_sockets(address: str) -> list[socket.socket]:
    """Listening sockets for ``host:port`` or a unix socket path.

    Raises:
        ListenError: the address is in use, unknown or malformed.
    """
    target = split_address(address)
    try:
        if target is None:
            return [_open_unix(address)]
        host, port = target
        if port > 65535:
            raise OSError(f"invalid port {port}")
        listeners = await trio.open_tcp_listeners(port, host=host or None, backlog=_BACKLOG)
        return [socket.socket(fileno=listener.socket.detach()) for listener in listeners]
    except OSError as error:
        raise ListenError(address, error) from error


def _open_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def bound_address(sock: socket.socket) -> tuple[str, int]:
    """The address as log lines show it, and the port: -1 for a unix socket."""
    if sock.family == socket.AF_UNIX:
        return str(sock.getsockname()), -1
    host, port = sock.getsockname()[:2]
    return format_address(host, port), port


def peer_address(accepted: socket.socket) -> str:
    """The remote address of a connection, for the name of its task; ``@`` for a unix socket."""
    if accepted.family == socket.AF_UNIX:
        return "@"
    try:
        host, port = accepted.getpeername()[:2]
    except OSError:
        return "(closed)"
    return format_address(host, port)


async def accept_forever(
    sock: socket.socket,
    serve: Callable[[socket.socket], object],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections until cancelled, then close the listening socket.

    Without file descriptors or memory it pauses and retries; open connections are served meanwhile.
    The error is logged once, and again only after a connection was accepted.
    """
    sock.setblocking(False)
    path = sock.getsockname() if sock.family == socket.AF_UNIX else None
    try:
        task_status.started()
        is_failing = False
        while True:
            await trio.lowlevel.wait_readable(sock)
            try:
                for _ in range(_MAX_ACCEPTS):
                    _accept(sock, serve)
                    is_failing = False
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    log.debug("TCP: a connection closed before it was accepted: %s", error)
                    continue
                if not is_failing:
                    log.error("TCP: accept failed, trying again: %s", error)
                is_failing = True
                await trio.sleep(_PAUSE_S)
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()
        if path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _accept(sock: socket.socket, serve: Callable[[socket.socket], object]) -> None:
    accepted, _ = sock.accept()
    try:
        serve(accepted)
    except BaseException:
        accepted.close()
        raise
