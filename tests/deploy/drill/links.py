"""Drills with bad links of an nsqd: see `tests.deploy.link`."""

from __future__ import annotations

from typing import Final

import trio

from tests.deploy.drill.harness import Drill, Site
from tests.deploy.link import bad_link, wire

__all__ = ["DRILLS"]

_DELAY_MS: Final = 200.0
_LOSS: Final = 0.05


async def bad(site: Site) -> None:
    """200 ms each way and 5 % of the frames lost; the other nodes are not to suffer from it."""
    node, *others = site.nsqds
    before = await _rate(site, others)
    network, seed = site.cluster.network, site.setting.seed
    async with (
        site.fault(node),
        bad_link(network, node, delay_ms=_DELAY_MS, loss=_LOSS, seed=seed) as link,
    ):
        during = await _rate(site, others)
        lost = 0
        while not lost:
            await site.flow([node])
            lost = (await link.counts())["lost"]
        site.remarks.append(f"by {link.kind}, {lost} frames lost")
        site.remarks.append(f"the other nodes' rate {during / before:.2f} of before")
    await site.flow()


async def stalled(site: Site) -> None:
    """A link stands still until everybody has noticed; then it brings what it held, too late."""
    node = site.nsqds[0]
    others = len(site.nsqds) - 1
    failed = site.history.failures.total()
    await site.backlog(node)
    async with site.fault(node), wire(site.cluster.network, node) as link:
        await link.make_bad(0, 0)
        await link.stall()
        site.load.resume()
        await site.until(lambda: site.history.failures.total() > failed)
        await site.until(
            lambda: all(one.stats().connections == others for one in site.load.consumers)
        )
        await site.flow(without=[node])
        site.remarks.append(f"{(await link.counts())['taken']} frames held")
        await link.go_on()
        await site.flow()
    await site.flow()


async def reset(site: Site) -> None:
    """Connections stall, then are reset, as by a firewall that has forgotten them."""
    node = site.nsqds[0]
    async with site.fault(node), wire(site.cluster.network, node) as link:
        await link.make_bad(0, 0)
        await link.stall()
        await site.progress()
        await link.reset()
        await site.hold()
        site.remarks.append(f"{(await link.counts())['reset']} segments reset")
        await link.go_on()
    await site.flow()


async def _rate(site: Site, nodes: list[str]) -> float:
    """Deliveries of these nodes in a second, for as long as faults last."""
    before, began_s = site.history.delivered_by.copy(), trio.current_time()
    await site.hold()
    count = sum(site.history.delivered_by[node] - before[node] for node in nodes)
    return count / (trio.current_time() - began_s)


DRILLS: Final = (
    Drill("bad-link", bad, "200 ms delay and 5 % loss on the link of an nsqd, each way"),
    Drill("stalled-link", stalled, "the link of an nsqd stands still, then goes on"),
    Drill("reset-link", reset, "connections to an nsqd stand still, then are reset"),
)
