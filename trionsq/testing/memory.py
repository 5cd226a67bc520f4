"""An nsqd without sockets, threads or real time, on a simulated disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, validated
from trionsq.broker.runtime import Clock, data_folder
from trionsq.disk import Disk
from trionsq.storage.folder import Background
from trionsq.storage.letters import DeadLetterStore, SqliteLetters
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import open_state

__all__ = ["nsqd_in_memory"]


@asynccontextmanager
async def nsqd_in_memory(
    *,
    seed: int = 0,
    disk: Disk | None = None,
    background: Background | None = None,
    letters: DeadLetterStore | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[Broker]:
    """Run a broker inside the context. Its wall clock follows trio's clock.

    Args:
        seed: seed of its random choices.
        disk: the disk of its data path; by default an empty one without faults.
        background: runs its blocking work; by default at once.
        letters: its dead letters; by default a store in memory.
        clock: its clock; pass that of an earlier broker to continue where it stopped.
        options: fields of `NsqdOptions`.

    Raises:
        OptionsError: the options are refused.
        TypeError: unknown option.
    """
    random = Random(seed)
    valid = validated(NsqdOptions(**options))
    folder = data_folder(
        valid,
        SimulatedDisk(random=random) if disk is None else disk,
        InlineBackground() if background is None else background,
    )
    broker = Broker(
        valid,
        folder,
        clock or Clock.from_trio(),
        random,
        open_state,
        lambda disk: letters or SqliteLetters(disk, ":memory:"),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        broker.stop()
