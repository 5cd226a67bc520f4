"""Our nsqadmin in front of the original's nsqlookupd and nsqd, beside the original's nsqadmin."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.golden.http_exchange import exchange_http
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import Request
from tests.interop.original import binary, needs_original, original_nsqlookupd, until
from tests.processes import (
    OTHER_ADMIN_VARIABLE,
    OTHER_BINARY_VARIABLE,
    DaemonProcess,
    running_nsqadmin,
    running_nsqd,
    split_address,
)

pytestmark = needs_original


@dataclass(frozen=True, slots=True)
class Both:
    """The original's nsqadmin and ours, in front of the same two nsqds of the original."""

    ours: DaemonProcess
    theirs: DaemonProcess
    nsqds: tuple[DaemonProcess, DaemonProcess]


async def call(daemon: DaemonProcess, method: str, path: str, body: str = "") -> Any:
    """Status and JSON of an answer."""
    async with await trio.open_tcp_stream(*split_address(daemon.http_address)) as stream:
        request = Request(method, path, {}, body.encode())
        answer = await exchange_http(SocketConnection(stream), request)
    return answer.status, json.loads(answer.body) if answer.body[:1] in (b"{", b"[") else None


@asynccontextmanager
async def both(
    folder: Path, monkeypatch: pytest.MonkeyPatch, direct: bool = False
) -> AsyncIterator[Both]:
    """The first nsqd has topic ``t`` with two channels and messages, the second one ``u``."""
    monkeypatch.setenv(OTHER_BINARY_VARIABLE, binary("nsqd"))
    folders = [folder / "first", folder / "second"]
    for each in folders:
        await trio.Path(each).mkdir()
    async with original_nsqlookupd() as lookupd:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        flags.append("--e2e-processing-latency-percentile=0.99")
        async with (
            running_nsqd(folders[0], flags) as first,
            running_nsqd(folders[1], flags) as second,
        ):
            seen = [f"--lookupd-http-address={lookupd.http_address}"]
            if direct:
                seen = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in (first, second)]
            async with running_nsqadmin(seen) as ours:
                monkeypatch.setenv(OTHER_ADMIN_VARIABLE, binary("nsqadmin"))
                async with running_nsqadmin(seen) as theirs:
                    await _fill(first, second)
                    await until(lambda: lookupd.channels("u"), ["d"])
                    await until(lambda: lookupd.channels("t"), ["c", "e#ephemeral"])
                    yield Both(ours, theirs, (first, second))


async def _fill(first: DaemonProcess, second: DaemonProcess) -> None:
    for path, body in (
        ("/pub?topic=t", "hello"),
        ("/pub?topic=t", "again"),
        ("/channel/create?topic=t&channel=c", ""),
        ("/channel/create?topic=t&channel=e%23ephemeral", ""),
        ("/channel/pause?topic=t&channel=c", ""),
    ):
        assert (await call(first, "POST", path, body))[0] == 200
    for path in ("/topic/create?topic=u", "/channel/create?topic=u&channel=d"):
        assert (await call(second, "POST", path))[0] == 200


def same_order(value: Any) -> Any:
    """Nodes have one host name here, so their order is left to chance."""
    if isinstance(value, dict):
        return {key: same_order(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((same_order(each) for each in value), key=json.dumps)
    return value


@pytest.mark.parametrize("direct", [False, True])
async def test_what_is_shown_is_the_same(
    direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key by key, with nsqlookupd and without."""
    async with both(tmp_path, monkeypatch, direct) as admins:
        node = admins.nsqds[0].http_address
        for path in (
            "/api/topics",
            "/api/topics?inactive=true",
            "/api/topics/t",
            "/api/topics/u",
            "/api/topics/none",
            "/api/topics/t/c",
            "/api/topics/t/e%23ephemeral",
            "/api/topics/t/none",
            "/api/nodes",
            f"/api/nodes/{node}",
            "/api/nodes/1.2.3.4:5",
            "/api/counter",
        ):
            ours = await call(admins.ours, "GET", path)
            theirs = await call(admins.theirs, "GET", path)
            assert same_order(ours) == same_order(theirs), path
            assert json.dumps(list(ours[1])) == json.dumps(list(theirs[1])), path


async def test_what_is_done_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the original's nsqds and nsqlookupd, as its own nsqadmin sees it."""
    async with both(tmp_path, monkeypatch) as admins:

        async def seen(path: str, *keys: str) -> Any:
            _, answer = await call(admins.theirs, "GET", path)
            return [answer.get(key) for key in keys]

        async def do(method: str, path: str, body: object = None) -> None:
            said = await call(admins.ours, method, path, json.dumps(body) if body else "")
            assert said == (200, {"message": ""}), path

        await do("POST", "/api/topics/t", {"action": "pause"})
        assert await seen("/api/topics/t", "paused") == [True]
        await do("POST", "/api/topics/t/c", {"action": "unpause"})
        await until(lambda: seen("/api/topics/t/c", "paused", "depth"), [False, 2])
        await do("POST", "/api/topics/t/c", {"action": "empty"})
        assert await seen("/api/topics/t/c", "depth") == [0]
        await do("POST", "/api/topics", {"topic": "new", "channel": "made"})
        [inactive] = await seen("/api/topics?inactive=true", "topics")
        assert inactive == {"new": ["made"]}
        await do("DELETE", "/api/topics/t/c")
        await do("DELETE", f"/api/nodes/{admins.nsqds[1].http_address}", {"topic": "u"})
        await do("DELETE", "/api/topics/new")
        await until(lambda: seen("/api/topics", "topics"), [["t", "u"]])
        [channels] = await seen("/api/topics/t", "channels")
        assert [each["channel_name"] for each in channels] == ["e#ephemeral"]
