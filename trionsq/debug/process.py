"""The process: its memory, descriptors and threads, the objects in memory and who allocated them.

The census of objects stops the process for about 0.2 s for each million containers. Tracing
allocations makes each of them two to four times as expensive while it lasts, and keeps a record of
each that is alive: see `MAX_TRACED_BYTES`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from types import FrameType
from typing import Any, Final, TypedDict

import trio

from trionsq.debug.steps import place_of

__all__ = [
    "MAX_TRACED_BYTES",
    "AllocationSite",
    "Allocations",
    "CollectorMetrics",
    "ProcessMetrics",
    "TypeCount",
    "UnderWayError",
    "allocations_document",
    "census",
    "census_document",
    "exclusive",
    "free_memory",
    "process_metrics",
    "thread_lines",
    "trace_allocations",
]

# Tracing ends early when its records have grown to this size: a snapshot of so many stops the
# process for about a tenth of a second.
MAX_TRACED_BYTES: Final = 16 * 1024 * 1024
# Seconds between two checks of the size of the records.
_CHECK_S: Final = 0.1
# Per process, as two measurements of a kind would measure each other.
_under_way: set[str] = set()


class UnderWayError(Exception):
    """A measurement of that kind is under way; ``str()`` is its name."""


@contextmanager
def exclusive(kind: str) -> Iterator[None]:
    """Allow no other measurement of ``kind`` inside the context.

    Raises:
        UnderWayError: one is under way.
    """
    if kind in _under_way:
        raise UnderWayError(kind)
    _under_way.add(kind)
    try:
        yield
    finally:
        _under_way.discard(kind)


class CollectorMetrics(TypedDict):
    """Metrics of the garbage collector; lists are by generation."""

    enabled: bool
    waiting: list[int]
    thresholds: list[int]
    runs: list[int]
    collected: list[int]
    uncollectable: list[int]


class ProcessMetrics(TypedDict):
    """Metrics of the process; None if the system does not provide one."""

    pid: int
    python: str
    resident_bytes: int | None
    peak_resident_bytes: int
    memory_blocks: int
    open_files: int | None
    open_files_limit: int
    threads: list[str]
    cpu_user_seconds: float
    cpu_system_seconds: float
    collector: CollectorMetrics


def process_metrics() -> ProcessMetrics:
    """Return the current metrics. Blocks while it lists the open files."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "resident_bytes": _resident_bytes(),
        # In KiB; on macOS in bytes.
        "peak_resident_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "memory_blocks": sys.getallocatedblocks(),
        "open_files": _open_files(),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "threads": [thread.name for thread in threading.enumerate()],
        "cpu_user_seconds": usage.ru_utime,
        "cpu_system_seconds": usage.ru_stime,
        "collector": _collector(),
    }


def _collector() -> CollectorMetrics:
    stats = gc.get_stats()
    return {
        "enabled": gc.isenabled(),
        "waiting": list(gc.get_count()),
        "thresholds": list(gc.get_threshold()),
        "runs": [generation["collections"] for generation in stats],
        "collected": [generation["collected"] for generation in stats],
        "uncollectable": [generation["uncollectable"] for generation in stats],
    }


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def _open_files() -> int | None:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder)) - 1  # one of them is the listing itself
        except OSError:
            continue
    return None


def free_memory() -> None:
    """Collect garbage, and return unused memory of the allocator to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


# Threads


def thread_lines(*, stacks: bool) -> Iterator[str]:
    """Yield a line for each thread; with ``stacks`` also its stack, outermost line first."""
    frames = sys._current_frames()
    threads = threading.enumerate()
    yield f"{len(threads)} threads\n"
    for thread in threads:
        yield f"{thread.name}  [{'daemon, ' if thread.daemon else ''}{thread.native_id}]\n"
        if stacks:
            frame = frames.get(thread.ident or 0)
            yield from (f"    | {place}\n" for place in _places(frame))


def _places(frame: FrameType | None) -> list[str]:
    places: list[str] = []
    while frame is not None:
        places.append(str(place_of(frame)))
        frame = frame.f_back
    return places[::-1]


# Memory


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The number of objects of a type."""

    type: str
    count: int


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """Memory in use, by the line of code that allocated it.

    Attributes:
        size_bytes: total size.
        blocks: number of allocations.
        stack: ``file:line``, outermost first.
    """

    size_bytes: int
    blocks: int
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Allocations:
    """Memory that was allocated during a trace and is still in use.

    Attributes:
        seconds: duration of the trace; shorter than requested if its records grew too large.
        alive_bytes: memory in use.
        peak_bytes: most memory in use at any moment of the trace.
        trace_bytes: memory for the records themselves.
        sites: the largest sites.
    """

    seconds: float
    alive_bytes: int
    peak_bytes: int
    trace_bytes: int
    sites: list[AllocationSite]


def census(top: int) -> list[TypeCount]:
    """Return the most frequent types of containers; objects that hold no others are not counted.

    No other thread runs meanwhile: a tuple that one is making with `tuple` of a generator fails if
    anybody holds it.
    """
    counts: Counter[type] = Counter(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    return [
        TypeCount(f"{kind.__module__}.{kind.__qualname__}", count)
        for kind, count in counts.most_common(top)
    ]


async def trace_allocations(seconds: float, top: int, frames: int = 1) -> Allocations:
    """Trace allocations for ``seconds``; return the ``top`` sites, by stacks of ``frames`` lines.

    A trace that is under way for another reason (PYTHONTRACEMALLOC) is used and goes on. Cancelling
    ends the trace.

    Raises:
        UnderWayError: another call is under way.
    """
    with exclusive("heap"):
        ours = not tracemalloc.is_tracing()
        began_s = monotonic()
        if ours:
            tracemalloc.start(frames)
        try:
            left_s = seconds
            while left_s > 0 and tracemalloc.get_tracemalloc_memory() < MAX_TRACED_BYTES:
                await trio.sleep(min(_CHECK_S, left_s))
                left_s = seconds - (monotonic() - began_s)
            traced_s = monotonic() - began_s
            alive_bytes, peak_bytes = tracemalloc.get_traced_memory()
            trace_bytes = tracemalloc.get_tracemalloc_memory()
            snapshot = tracemalloc.take_snapshot()
        finally:
            if ours:
                tracemalloc.stop()
        sites = await trio.to_thread.run_sync(_sites, snapshot, top, frames)
    return Allocations(traced_s, alive_bytes, peak_bytes, trace_bytes, sites)


def _sites(snapshot: tracemalloc.Snapshot, top: int, frames: int) -> list[AllocationSite]:
    own = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    key = "traceback" if frames > 1 else "lineno"
    statistics = snapshot.filter_traces([own]).statistics(key)
    return [
        AllocationSite(
            each.size,
            each.count,
            tuple(f"{frame.filename}:{frame.lineno}" for frame in each.traceback),
        )
        for each in statistics[:top]
    ]


def census_document(counts: list[TypeCount]) -> list[dict[str, Any]]:
    """Return a census as JSON."""
    return [{"count": each.count, "type": each.type} for each in counts]


def allocations_document(allocations: Allocations) -> dict[str, Any]:
    """Return allocations as JSON."""
    return {
        "seconds": allocations.seconds,
        "alive_bytes": allocations.alive_bytes,
        "peak_bytes": allocations.peak_bytes,
        "notes_bytes": allocations.trace_bytes,
        "sites": [
            {"bytes": site.size_bytes, "blocks": site.blocks, "at": list(site.stack)}
            for site in allocations.sites
        ],
    }
