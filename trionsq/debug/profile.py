"""A sampling profiler: a thread looks again and again at what the others do.

It costs some ten microseconds for each sample, and nothing while it is not asked. A thread can be
looked at only where it lets go of the interpreter, so system calls seem a little larger than they
are, and C code that keeps the interpreter counts for the line that follows it.

A sample in which a thread waits for something to do is counted and left out: what remains is
where the time goes.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic, process_time, time_ns
from types import CodeType, FrameType
from typing import Final

import trio

from trionsq.debug.exclusive import exclusive

__all__ = ["Line", "Profile", "Stack", "ThreadProfile", "profile"]

# Deeper stacks lose their outer end; more different stacks are counted as one.
_DEPTH_MAX: Final = 100
_STACKS_MAX: Final = 20_000
_WAITS: Final = frozenset(
    {
        ("trio._core._io_epoll", "EpollIOManager.get_events"),
        ("trio._core._io_kqueue", "KqueueIOManager.get_events"),
        ("trio._core._thread_cache", "WorkerThread._work"),
        ("threading", "Condition.wait"),
        ("threading", "Thread._wait_for_tstate_lock"),
        ("selectors", "EpollSelector.select"),
    }
)

# Code and the line in it.
Line = tuple[CodeType, int]
# Innermost line first.
Stack = tuple[Line, ...]
_TOO_MANY: Final[Stack] = ()


@dataclass(slots=True)
class ThreadProfile:
    """The samples of a thread.

    Attributes:
        name: of the thread.
        stacks: all different ones, with the number by which ``samples`` name them. The empty
            stack stands for those that were too many.
        samples: in order of time.
        idle: samples that were left out.
    """

    name: str
    stacks: dict[Stack, int] = field(default_factory=dict)
    samples: array[int] = field(default_factory=lambda: array("L"))
    idle: int = 0

    def add(self, stack: Stack) -> None:
        number = self.stacks.get(stack)
        if number is None:
            if len(self.stacks) >= _STACKS_MAX:
                stack = _TOO_MANY
            number = self.stacks.setdefault(stack, len(self.stacks))
        self.samples.append(number)


@dataclass(slots=True)
class Profile:
    """What was seen.

    Attributes:
        interval_s: between samples.
        began_ns: wall clock.
        seconds: how long.
        cpu_seconds: processor time that the process used.
        threads: those that were seen, the main one first.
    """

    interval_s: float
    began_ns: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    threads: list[ThreadProfile] = field(default_factory=list)

    def counted(self) -> Iterator[tuple[ThreadProfile, Stack, int]]:
        """Each thread's different stacks, with the number of their samples."""
        for thread in self.threads:
            counts = [0] * len(thread.stacks)
            for number in thread.samples:
                counts[number] += 1
            for stack, number in thread.stacks.items():
                if counts[number]:
                    yield thread, stack, counts[number]


class _Sampler:
    def __init__(self, hz: float, with_idle: bool) -> None:
        self.profile = Profile(1 / hz, time_ns())
        self.stop = threading.Event()
        self._with_idle = with_idle
        self._by_ident: dict[int, ThreadProfile] = {}

    def run(self) -> None:
        """Sample until told to stop."""
        profile, interval_s = self.profile, self.profile.interval_s
        began_s, began_cpu_s = monotonic(), process_time()
        due_s = 0.0
        while True:
            due_s = max(due_s + interval_s, monotonic() - began_s)
            if self.stop.wait(max(0.0, due_s - (monotonic() - began_s))):
                break
            self._sample()
        profile.seconds = monotonic() - began_s
        profile.cpu_seconds = process_time() - began_cpu_s
        main = threading.main_thread().ident
        profile.threads = [
            self._by_ident[ident] for ident in sorted(self._by_ident, key=lambda i: i != main)
        ]

    def _sample(self) -> None:
        own = threading.get_ident()
        for ident, frame in sys._current_frames().items():
            if ident == own:
                continue
            thread = self._by_ident.get(ident)
            if thread is None:
                thread = self._by_ident[ident] = ThreadProfile(_thread_name(ident))
            if not self._with_idle and _waits(frame):
                thread.idle += 1
            else:
                thread.add(_stack(frame))


def _thread_name(ident: int) -> str:
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.name
    return f"thread {ident}"


def _waits(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__"), frame.f_code.co_qualname
    return name in _WAITS


def _stack(frame: FrameType | None) -> Stack:
    lines: list[Line] = []
    while frame is not None and len(lines) < _DEPTH_MAX:
        lines.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(lines)


async def profile(seconds: float, hz: float = 100.0, *, with_idle: bool = False) -> Profile:
    """Profile all threads for so long, ``hz`` times a second.

    ``with_idle`` keeps the samples of threads that wait for something to do.

    Raises:
        UnderWayError: somebody else profiles already.
    """
    with exclusive("profile"):
        sampler = _Sampler(hz, with_idle)
        thread = threading.Thread(target=sampler.run, name="profiler", daemon=True)
        thread.start()
        try:
            await trio.sleep(seconds)
        finally:
            sampler.stop.set()
            # Within a sample's time, also when this is cancelled.
            thread.join()
    return sampler.profile
