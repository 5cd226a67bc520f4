"""Requests to nodes that hang, lie, die or want HTTPS: always an UpstreamError, always in time."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from admin import upstream as module
from admin.cluster.shapes import NodeStats
from admin.options import NsqadminOptions, OptionsError
from admin.upstream import Upstream, UpstreamError
from tests.admin.nodes import FakeNode, Says, fake_node
from tests.processes import free_address

OPTIONS = NsqadminOptions(http_client_request_timeout_ns=5 * 10**9)


async def stats(upstream: Upstream, address: str) -> NodeStats:
    """Ask for /stats."""
    return await upstream.get_json(f"http://{address}/stats", NodeStats)


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"no json"),
        (200, b""),
        (200, b"[]"),
        (200, b'{"topics":[{"topic_name":1}]}'),
        (200, b'{"topics":[{}]}'),
        (200, b'{"topics":[{"topic_name":"t","depth":"9"}]}'),
        (200, b'{"topics":[{"topic_name":"t","depth":1' + b"0" * 30 + b"}]}"),
        (200, b'{"topics":' + b"[" * 100_000),
        (200, b'{"version":"\xff"}'),
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000,
        b"",
    ],
)
async def test_a_node_that_lies_is_named(answer: tuple[int, bytes] | bytes) -> None:
    """Whatever comes in place of what was asked for is an error that names the node."""
    async with Upstream(OPTIONS) as upstream, fake_node(lambda asked: answer) as node:
        with pytest.raises(UpstreamError) as caught:
            await stats(upstream, node.address)
        assert caught.value.node == node.address
        assert node.address in str(caught.value)
        assert upstream.under_way == 0


async def test_a_node_that_hangs_costs_the_timeout() -> None:
    """--http-client-request-timeout is for all of a request; then the text says so."""
    options = NsqadminOptions(http_client_request_timeout_ns=10**8)
    async with Upstream(options) as upstream, fake_node(lambda asked: None) as node:
        with trio.fail_after(30), pytest.raises(UpstreamError, match=r"no answer within 0\.1 s"):
            await stats(upstream, node.address)
        assert upstream.under_way == 0


async def test_a_node_that_is_down_says_why() -> None:
    """What the operating system says of the connection, and where it should have gone."""
    address = free_address()
    async with Upstream(OPTIONS) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await stats(upstream, address)
    assert str(caught.value) == f'Get "http://{address}/stats": Connection refused'


@pytest.mark.parametrize(
    "url", ["http://[x/stats", "http://a b/", "http://:0:0/", "http://x:99999/"]
)
async def test_an_address_that_is_none(url: str) -> None:
    """Nodes may announce what they like."""
    async with Upstream(OPTIONS) as upstream:
        with pytest.raises(UpstreamError):
            await upstream.get_json(url, NodeStats)


async def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than MAX_RESPONSE_BYTES is held of an answer."""
    monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 1000)
    async with Upstream(OPTIONS) as upstream, fake_node(lambda asked: (200, b" " * 2000)) as node:
        with pytest.raises(UpstreamError, match="more than 1000 bytes"):
            await stats(upstream, node.address)


async def test_a_refusal_is_worded_as_by_the_original() -> None:
    """Status, its phrase and the answer, of which a kilobyte is shown."""
    body = b'{"message":"TOPIC_NOT_FOUND"}'
    async with Upstream(OPTIONS) as upstream, fake_node(lambda asked: (404, body)) as node:
        with pytest.raises(UpstreamError) as caught:
            await stats(upstream, node.address)
        assert str(caught.value) == 'got response 404 X "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
        assert caught.value.status == 404
        node.says = lambda asked: (500, b"x" * 100_000)
        with pytest.raises(UpstreamError) as caught:
            await stats(upstream, node.address)
        assert len(str(caught.value)) < 1100


async def test_connections_are_used_again() -> None:
    """Polling does not connect anew each time; requests say what they understand."""
    async with Upstream(OPTIONS) as upstream, fake_node(lambda asked: (200, b"{}")) as node:
        for _ in range(5):
            await stats(upstream, node.address)
        assert node.connections == 1
        assert node.asked[0].headers["accept"] == "application/vnd.nsq; version=1.0"
        assert node.asked[0].headers["accept-encoding"] == "identity"


async def test_requests_under_way_are_bounded() -> None:
    """Of 50 at once, no more than --http-client-max-requests are sent."""
    options = NsqadminOptions(http_client_max_requests=3)
    full = trio.Event()

    async with Upstream(options) as upstream, fake_node(lambda asked: (200, b"{}")) as node:

        async def wait_for_three() -> None:
            if node.under_way == 3:
                full.set()
            await full.wait()

        node.pause = wait_for_three
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(stats, upstream, node.address)
        assert (len(node.asked), node.most) == (50, 3)


async def test_a_node_that_wants_https_gets_it(tmp_path: Path) -> None:
    """A 403 with https_port is asked again there, and from then on at once; until that fails."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    secured = FakeNode(lambda asked: (200, b'{"version":"secured"}'))
    options = NsqadminOptions(http_client_tls_root_ca_file=str(tmp_path / "ca.pem"))

    async with trio.open_nursery() as nursery, Upstream(options) as upstream:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(
            trio.serve_listeners, secured.serve, [trio.SSLListener(listener, context)]
        )
        refusal = json.dumps({"message": "TLS_REQUIRED", "https_port": port}).encode()
        async with fake_node(lambda asked: (403, refusal)) as node:
            assert (await stats(upstream, node.address)).version == "secured"
            assert (await stats(upstream, node.address)).version == "secured"
            assert (len(node.asked), len(secured.asked)) == (1, 2)
            secured.says = lambda asked: b"junk"
            node.says = lambda asked: (200, b'{"version":"open"}')
            for _ in range(2):
                assert (await stats(upstream, node.address)).version == "open"
            assert (len(node.asked), len(secured.asked)) == (3, 3)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def node_with_https(tmp_path: Path) -> AsyncIterator[tuple[Upstream, FakeNode, FakeNode]]:
    """An `Upstream`, a node's HTTP port and its HTTPS port, which the first one points at."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    secured = FakeNode(lambda asked: (200, b'{"version":"secured"}'))
    options = NsqadminOptions(
        http_client_tls_root_ca_file=str(tmp_path / "ca.pem"),
        http_client_request_timeout_ns=5 * 10**9,
    )
    async with trio.open_nursery() as nursery, Upstream(options) as upstream:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(
            trio.serve_listeners, secured.serve, [trio.SSLListener(listener, context)]
        )
        refusal = json.dumps({"message": "TLS_REQUIRED", "https_port": port}).encode()
        async with fake_node(lambda asked: (403, refusal)) as node:
            yield upstream, node, secured
        nursery.cancel_scope.cancel()


async def test_a_post_that_may_have_arrived_is_not_sent_again(tmp_path: Path) -> None:
    """A node takes the POST and breaks the connection: it got it once, and the error says so."""
    async with node_with_https(tmp_path) as (upstream, node, secured):
        await upstream.post(f"http://{node.address}/pub?topic=t", b"first")
        secured.says = lambda asked: b""  # the request is taken, and the connection ends
        with pytest.raises(UpstreamError, match="not known whether the node did it") as caught:
            await upstream.post(f"http://{node.address}/pub?topic=t", b"second")
        assert caught.value.may_have_happened
        assert [asked.body for asked in secured.asked] == [b"first", b"second"]
        assert [asked.body for asked in node.asked] == [b"first"]  # the refusal, before HTTPS


async def test_a_post_that_was_answered_is_not_sent_again(tmp_path: Path) -> None:
    """An answer that is an error is an answer: the node is not asked a second time by HTTP."""
    async with node_with_https(tmp_path) as (upstream, node, secured):
        await upstream.post(f"http://{node.address}/pub?topic=t", b"first")
        secured.says = lambda asked: (500, b"x")
        with pytest.raises(UpstreamError, match="got response 500") as caught:
            await upstream.post(f"http://{node.address}/pub?topic=t", b"second")
        assert not caught.value.may_have_happened
        assert (len(node.asked), len(secured.asked)) == (1, 2)


async def test_a_post_without_a_connection_goes_the_other_way(tmp_path: Path) -> None:
    """A node restarted without TLS takes the POST by HTTP: nothing of it was sent before."""
    async with node_with_https(tmp_path) as (upstream, node, secured):
        await upstream.post(f"http://{node.address}/pub?topic=t", b"first")
        upstream._secured[node.address] = f"https://{free_address()}"
        node.says = lambda asked: (200, b"OK")
        await upstream.post(f"http://{node.address}/pub?topic=t", b"second")
        assert [asked.body for asked in node.asked] == [b"first", b"second"]
        assert [asked.body for asked in secured.asked] == [b"first"]


@pytest.mark.parametrize("says", [lambda asked: b"", lambda asked: None])
async def test_only_a_post_is_of_unknown_outcome(says: Says) -> None:
    """Without an answer the outcome of a POST that went out is open; nothing else is."""
    options = NsqadminOptions(http_client_request_timeout_ns=10**8)
    async with Upstream(options) as upstream, fake_node(says) as node:
        with pytest.raises(UpstreamError) as caught:
            await upstream.get_bytes(f"http://{node.address}/stats")
        assert not caught.value.may_have_happened
        with pytest.raises(UpstreamError) as caught:
            await upstream.post(f"http://{node.address}/topic/pause?topic=t")
        assert caught.value.may_have_happened
        with pytest.raises(UpstreamError) as caught:
            await upstream.post(f"http://{free_address()}/topic/pause?topic=t")
        assert not caught.value.may_have_happened


@pytest.mark.parametrize("port", [b"0", b'"x"', b"true", b"99999", b"null", b"-1"])
async def test_an_https_port_that_is_none_is_a_refusal(port: bytes) -> None:
    """Then the 403 is the answer."""
    body = b'{"https_port":' + port + b"}"
    async with Upstream(OPTIONS) as upstream, fake_node(lambda asked: (403, body)) as node:
        with pytest.raises(UpstreamError, match="got response 403"):
            await stats(upstream, node.address)


def test_bad_tls_files_are_a_start_error(tmp_path: Path) -> None:
    """A file that is none of PEM."""
    (tmp_path / "x").write_text("x")
    with pytest.raises(OptionsError, match="TLS config"):
        Upstream(NsqadminOptions(http_client_tls_root_ca_file=str(tmp_path / "x")))
