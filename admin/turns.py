"""Work that grows with the cluster, away from the event loop that serves every viewer.

Mounted in nsqd, that loop is the broker's. A pure function of what was decoded runs in a thread if
it has much to do: it then gives way to the loop every 5 ms (sys.getswitchinterval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import trio

from admin.cluster.shapes import NodeStats

__all__ = ["INLINE_MAX", "computed", "rows_in"]

T = TypeVar("T")

INLINE_MAX: Final = 500
"""Rows that are worth no thread: a few milliseconds."""
# Nsqd says 300 to 750 bytes of a topic, channel or client; others may be shorter.
_ROW_NBYTES: Final = 100


def rows_in(answers: Iterable[NodeStats]) -> int:
    """How many topics, channels and clients nodes may have told of, by the length of it."""
    return sum(stats.nbytes for stats in answers) // _ROW_NBYTES


async def computed(rows: int, function: Callable[[], T]) -> T:
    """What ``function`` returns or raises; in a thread if it goes through many ``rows``.

    A cancellation takes effect when the function has returned.
    """
    if rows <= INLINE_MAX:
        await trio.lowlevel.checkpoint()
        return function()
    return await trio.to_thread.run_sync(function)
