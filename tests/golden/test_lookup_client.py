"""The recorded talk of an nsqd with its nsqlookupd, against a real nsqd process and a stub."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from tests.golden.http_exchange import exchange_http
from tests.golden.lookup_stub import LookupStub, lookup_stub
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import HERE, Request
from tests.processes import NsqdProcess, running_nsqd, split_address

SCENARIO = HERE / "data" / "nsqd_lookupd_client.json"
# An answer must come soon; what must not come is waited for that long.
SEES_WITHIN_S = 30.0
NOTHING_MORE_S = 0.15


async def test_nsqd_talks_to_nsqlookupd_as_recorded(tmp_path: Path) -> None:
    """It connects, announces, asks, pings and reconnects just when nsqd v1.3.0 does."""
    scenario = json.loads(SCENARIO.read_text())
    async with lookup_stub() as stub, AsyncExitStack() as stack:
        nsqd: NsqdProcess | None = None
        for number, step in enumerate(scenario["steps"]):
            stub.seen.clear()
            if "start" in step:
                flags = [f"--lookupd-tcp-address={stub.tcp_address}"]
                nsqd = await stack.enter_async_context(running_nsqd(tmp_path, flags))
            elif "stop" in step:
                await stack.aclose()
            else:
                assert nsqd is not None
                await play(step, stub, nsqd)
            waits_s = step.get("wait_s", 0) + SEES_WITHIN_S
            await check(number, step, stub, waits_s)


async def play(step: dict[str, Any], stub: LookupStub, nsqd: NsqdProcess) -> None:
    """Do what the step says; waiting is done by `check`."""
    if "http" in step:
        asked = step["http"]
        body = asked.get("body", "").replace("{{lookupd_addr}}", stub.tcp_address)
        stream = await trio.open_tcp_stream(*split_address(nsqd.http_address))
        request = Request(asked["method"], asked["path"], {}, body.encode())
        answer = await exchange_http(SocketConnection(stream), request)
        assert answer.status == 200, step
    elif "stub_channels" in step:
        stub.channels = step["stub_channels"]
    elif "drop_connections" in step:
        await stub.drop_connections()
    else:
        assert "wait_s" in step, step


async def check(number: int, step: dict[str, Any], stub: LookupStub, waits_s: float) -> None:
    """Just these lines come, announcements and the question in any order."""
    expected = step["lookupd_sees"]
    with trio.move_on_after(waits_s):
        while len(stub.seen) < len(expected):
            await stub.heard.park()
    await trio.sleep(NOTHING_MORE_S)
    assert Counter(stub.seen) == Counter(expected), f"step {number}: {step}"
    connecting = [line for line in stub.seen if line.startswith(("magic", "IDENTIFY"))]
    if connecting:
        assert [line for line in stub.seen if not line.startswith("HTTP")][:2] == connecting
