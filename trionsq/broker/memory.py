"""Figures of this process's memory under the names that nsqd gives to its own.

Consumers only draw them. They mean what comes nearest in a Python process:

- heap_objects: memory blocks that are allocated
- heap_in_use_bytes: resident size; heap_idle_bytes and heap_released_bytes: data that is mapped
  but not resident
- gc_total_runs: runs of the collector, of all generations; its pauses are not measured (0)
- next_gc_bytes: the collector counts objects, so this is the resident size
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from typing import TypedDict

__all__ = ["MemoryFigures", "memory_figures"]

_STATM = Path("/proc/self/statm")


class MemoryFigures(TypedDict):
    """As /stats has them, in its order."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


def memory_figures() -> MemoryFigures:
    """The figures of now."""
    resident, idle = _resident_and_idle()
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": idle,
        "heap_in_use_bytes": resident,
        "heap_released_bytes": idle,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": resident,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _resident_and_idle() -> tuple[int, int]:
    try:
        pages = [int(field) for field in _STATM.read_text().split()]
    except OSError:
        # Not Linux: the peak is all there is (in KiB, on macOS in bytes).
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (peak if sys.platform == "darwin" else peak * 1024), 0
    page_nbytes = resource.getpagesize()
    _, resident, shared, _, _, data, *_ = pages
    return resident * page_nbytes, max(0, data - (resident - shared)) * page_nbytes
