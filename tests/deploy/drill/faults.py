"""The faults of the drills, and what must hold in spite of them."""

from __future__ import annotations

from typing import Final

from tests.deploy.drill import disks, links
from tests.deploy.drill.harness import Drill, Site

__all__ = ["DRILLS"]


async def killed(site: Site) -> None:
    """SIGKILL of an nsqd that has a backlog; it is started again a few seconds later."""
    node = site.nsqds[0]
    await site.backlog(node)
    async with site.fault(node):
        await site.kill(node)
        site.load.resume()
        await site.progress()
        await site.hold()
        await site.cluster.start(node)
    await site.flow()


async def cut_off(site: Site) -> None:
    """The link of an nsqd is down until everybody has noticed, and some seconds more."""
    node = site.nsqds[0]
    others = len(site.nsqds) - 1
    failed = site.history.failures.total()
    await site.backlog(node)
    async with site.fault(node):
        site.cluster.network.set_link(node, up=False)
        site.load.resume()
        await site.until(lambda: site.history.failures.total() > failed)
        await site.until(
            lambda: all(one.stats().connections == others for one in site.load.consumers)
        )
        await site.flow(without=[node])
        await site.hold()
        site.cluster.network.set_link(node, up=True)
    await site.flow()


async def lookupd_lost(site: Site) -> None:
    """One nsqlookupd dies, then the other; then an nsqd is restarted."""
    first, second = site.cluster.nsqlookupds
    running = len(site.load.consumers)
    async with site.fault():
        site.cluster.kill(first)
        # Consumers that start now find every nsqd by the other one.
        site.tasks.start_soon(site.load.consume, "work")
        await site.connected(running + 1)
        site.cluster.kill(second)
        await site.flow()
        await site.hold()
    node = site.nsqds[0]
    async with site.fault(node):
        await site.cluster.restart(node)
    # Consumers still know where it was.
    await site.flow()


async def lookupds_restarted(site: Site) -> None:
    """Both nsqlookupds are restarted; what they knew, the nsqds tell them again."""
    running = len(site.load.consumers)
    async with site.fault() as fault:
        for node in site.cluster.nsqlookupds:
            code = await site.cluster.restart(node)
            if code:
                site.wrong.append(f"{node} ended with {code}: {site.cluster.log(node)}")
        # Begins while nobody may be found yet.
        site.tasks.start_soon(site.load.consume, "work")
        await site.found()
    assert fault.ended_s is not None
    site.remarks.append(f"all nsqds known again after {fault.ended_s - fault.began_s:.1f} s")
    await site.connected(running + 1)
    await site.flow()


async def rolling_restart(site: Site) -> None:
    """SIGTERM to one nsqd after the other, as an upgrade does it."""
    for node in site.nsqds:
        async with site.fault(node):
            code = await site.cluster.restart(node)
        if code:
            site.wrong.append(f"{node} ended with {code}: {site.cluster.log(node)}")
        await site.flow()


DRILLS: Final = (
    Drill(
        "killed",
        killed,
        "SIGKILL of an nsqd with a backlog, which is in memory: lost",
        may_lose=True,
    ),
    Drill(
        "killed-on-disk",
        killed,
        "the same with --mem-queue-size=0 and nothing in flight: all is in files",
        flags=("--mem-queue-size=0",),
    ),
    Drill("cut-off", cut_off, "the link of an nsqd is down"),
    Drill(
        "lookupd-lost",
        lookupd_lost,
        "one nsqlookupd dies, then the other; then an nsqd is restarted",
    ),
    Drill(
        "lookupds-restarted",
        lookupds_restarted,
        "both nsqlookupds are restarted, and are empty",
        is_long=True,
    ),
    Drill("rolling-restart", rolling_restart, "all nsqds are restarted, one after the other"),
    *links.DRILLS,
    *disks.DRILLS,
)
