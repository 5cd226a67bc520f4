"""A server on a listening socket (trionsq.web.serve): its beginning."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from trionsq.web.serve import WebServer, serve_web


async def unused(*_: Any) -> None:
    raise AssertionError("nobody connects")


@pytest.mark.time_limit(20)
async def test_a_server_that_is_cancelled_at_its_start_ends() -> None:
    """It does not wait for its connections' nursery, which waits for the server."""
    sock = socket.create_server(("127.0.0.1", 0))
    with trio.CancelScope() as scope:
        scope.cancel()
        await serve_web(WebServer(unused), sock)
    assert scope.cancelled_caught
    assert sock.fileno() == -1
