"""Our nsqd in a cluster of the original's programs: nsqlookupd and another nsqd."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.golden.http_exchange import exchange_http
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import Request
from tests.interop.original import (
    OriginalLookupd,
    binary,
    needs_original,
    original_nsqlookupd,
    request,
    until,
)
from tests.processes import (
    OTHER_BINARY_VARIABLE,
    NsqdProcess,
    free_address,
    running_nsqd,
    split_address,
)

pytestmark = needs_original

# Commands closer to each other than this may fail together.
RECONNECT_S = 1.0


async def post(nsqd: NsqdProcess, path: str, body: bytes = b"", method: str = "POST") -> None:
    """A request that must go well."""
    stream = await trio.open_tcp_stream(*split_address(nsqd.http_address))
    answer = await exchange_http(SocketConnection(stream), Request(method, path, {}, body))
    assert answer.status == 200, answer


def port_of(nsqd: NsqdProcess) -> int:
    """Under which nsqlookupd tells of it."""
    return split_address(nsqd.tcp_address)[1]


async def depths(nsqd: NsqdProcess, topic: str) -> dict[str, int]:
    """Of its channels."""
    stats = await request(f"http://{nsqd.http_address}/stats?format=json&topic={topic}")
    [found] = stats["topics"]
    return {channel["channel_name"]: channel["depth"] for channel in found["channels"]}


async def test_topics_and_channels_are_known_to_the_original(tmp_path: Path) -> None:
    """From their creation to their deletion, and no longer than the connection."""
    async with original_nsqlookupd() as lookupd:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        async with running_nsqd(tmp_path, flags) as nsqd:
            port = port_of(nsqd)
            await post(nsqd, "/topic/create?topic=t")
            await post(nsqd, "/channel/create?topic=t&channel=c")
            await until(lambda: lookupd.producers("t"), [port])
            await until(lambda: lookupd.channels("t"), ["c"])
            await post(nsqd, "/topic/create?topic=u")
            await until(lambda: lookupd.producers("u"), [port])
            await post(nsqd, "/topic/delete?topic=u")
            await until(lambda: lookupd.producers("u"), [])
            await post(nsqd, "/config/nsqlookupd_tcp_addresses", b"[]", "PUT")
            await until(lambda: lookupd.producers("t"), [])
            addresses = f'["{lookupd.tcp_address}"]'.encode()
            await post(nsqd, "/config/nsqlookupd_tcp_addresses", addresses, "PUT")
            await until(lambda: lookupd.producers("t"), [port])
        await until(lambda: lookupd.producers("t"), [])


async def test_a_new_topic_gets_the_channels_of_an_original_nsqd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the other way round."""
    async with original_nsqlookupd() as lookupd:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        paths = [tmp_path / "ours", tmp_path / "theirs"]
        for path in paths:
            path.mkdir()
        async with running_nsqd(paths[0], flags) as ours:
            monkeypatch.setenv(OTHER_BINARY_VARIABLE, binary("nsqd"))
            async with running_nsqd(paths[1], flags) as theirs:
                await check_that_channels_are_made(lookupd, theirs, ours, "t")
                await check_that_channels_are_made(lookupd, ours, theirs, "u")


async def check_that_channels_are_made(
    lookupd: OriginalLookupd, first: NsqdProcess, second: NsqdProcess, topic: str
) -> None:
    """The first nsqd has the topic and a channel; the second one finds them out."""
    await post(first, f"/topic/create?topic={topic}")
    await post(first, f"/channel/create?topic={topic}&channel=c")
    await until(lambda: lookupd.channels(topic), ["c"])
    await post(second, f"/pub?topic={topic}", b"x")
    await until(lambda: depths(second, topic), {"c": 1})
    await until(lambda: lookupd.producers(topic), sorted([port_of(first), port_of(second)]))


async def test_a_restarted_nsqlookupd_is_told_everything(tmp_path: Path) -> None:
    """As soon as there is something to announce; also one that came up after nsqd."""
    tcp_address, http_address = free_address(), free_address()
    flags = [f"--lookupd-tcp-address={tcp_address}"]
    async with running_nsqd(tmp_path, flags) as nsqd:
        port = port_of(nsqd)
        async with original_nsqlookupd(tcp_address, http_address) as lookupd:
            await post(nsqd, "/topic/create?topic=t")
            await until(lambda: lookupd.producers("t"), [port])
        async with original_nsqlookupd(tcp_address, http_address) as lookupd:
            await post(nsqd, "/topic/create?topic=finds_out")
            await trio.sleep(RECONNECT_S)
            await post(nsqd, "/topic/create?topic=connects")
            await until(lambda: lookupd.producers("t"), [port])
            await until(lambda: lookupd.producers("finds_out"), [port])
            await until(lambda: lookupd.producers("connects"), [port])
