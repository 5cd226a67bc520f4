"""Which nodes can show messages without consuming them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import trio

from admin.cluster.queries import url_of
from admin.upstream import Upstream, UpstreamError

__all__ = ["PeekSupport"]

_KEPT_S: Final = 300.0
_MAX_NODES: Final = 2000
_WAIT_S: Final = 1.0


class PeekSupport:
    """Which nodes can show messages without consuming them: ours can, the original nsqd can't.

    Each node is asked once in five minutes.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        # By node: whether it can, and until when that is valid.
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()

    async def why_not(self, nodes: Sequence[str]) -> str:
        """Why no node of ``nodes`` can show messages; "" if one can."""
        if nodes and await self.can_peek(nodes[0]):
            return ""  # usually all nodes are alike
        answers: list[bool | None] = []

        async def ask(node: str) -> None:
            answers.append(await self.can_peek(node))

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        if any(answers):
            return ""
        if None in answers:
            return "No node answers that can show messages."
        return "These nodes can't show messages: the original nsqd has no /topic/peek."

    async def can_peek(self, node: str) -> bool | None:
        """Whether a node has /topic/peek; None if it does not answer within a second."""
        known, until_s = self._known.get(node, (False, -1.0))
        if trio.current_time() < until_s:
            return known
        try:
            await self._upstream.get_bytes(url_of(node, "/topic/peek"), timeout_s=_WAIT_S)
            can = True
        except UpstreamError as error:
            # 400: the topic is missing; 404: there is no such path.
            can = error.status == 400
            if error.status is None:
                return None
        self._known[node] = can, trio.current_time() + _KEPT_S
        if len(self._known) > _MAX_NODES:
            self._known.popitem(last=False)
        return can
