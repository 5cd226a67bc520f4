"""Each await of an HTTP request is cancelled once: its connection is closed."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest
import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from tests.cancellation import CancelAt, Scenario, When, run_counted, sweep_awaits
from trionsq import httpget
from trionsq.testing.streams import MemoryStream, Pipe

HOST = "example.test"
# More chunks than a turn of the event loop may have.
CHUNKS = 150
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n"
)


class Server:
    """Answers one connection, in TLS if there is a context; what it sends is cut in pieces."""

    def __init__(self, nursery: trio.Nursery, context: ssl.SSLContext | None) -> None:
        self._nursery = nursery
        self._context = context
        self.ends: list[MemoryStream] = []

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        up, down = Pipe(500), Pipe(500)
        self.ends.append(MemoryStream(down, up))
        self._nursery.start_soon(self._serve, MemoryStream(up, down))
        return self.ends[-1]

    async def _serve(self, end: MemoryStream) -> None:
        stream: trio.abc.Stream = end
        if self._context is not None:
            stream = trio.SSLStream(end, self._context, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            request = b""
            while not request.endswith(b"\r\n\r\nbody"):
                data = await stream.receive_some()
                if not data:
                    break
                request += data
            else:
                await stream.send_all(RESPONSE)
        end.close()


def requested(scheme: str) -> Scenario:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(HOST).configure_cert(serving)
    authority.configure_trust(trusting)

    async def scenario(cancel_at: CancelAt) -> None:
        async with trio.open_nursery() as servers:
            server = Server(servers, serving if scheme == "https" else None)
            answers: list[httpget.Answer] = []

            async def request() -> None:
                answer = await httpget.post(
                    f"{scheme}://{HOST}/", b"body", ssl_context=trusting, dial=server.dial
                )
                answers.append(answer)

            await run_counted(cancel_at, request)
            assert [answer.body for answer in answers] == [b"x" * CHUNKS] or cancel_at.has_fired
            await wait_all_tasks_blocked()
            assert all(end._is_closed for end in server.ends)
            assert not servers.child_tasks

    return scenario


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_request_cancelled_at_any_await(scheme: str, when: When) -> None:
    """The connection is closed, and the server hears of it."""
    sweep_awaits(requested(scheme), when, least=8)
