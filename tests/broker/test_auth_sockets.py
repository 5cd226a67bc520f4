"""AUTH over real sockets: an HTTP server, an HTTPS server, and one that sends us to the other."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trustme

from tests.broker.auth_stub import GRANTED, granting, http
from trionsq.broker.auth import AuthServers
from trionsq.broker.options import NsqdOptions
from trionsq.testing import open_broker
from trionsq.wire import commands, frames
from trionsq.wire.auth import Question
from trionsq.wire.states import MAGIC_V2

RECEIVE_NBYTES = 65536
LIMIT_S = 60
QUESTION = Question(b"s", "127.0.0.1", True, "ann")


@asynccontextmanager
async def serving(
    answer: Callable[[bytes], bytes | None],
    context: ssl.SSLContext | None = None,
    gone: trio.Event | None = None,
) -> AsyncIterator[int]:
    """An HTTP server on 127.0.0.1 that answers each request; the port.

    Without an answer it hangs until the client goes, and sets ``gone``.
    """

    async def serve(stream: trio.abc.Stream) -> None:
        if context is not None:
            stream = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            request = b""
            while b"\r\n\r\n" not in request:
                data = await stream.receive_some(RECEIVE_NBYTES)
                if not data:
                    return
                request += data
            answered = answer(request)
            if answered is None:
                assert await stream.receive_some(RECEIVE_NBYTES) == b""
                assert gone is not None
                gone.set()
            else:
                await stream.send_all(answered)
        except trio.BrokenResourceError:
            return
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port: int = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield port
        nursery.cancel_scope.cancel()


async def receive(stream: trio.abc.Stream, expected: bytes) -> None:
    """Read that much, which must be that."""
    received = b""
    while len(received) < len(expected):
        data = await stream.receive_some(len(expected) - len(received))
        assert data, received
        received += data
    assert received == expected


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[str, ssl.SSLContext]:
    """The file of an authority, and what a server with its certificate for 127.0.0.1 needs."""
    authority = trustme.CA()
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return str(path), context


async def test_an_nsqd_asks_an_http_server() -> None:
    """Publish and subscribe after AUTH, with nothing made up between the two."""
    requests = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return granting()

    async with serving(answer) as port:
        address = f"127.0.0.1:{port}"
        with trio.fail_after(LIMIT_S):
            async with open_broker(auth_http_address=(address,)) as nsqd:
                host, tcp_port = nsqd.tcp_address.split(":")
                async with await trio.open_tcp_stream(host, int(tcp_port)) as client:
                    said = [commands.auth("s 1"), commands.publish("t", b"x")]
                    await client.send_all(MAGIC_V2 + b"".join(said))
                    await receive(client, frames.response(GRANTED) + frames.OK)
                    await client.send_all(commands.subscribe("t", "c"))
                    await receive(client, frames.OK)
    target = b"/auth?common_name=&remote_ip=127.0.0.1&secret=s+1&tls=false"
    assert requests == [
        b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n"
        b"Accept: application/vnd.nsq; version=1.0\r\n\r\n" % (target, address.encode())
    ]


async def test_a_client_that_goes_frees_the_auth_server() -> None:
    """The connection to a server that hangs is closed with the client's."""
    asked, gone = trio.Event(), trio.Event()

    def answer(_request: bytes) -> None:
        asked.set()

    async with serving(answer, gone=gone) as port:
        with trio.fail_after(LIMIT_S):
            timeout_ns = 3600 * 10**9
            async with open_broker(
                auth_http_address=(f"127.0.0.1:{port}",), http_client_request_timeout_ns=timeout_ns
            ) as nsqd:
                host, tcp_port = nsqd.tcp_address.split(":")
                client = await trio.open_tcp_stream(host, int(tcp_port))
                await client.send_all(MAGIC_V2 + commands.auth("s"))
                await asked.wait()
                await client.aclose()
                await gone.wait()


async def test_https_is_checked_against_the_root_ca_file(
    certificates: tuple[str, ssl.SSLContext],
) -> None:
    """A server with the authority's certificate is believed; without the file it is not."""
    ca_file, context = certificates
    async with serving(lambda _: granting(), context) as port:
        for file, believed in ((ca_file, True), ("", False), ("/does/not/exist", False)):
            options = NsqdOptions(
                auth_http_address=(f"https://127.0.0.1:{port}/auth",), tls_root_ca_file=file
            )
            with trio.fail_after(LIMIT_S):
                grant = await AuthServers(options, Random(0)).request_grant(QUESTION)
            assert (grant is not None) == believed


@pytest.mark.parametrize("method", ["get", "post"])
async def test_a_403_with_a_port_sends_us_to_https(
    method: str, certificates: tuple[str, ssl.SSLContext]
) -> None:
    """The same question goes to the same path there; a further 403 is a refusal."""
    ca_file, context = certificates
    requests = []
    answers = [granting(), http(403, b'{"https_port": 1}')]

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return answers.pop(0)

    async with serving(answer, context) as https_port:
        refusal = http(403, json.dumps({"https_port": https_port}).encode())
        async with serving(lambda _: refusal) as port:
            options = NsqdOptions(
                auth_http_address=(f"127.0.0.1:{port}",),
                auth_http_request_method=method,
                tls_root_ca_file=ca_file,
            )
            servers = AuthServers(options, Random(0))
            with trio.fail_after(LIMIT_S):
                assert await servers.request_grant(QUESTION) is not None
                assert await servers.request_grant(QUESTION) is None
    target = b"/auth?" + QUESTION.query().encode() if method == "get" else b"/auth"
    for request in requests:
        assert request.startswith(b"%b %b HTTP/1.1\r\n" % (method.upper().encode(), target))
    assert len(requests) == 2


async def test_an_auth_server_hears_of_tls_and_its_certificate(tmp_path: Path) -> None:
    """The question names who the client's certificate says it is."""
    authority = trustme.CA()
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(paths["ca"])
    issued.cert_chain_pems[0].write_to_path(paths["cert"])
    issued.private_key_pem.write_to_path(paths["key"])
    context = ssl.create_default_context(cafile=paths["ca"])
    authority.issue_cert("client.test", common_name="ann").configure_cert(context)
    requests = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return granting()

    async with serving(answer) as port:
        with trio.fail_after(LIMIT_S):
            async with open_broker(
                auth_http_address=(f"127.0.0.1:{port}",),
                tls_cert=paths["cert"],
                tls_key=paths["key"],
                tls_client_auth_policy="require-verify",
                tls_root_ca_file=paths["ca"],
            ) as nsqd:
                host, tcp_port = nsqd.tcp_address.split(":")
                plain = await trio.open_tcp_stream(host, int(tcp_port))
                wishes = {"feature_negotiation": True, "tls_v1": True}
                await plain.send_all(MAGIC_V2 + commands.identify(wishes))
                assert b'"auth_required":true' in await plain.receive_some(RECEIVE_NBYTES)
                async with trio.SSLStream(
                    plain, context, server_hostname=host, https_compatible=True
                ) as client:
                    await receive(client, frames.OK)
                    await client.send_all(commands.auth("s"))
                    await receive(client, frames.response(GRANTED))
    [request] = requests
    assert b"?common_name=ann&remote_ip=127.0.0.1&secret=s&tls=true " in request
