"""What is in memory: a census of objects, and with tracemalloc who allocated them.

The census costs about 0.1 us for each container, in a thread, and stops of some tens of
milliseconds for each million. Tracing makes every allocation two to four times as dear while it
lasts, and keeps a note of each that is alive: see `TRACED_NBYTES_MAX`.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from time import monotonic
from typing import Final

import trio

from trionsq.debug.exclusive import exclusive

__all__ = [
    "TRACED_NBYTES_MAX",
    "Allocations",
    "Site",
    "TypeCount",
    "census",
    "trace_allocations",
]

# Tracing ends early when its notes have grown to this: a snapshot of them stops the process for
# a tenth of a second or so.
TRACED_NBYTES_MAX: Final = 16 * 1024 * 1024
_LOOK_S: Final = 0.1
_SLICE: Final = 2_000


@dataclass(frozen=True, slots=True)
class TypeCount:
    """How many objects of a type there are."""

    type: str
    count: int


@dataclass(frozen=True, slots=True)
class Site:
    """Memory that is alive, by the line of code that asked for it.

    Attributes:
        nbytes, blocks: how much.
        stack: ``file:line``, outermost first.
    """

    nbytes: int
    blocks: int
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Allocations:
    """What was allocated while tracing and is still alive.

    Attributes:
        seconds: traced; fewer than asked for if the notes grew too large.
        nbytes, peak_nbytes: all that is alive, and what was at most.
        notes_nbytes: memory for the notes themselves.
        sites: the largest.
    """

    seconds: float
    nbytes: int
    peak_nbytes: int
    notes_nbytes: int
    sites: list[Site]


def census(top: int) -> list[TypeCount]:
    """The most frequent types among containers (what holds no others is not counted).

    To be called in a thread.
    """
    objects = gc.get_objects()
    counts: Counter[type] = Counter()
    for start in range(0, len(objects), _SLICE):
        # A slice at a time, for it is one step of the interpreter.
        counts.update(map(type, objects[start : start + _SLICE]))
    return [
        TypeCount(f"{kind.__module__}.{kind.__qualname__}", count)
        for kind, count in counts.most_common(top)
    ]


async def trace_allocations(seconds: float, top: int, frames: int = 1) -> Allocations:
    """Trace for so long, then tell the ``top`` sites, by stacks of up to ``frames`` lines.

    A trace that somebody else has begun (PYTHONTRACEMALLOC) is used and goes on.

    Raises:
        UnderWayError: somebody else traces by this function.
    """
    with exclusive("heap"):
        ours = not tracemalloc.is_tracing()
        began_s = monotonic()
        if ours:
            tracemalloc.start(frames)
        try:
            left_s = seconds
            while left_s > 0 and tracemalloc.get_tracemalloc_memory() < TRACED_NBYTES_MAX:
                await trio.sleep(min(_LOOK_S, left_s))
                left_s = seconds - (monotonic() - began_s)
            traced_s = monotonic() - began_s
            nbytes, peak_nbytes = tracemalloc.get_traced_memory()
            notes_nbytes = tracemalloc.get_tracemalloc_memory()
            snapshot = tracemalloc.take_snapshot()
        finally:
            if ours:
                tracemalloc.stop()
        sites = await trio.to_thread.run_sync(_sites, snapshot, top, frames)
    return Allocations(traced_s, nbytes, peak_nbytes, notes_nbytes, sites)


def _sites(snapshot: tracemalloc.Snapshot, top: int, frames: int) -> list[Site]:
    own = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    key = "traceback" if frames > 1 else "lineno"
    statistics = snapshot.filter_traces([own]).statistics(key)
    return [
        Site(
            each.size,
            each.count,
            tuple(f"{frame.filename}:{frame.lineno}" for frame in each.traceback),
        )
        for each in statistics[:top]
    ]
