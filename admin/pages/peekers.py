"""Which nodes can show messages without giving them away: ours can, the original nsqd can't."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import trio

from admin.cluster.queries import url_of
from admin.upstream import Upstream, UpstreamError

__all__ = ["Peekers"]

_KEPT_S: Final = 300.0
_KEPT_MAX: Final = 2000
_WAIT_S: Final = 1.0


class Peekers:
    """Asks each node once in five minutes."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        # By node: whether it can, and until when that holds.
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()

    async def why_not(self, nodes: Sequence[str]) -> str:
        """Why none of ``nodes`` can; "" if one of them can."""
        if nodes and await self.can(nodes[0]):
            return ""  # mostly all are of one kind
        found: list[bool] = []

        async def ask(node: str) -> None:
            found.append(await self.can(node))

        async with trio.open_nursery() as nursery:
            for node in nodes[1:]:
                nursery.start_soon(ask, node, name=f"nsqadmin request to {node}")
        if any(found):
            return ""
        return "These nodes can't show messages: the original nsqd has no /topic/peek."

    async def can(self, node: str) -> bool:
        """Whether a node has /topic/peek; not, if it does not answer soon."""
        known, until_s = self._known.get(node, (False, -1.0))
        if trio.current_time() < until_s:
            return known
        try:
            await self._upstream.get_bytes(url_of(node, "/topic/peek"), timeout_s=_WAIT_S)
            can = True
        except UpstreamError as error:
            # 400: it misses the topic; 404: it has no such path.
            can = error.status == 400
            if error.status is None:
                return False
        self._known[node] = can, trio.current_time() + _KEPT_S
        if len(self._known) > _KEPT_MAX:
            self._known.popitem(last=False)
        return can
