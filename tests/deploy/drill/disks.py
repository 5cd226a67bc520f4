"""Drills with a full disk of an nsqd: see `tests.deploy.small_disk`."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Final

import trio

from tests.deploy.cluster import Cluster
from tests.deploy.drill.harness import Drill, Site
from tests.deploy.small_disk import SmallDisk, small_disk

__all__ = ["DRILLS"]

_SIZE_NBYTES: Final = 512 * 1024
_POLL_S: Final = 0.1
_REFUSALS: Final = ("ProtocolError E_PUB_FAILED", "ProtocolError E_MPUB_FAILED")
_ELSEWHERE: Final = 200


async def full(site: Site) -> None:
    """By messages that nobody takes, until consumers do; then by another program, which ends."""
    node = site.nsqds[0]
    async with site.fault(node):
        async with site.load.paused():
            await _refused(site, node)
        await _ready(site, node)
    await site.flow()
    disk = SmallDisk(site.cluster.mounted(node))
    async with site.fault(node), site.load.paused():
        disk.fill()
        await _refused(site, node)
        disk.clear()
        await _ready(site, node)
    await site.flow()


async def killed(site: Site) -> None:
    """SIGKILL while not a byte is left; it starts without one, too, and consumers free the disk."""
    node = site.nsqds[0]
    await site.load.pause()
    await _refused(site, node)
    SmallDisk(site.cluster.mounted(node)).fill()
    async with site.fault(node):
        await site.kill(node)
        site.load.resume()
        await site.cluster.start(node)
    await site.flow()


async def _refused(site: Site, node: str) -> None:
    """Publish to it until it refuses: it says why, and the others take what it does not."""
    before = _refusals(site)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.load.publish_to, node)
        await site.until(lambda: _refusals(site) > before)
        # A batch is refused while there still is room for one message, and with that all is well.
        reason = await _answer(site, node, "/ready", 503)
        await _answer(site, node, "/ping", 500)
        await _answer(site, node, "/live", 200)
        nursery.cancel_scope.cancel()
    site.remarks.append(f"not ready: {json.loads(reason)['reason'].split('/')[-1]}")
    others = [name for name in site.nsqds if name != node]
    taken = site.history.acknowledged_by.copy()
    await site.until(
        lambda: all(
            site.history.acknowledged_by[name] >= taken[name] + _ELSEWHERE for name in others
        )
    )


async def _answer(site: Site, node: str, path: str, status: int) -> bytes:
    """Ask until the status is this; the answer's body."""
    while True:
        answer = await site.cluster.get(node, 4151, path)
        if answer.status == status:
            return answer.body
        await trio.sleep(_POLL_S)


def _refusals(site: Site) -> int:
    return sum(site.history.failures[name] for name in _REFUSALS)


async def _ready(site: Site, node: str) -> None:
    """Wait until the node's health check passes."""
    while not await site.cluster.is_ready(node):  # noqa: ASYNC110 - nothing tells
        await trio.sleep(_POLL_S)


def _small(made: Cluster) -> AbstractContextManager[SmallDisk]:
    return small_disk(made, made.nsqds[0], _SIZE_NBYTES)


DRILLS: Final = (
    Drill(
        "full-disk",
        full,
        "the disk of an nsqd is full: of messages, and of another program's files",
        flags=("--mem-queue-size=100",),
        prepared=_small,
    ),
    Drill(
        "full-disk-killed",
        killed,
        "SIGKILL of an nsqd with a full disk, --mem-queue-size=0 and nothing in flight",
        is_long=True,
        flags=("--mem-queue-size=0",),
        prepared=_small,
    ),
)
