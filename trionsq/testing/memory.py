"""An nsqd without sockets, files or real time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.clock import Clock
from trionsq.broker.options import NsqdOptions, validated

__all__ = ["nsqd_in_memory"]


@asynccontextmanager
async def nsqd_in_memory(*, seed: int = 0, **options: Any) -> AsyncIterator[Broker]:
    """A broker that runs inside the context; its wall clock follows trio's.

    Args:
        seed: of its random choices.
        options: fields of `NsqdOptions` that are not as by default.

    Raises:
        OptionsError: the options are refused.
        TypeError: there is no such option.
    """
    broker = Broker(validated(NsqdOptions(**options)), Clock.from_trio(), Random(seed))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        broker.stop()
