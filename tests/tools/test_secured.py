"""The tools, as processes, with an nsqd that requires TLS, a client certificate and a secret."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.secured import SECRET, Papers, auth_server, make_papers
from tests.soak import smoke
from tests.tools.support import LIMIT_S, run, running, until
from trionsq.testing import OpenBroker, open_broker

LINES = [b"line %d" % number for number in range(2000)]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates."""
    return make_papers(tmp_path_factory.mktemp("papers"))


@asynccontextmanager
async def locked_nsqd(papers: Papers) -> AsyncIterator[OpenBroker]:
    """An nsqd that requires a certificate and the secret."""
    async with (
        auth_server() as server,
        open_broker(
            **papers.nsqd_options,
            tls_client_auth_policy="require-verify",
            auth_http_address=(server.address,),
        ) as nsqd,
    ):
        yield nsqd


def opts(flag: str, papers: Papers, *more: str) -> list[str]:
    """The client options for that nsqd."""
    options = ("tls_v1", f"tls_root_ca_file,{papers.ca}", f"tls-cert,{papers.client}")
    secret = f"auth_secret,{SECRET}"
    return [f"--{flag}={option}" for option in (*options, secret, *more)]


@pytest.mark.parametrize("compression", smoke({"snappy": "snappy", "deflate": "deflate"}, "snappy"))
async def test_lines_through_two_locked_nsqds(
    compression: str, papers: Papers, tmp_path: Path
) -> None:
    """to_nsq to one, nsq_to_nsq to the other, nsq_tail and nsq_to_file from there."""
    producing = opts("producer-opt", papers, compression)
    consuming = opts("consumer-opt", papers, compression)
    count = ("-n", str(len(LINES)))
    async with locked_nsqd(papers) as one, locked_nsqd(papers) as two:
        to_one, to_two = (f"--nsqd-tcp-address={nsqd.tcp_address}" for nsqd in (one, two))
        ended = await run("to_nsq", "--topic=t", to_one, *producing, stdin=b"\n".join(LINES))
        assert (ended.code, ended.err) == (0, "")
        destination = f"--destination-nsqd-tcp-address={two.tcp_address}"
        flags = ("--topic=t", "--channel=c", to_one, destination, *consuming, *producing)
        async with running("nsq_to_nsq", *flags) as copying:
            tailing = ("--topic=t", "--channel=tail", to_two, *count, *consuming)
            tailed = await run("nsq_tail", *tailing)
            assert (tailed.code, sorted(tailed.out.splitlines())) == (0, sorted(LINES))
            copying.terminate()
            with trio.fail_after(LIMIT_S):
                assert await copying.wait() == 0
        filing = ("--topic=t", "--channel=tail", to_two, f"--output-dir={tmp_path}", *consuming)
        # The channel has nothing left: it is the connection that is asked about.
        async with running("nsq_to_file", *filing) as filer:
            channel = two.broker.topic("t").channel("tail")
            await until(lambda: bool(channel.clients))
            filer.terminate()
            with trio.fail_after(LIMIT_S):
                assert await filer.wait() == 0


@asynccontextmanager
async def https_nsqlookupd(
    papers: Papers, nsqd: OpenBroker, asked: list[bytes]
) -> AsyncIterator[str]:
    """The URL of an nsqlookupd that knows topic t and the nsqd; it records requests."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(papers.cert, papers.key)
    host, port = nsqd.tcp_address.split(":")
    producers = [{"broadcast_address": host, "tcp_port": int(port)}]
    body = json.dumps({"topics": ["t"], "producers": producers, "channels": []}).encode()
    kind = b"X-NSQ-Content-Type: nsq; version=1.0"
    answer = b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body)

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        request = b""
        try:
            while b"\r\n\r\n" not in request:
                request += await stream.receive_some() or b"\r\n\r\n"
            asked.append(request)
            await stream.send_all(answer)
            await stream.aclose()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        secured = trio.SSLListener(listener, context, https_compatible=True)
        nursery.start_soon(trio.serve_listeners, serve, [secured])
        yield f"https://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


async def test_an_nsqlookupd_over_https(papers: Papers, tmp_path: Path) -> None:
    """The TLS options for nsqd apply, also to find topics; both requests have the secret."""
    consuming = opts("consumer-opt", papers)
    asked: list[bytes] = []
    async with (
        locked_nsqd(papers) as nsqd,
        https_nsqlookupd(papers, nsqd, asked) as url,
    ):
        flags = (f"--lookupd-http-address={url}", f"--output-dir={tmp_path}", *consuming)
        async with running(
            "nsq_to_file", "--topic-pattern=t", "--topic-refresh=50ms", *flags
        ) as filer:
            await until(lambda: any(topic.channels for topic in nsqd.broker.topics.values()))
            filer.terminate()
            with trio.fail_after(LIMIT_S):
                assert await filer.wait() == 0
    topics, lookup = (
        next(request for request in asked if request.startswith(b"GET " + path))
        for path in (b"/topics", b"/lookup?topic=t")
    )
    token = f"authorization: Bearer {SECRET}".encode().lower()
    assert token in topics.lower()
    assert token in lookup.lower()


TOOLS = {
    "to_nsq": ("producer-opt", "--topic=t"),
    "nsq_tail": ("consumer-opt", "--topic=t"),
}


@pytest.mark.parametrize("tool", smoke({tool: tool for tool in TOOLS}, "nsq_tail"))
async def test_who_is_not_let_in(tool: str, papers: Papers) -> None:
    """It exits with 1 and one line with the address and the reason, without the secret."""
    flag, *rest = TOOLS[tool]
    wrong = f"--{flag}=auth_secret,wrong-secret"
    cases = [
        (opts(flag, papers)[:-1], "Auth Required"),
        ([*opts(flag, papers), wrong], "Error authenticating E_UNAUTHORIZED"),
        ([*opts(flag, papers), f"--{flag}=tls_root_ca_file,{papers.stranger}"], "not accepted"),
        ([f"--{flag}=tls_v1", f"--{flag}=tls_insecure_skip_verify"], "certificate required"),
    ]
    async with locked_nsqd(papers) as nsqd:
        for flags, reason in cases:
            address = f"--nsqd-tcp-address={nsqd.tcp_address}"
            ended = await run(tool, address, *rest, *flags, stdin=b"x\n")
            last = ended.err.splitlines()[-1]
            assert ended.code == 1
            assert nsqd.tcp_address in last
            assert reason in last
            assert "wrong-secret" not in ended.err
        assert not nsqd.broker.topics


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_bad_file(tool: str, tmp_path: Path) -> None:
    """A bad file is a bad flag: the usage, exit code 2, before any connection."""
    flag, *rest = TOOLS[tool]
    bad = f"--{flag}=tls_root_ca_file,{tmp_path}/none.pem"
    ended = await run(tool, "--nsqd-tcp-address=127.0.0.1:1", *rest, f"--{flag}=tls_v1", bad)
    assert ended.code == 2
    first = ended.err.splitlines()[0]
    assert first.startswith(f"invalid value for flag -{flag}: tls_root_ca_file: ")
    assert "none.pem" in first
