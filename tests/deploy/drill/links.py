"""Links of an nsqd that are bad, without being cut: see `tests.deploy.link`."""

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
    async with site.fault(node):
        how = {"delay_ms": _DELAY_MS, "loss": _LOSS}
        async with bad_link(site.cluster.network, node, **how, seed=site.setting.seed) as link:
            during = await _rate(site, others)
            await site.flow([node])
            counts = await link.counts()
            site.remarks.append(f"by {link.kind}, {counts['lost']} frames lost")
            site.remarks.append(f"the other nodes' rate {during / before:.2f} of before")
            if not counts["lost"]:
                site.wrong.append("the link lost nothing")
    await site.flow()


async def stalled(site: Site) -> None:
    """Everything on the link stands still, then goes on: also what everybody gave up."""
    node = site.nsqds[0]
    async with site.fault(node), wire(site.cluster.network, node) as link:
        await link.make_bad(0, 0)
        await link.stall()
        await site.progress()
        await site.hold()
        site.remarks.append(f"{(await link.counts())['taken']} frames held")
        await link.go_on()
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
        counts = await link.counts()
        site.remarks.append(f"{counts['reset']} segments reset")
        if not counts["reset"]:
            site.wrong.append("nothing was reset")
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
