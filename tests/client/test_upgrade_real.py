"""The client library against a real nsqd with TLS, compression and AUTH, over sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.secured import SECRET, Papers, auth_server, make_papers
from trionsq.client import (
    AuthError,
    AuthRequiredError,
    Config,
    Connection,
    Consumer,
    Producer,
    UpgradeError,
)
from trionsq.testing import open_broker
from trionsq.wire import commands

COUNT = 5000
LIMIT_S = 60


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates."""
    return make_papers(tmp_path_factory.mktemp("papers"))


@pytest.mark.parametrize("auth", [False, True])
@pytest.mark.parametrize("compression", ["", "deflate", "snappy"])
@pytest.mark.parametrize("tls", [False, True])
async def test_every_combination(tls: bool, compression: str, auth: bool, papers: Papers) -> None:
    """Each message arrives once through all layers, and nsqd's stats show the layers."""
    config = Config(max_in_flight=1000, auth_secret=SECRET if auth else "")
    if tls:
        config = replace(config, tls_v1=True, tls_root_ca_file=papers.ca, tls_cert=papers.client)
    if compression:
        config = config.parse(compression)
    # From tiny ones to some that take several reads.
    bodies = [b"%d " % number * (number % 300) + b"%d" % number for number in range(COUNT)]
    bodies += [b"%d" % number * 150_000 for number in range(3)]
    found: list[bytes] = []
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"tls_client_auth_policy": "require-verify"} if tls else {}
        if auth:
            server = await stack.enter_async_context(auth_server())
            options["auth_http_address"] = (server.address,)
        nsqd = await stack.enter_async_context(open_broker(**papers.nsqd_options, **options))
        stack.enter_context(trio.fail_after(LIMIT_S))
        addresses = [nsqd.tcp_address]
        async with (
            Producer(nsqd.tcp_address, config=config) as producer,
            Consumer("t", "c", nsqd_tcp_addresses=addresses, config=config) as consumer,
        ):
            (client,) = nsqd.broker.topic("t").channel("c").clients
            assert (client.tls is not None) is tls
            for first in range(0, len(bodies), 100):
                await producer.publish_many("t", bodies[first : first + 100])
            while len(found) < len(bodies):
                batch = await consumer.next_batch()
                found += batch.bodies
                batch.finish()
    assert sorted(found) == sorted(bodies)


async def test_who_is_not_trusted(papers: Papers) -> None:
    """Neither side accepts an unknown certificate; the error says whose."""
    options = {"tls_client_auth_policy": "require-verify"}
    async with open_broker(**papers.nsqd_options, **options) as nsqd:
        suspicious = Config(tls_v1=True, tls_root_ca_file=papers.stranger)
        unknown = Config(tls_v1=True, tls_root_ca_file=papers.ca)
        for config, reason in (
            (suspicious, f"^{nsqd.tcp_address}: no TLS: its certificate is not accepted: "),
            (unknown, f"^{nsqd.tcp_address}: no TLS: .*certificate"),
        ):
            async with Producer(nsqd.tcp_address, config=config) as producer:
                with pytest.raises(UpgradeError, match=reason):
                    await producer.publish("t", b"x")
        assert not nsqd.broker.topics


async def test_an_nsqd_without_tls() -> None:
    """A client with tls_v1 does not connect to it."""
    async with open_broker() as nsqd:
        config = Config(tls_v1=True)
        async with Producer(nsqd.tcp_address, config=config) as producer:
            with pytest.raises(UpgradeError, match="does not offer TLS"):
                await producer.publish("t", b"x")
        assert not nsqd.broker.topics


async def test_secrets() -> None:
    """A wrong secret and a missing one are different errors."""
    async with (
        auth_server() as server,
        open_broker(auth_http_address=(server.address,)) as nsqd,
    ):
        for secret, error, reason in (
            ("", AuthRequiredError, "Auth Required"),
            ("wrong", AuthError, "Error authenticating E_UNAUTHORIZED"),
        ):
            config = Config(auth_secret=secret)
            async with Producer(nsqd.tcp_address, config=config) as producer:
                with pytest.raises(error, match=reason):
                    await producer.publish("t", b"x")
    assert [query["secret"] for query in server.asked] == [["wrong"]]


@pytest.mark.parametrize("compression", ["", "deflate", "snappy"])
@pytest.mark.parametrize("tls", [False, True])
async def test_the_end_loses_no_answer(tls: bool, compression: str, papers: Papers) -> None:
    """Answers sent before the end reach nsqd, whatever layers the connection has."""
    config = Config(tls_v1=tls, tls_root_ca_file=papers.ca)
    config = config.parse(*[compression] if compression else [])
    async with open_broker(**papers.nsqd_options) as nsqd, trio.open_nursery() as nursery:
        connection = await Connection.open(nsqd.tcp_address, config)
        await nursery.start(connection.run)
        body = b"x" * 5000
        replies = [connection.request(commands.publish("t", body)) for _ in range(300)]
        connection.end()
        with trio.fail_after(LIMIT_S):
            await connection.ended.wait()
            assert [await reply.wait() for reply in replies] == [b"OK"] * 300
        assert connection.failure is None
