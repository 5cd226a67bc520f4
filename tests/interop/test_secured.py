"""Our client library and the original's nsqd: TLS, compression, AUTH, client certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.interop.original import binary, needs_original
from tests.processes import OTHER_BINARY_VARIABLE, running_nsqd
from tests.secured import SECRET, auth_server, make_papers
from trionsq.client import AuthError, Config, Consumer, Producer, UpgradeError

pytestmark = needs_original

COUNT = 20_000
LIMIT_S = 60


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
async def test_messages_through_an_original_nsqd(
    tls: bool, compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published and consumed, each once."""
    papers = make_papers(tmp_path)
    monkeypatch.setenv(OTHER_BINARY_VARIABLE, binary("nsqd"))
    config = Config(max_in_flight=2500, auth_secret=SECRET)
    config = config.parse(*[compression] if compression else [])
    flags = [f"--mem-queue-size={COUNT}"]
    if tls:
        config = config.parse(
            "tls_v1", f"tls_root_ca_file,{papers.ca}", f"tls_cert,{papers.client}"
        )
        flags += [*papers.nsqd_flags, "--tls-client-auth-policy=require-verify"]
    bodies = [b"%d " % number * (number % 100) + b"%d" % number for number in range(COUNT)]
    found: list[bytes] = []
    data_path = tmp_path / "data"
    data_path.mkdir()
    async with auth_server() as server:
        flags.append(f"--auth-http-address={server.address}")
        async with running_nsqd(data_path, flags) as nsqd:
            address = nsqd.tcp_address
            with trio.fail_after(LIMIT_S):
                async with Producer(address, config=config) as producer:
                    for first in range(0, COUNT, 200):
                        await producer.publish_many("t", bodies[first : first + 200])
                async with Consumer(
                    "t", "c", nsqd_tcp_addresses=[address], config=config
                ) as consumer:
                    while len(found) < COUNT:
                        batch = await consumer.next_batch()
                        found += batch.bodies
                        batch.finish()
    assert sorted(found) == sorted(bodies)


async def test_an_original_nsqd_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No certificate of ours, a certificate of a stranger, a wrong secret: each is told."""
    papers = make_papers(tmp_path)
    monkeypatch.setenv(OTHER_BINARY_VARIABLE, binary("nsqd"))
    flags = [*papers.nsqd_flags, "--tls-client-auth-policy=require-verify"]
    ours = Config(tls_v1=True, tls_root_ca_file=papers.ca)
    data_path = tmp_path / "data"
    data_path.mkdir()
    async with auth_server() as server:
        flags.append(f"--auth-http-address={server.address}")
        async with running_nsqd(data_path, flags) as nsqd:
            for config, error, reason in (
                (ours, UpgradeError, "bad certificate|certificate required"),
                (ours.parse(f"tls_root_ca_file,{papers.stranger}"), UpgradeError, "not accepted"),
                (
                    ours.parse(f"tls_cert,{papers.client}", "auth_secret,wrong"),
                    AuthError,
                    "Error authenticating E_UNAUTHORIZED",
                ),
            ):
                async with Producer(nsqd.tcp_address, config=config) as producer:
                    with pytest.raises(error, match=reason):
                        await producer.publish("t", b"x")
