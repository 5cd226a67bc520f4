"""The watch over a real nsqd."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from admin.daemon import running_nsqadmin
from admin.options import NsqadminOptions
from admin.watch.poller import Poller
from admin.watch.snapshot import Snapshot
from tests.processes import free_address, other_binary, running_nsqd, running_nsqlookupd
from tests.soak import in_short_soak
from trionsq.durations import SECOND_NS
from trionsq.httpget import post

LIMIT_S = 60.0


async def seen(poller: Poller, wanted: Callable[[Snapshot], object]) -> Snapshot:
    """The first snapshot of which ``wanted`` is true."""
    after = poller.snapshot.sequence - 1 if poller.snapshot is not None else 0
    while not wanted(found := await poller.changed(after)):
        after = found.sequence
    return found


def options(**more: tuple[str, ...]) -> NsqadminOptions:
    """With the shortest interval."""
    return NsqadminOptions(**more, http_address="127.0.0.1:0", poll_interval_ns=SECOND_NS)  # type: ignore[arg-type]


async def test_depths_and_ages_are_those_of_nsqd(tmp_path: Path) -> None:
    """What nsqd says at /stats, and, if it is ours, at /metrics."""
    with trio.fail_after(LIMIT_S):
        async with running_nsqd(tmp_path) as nsqd:
            base = f"http://{nsqd.http_address}"
            await post(f"{base}/topic/create?topic=t", b"")
            await post(f"{base}/channel/create?topic=t&channel=c", b"")
            for _ in range(3):
                await post(f"{base}/pub?topic=t", b"x")
            given = options(nsqd_http_address=(nsqd.http_address,))
            async with running_nsqadmin(given) as dashboard:
                poller = dashboard.poller

                def has_channel(now: Snapshot) -> bool:
                    # On a busy machine a poll may end before nsqd answers.
                    return ("t", "c") in now.channels and now.nodes[nsqd.http_address].up

                with poller.watch():
                    found = await seen(poller, has_channel)
                    assert found.total.depth == found.channels["t", "c"].depth == 3
                    assert [each.kind for each in found.problems] == ["channel-without-consumer"]
                    found = await seen(poller, lambda now: now.total.rate_in is not None)
                    if other_binary() is None:
                        found = await seen(
                            poller,
                            lambda now: has_channel(now) and now.channels["t", "c"].oldest_age_s,
                        )
                        assert 0 < (found.topics["t"].oldest_age_s or 0) < LIMIT_S


async def test_a_node_that_dies_is_missed(tmp_path: Path) -> None:
    """It keeps a row that says so, though nsqlookupd has forgotten it at once."""
    with trio.fail_after(LIMIT_S):
        async with (
            running_nsqlookupd() as lookupd,
            running_nsqadmin(options(lookupd_http_address=(lookupd.http_address,))) as dashboard,
        ):
            poller = dashboard.poller
            with poller.watch():
                flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
                async with running_nsqd(tmp_path, flags) as nsqd:
                    name = nsqd.http_address
                    await seen(poller, lambda now: name in now.nodes and now.nodes[name].up)
                found = await seen(poller, lambda now: not now.nodes[name].up)
                assert found.nodes[name].error
                assert found.problems[0].kind == "node-silent"
                assert found.total.nodes == 0


@in_short_soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_only_a_restart_that_lost_messages_is_a_warning(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A stop keeps what waits and what is deferred; kill -9 loses what is in memory."""
    name = free_address()
    flags = [f"--tcp-address={free_address()}", f"--http-address={name}"]
    with trio.fail_after(LIMIT_S):
        async with running_nsqadmin(options(nsqd_http_address=(name,))) as dashboard:
            poller = dashboard.poller
            with poller.watch():
                async with running_nsqd(tmp_path, flags) as nsqd:
                    await post(f"http://{name}/topic/create?topic=t", b"")
                    await post(f"http://{name}/channel/create?topic=t&channel=c", b"")
                    for delay_ms in (0, 0, 600_000):
                        await post(f"http://{name}/pub?topic=t&defer={delay_ms}", b"x")

                    def has_all(now: Snapshot) -> bool:
                        row = now.channels.get(("t", "c"))
                        return row is not None and row.depth + row.deferred == 3

                    await seen(poller, has_all)
                    os.kill(nsqd.process.pid, number)
                    await nsqd.process.wait()
                async with running_nsqd(tmp_path, flags):
                    found = await seen(poller, lambda now: name in now.restarts)
    assert found.restarts[name].held == 3
    assert found.restarts[name].missing == (0 if number is signal.SIGTERM else 3)
