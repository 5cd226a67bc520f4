"""Figures of the process: memory, descriptors, threads and the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from typing import TypedDict

__all__ = ["CollectorFigures", "ProcessFigures", "free_memory", "process_figures"]


class CollectorFigures(TypedDict):
    """Of the garbage collector, by generation."""

    enabled: bool
    waiting: list[int]
    thresholds: list[int]
    runs: list[int]
    collected: list[int]
    uncollectable: list[int]


class ProcessFigures(TypedDict):
    """Sizes in bytes; None where the system does not tell."""

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
    collector: CollectorFigures


def process_figures() -> ProcessFigures:
    """The figures of now. Blocks for the time it takes to list the open files."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "resident_bytes": _resident_bytes(),
        # In KiB, on macOS in bytes.
        "peak_resident_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "memory_blocks": sys.getallocatedblocks(),
        "open_files": _open_files(),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "threads": [thread.name for thread in threading.enumerate()],
        "cpu_user_seconds": usage.ru_utime,
        "cpu_system_seconds": usage.ru_stime,
        "collector": _collector(),
    }


def _collector() -> CollectorFigures:
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
            return len(os.listdir(folder)) - 1  # one of them is the folder itself
        except OSError:
            continue
    return None


def free_memory() -> None:
    """Collect garbage, and give back to the system what the allocator keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
