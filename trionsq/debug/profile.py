"""A sampling profiler, by the processor's clock or by the one on the wall.

By the processor's clock (the usual way), a timer that runs only while the process computes
interrupts the main thread, and what the threads do at that moment is a sample: an idle process
has none. By the one on the wall, a thread looks again and again at what the others do, or wait
for; it gets to look mostly when they let go of the interpreter, so system calls seem larger than
they are.

A sample costs some ten microseconds. Nothing is done while nobody asks.
"""

from __future__ import annotations

import signal
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, process_time, time_ns
from types import CodeType, FrameType
from typing import Final, Literal

import trio

from trionsq.debug.exclusive import exclusive

__all__ = ["Clock", "Line", "Profile", "Stack", "ThreadProfile", "profile"]

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

Clock = Literal["cpu", "wall"]
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

    def add(self, stack: Stack, count: int) -> None:
        """Count a stack, seen for ``count`` samples."""
        number = self.stacks.get(stack)
        if number is None:
            if len(self.stacks) >= _STACKS_MAX:
                stack = _TOO_MANY
            number = self.stacks.setdefault(stack, len(self.stacks))
        self.samples.extend([number] * count)


@dataclass(slots=True)
class Profile:
    """What was seen.

    Attributes:
        interval_s: between samples, of the clock that was chosen.
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
    def __init__(self, interval_s: float, *, with_idle: bool) -> None:
        self.profile = Profile(interval_s, time_ns())
        self._with_idle = with_idle
        self._by_ident: dict[int, ThreadProfile] = {}
        self._began_s = monotonic()
        self._began_cpu_s = self._seen_cpu_s = process_time()

    def by_cpu(self, frame: FrameType | None) -> None:
        """The processor's timer has run out, once or more; ``frame`` is the main thread's."""
        now_s = process_time()
        count = max(1, round((now_s - self._seen_cpu_s) / self.profile.interval_s))
        self._seen_cpu_s = now_s
        frames = sys._current_frames()
        if frame is None or frames.pop(_main_ident(), None) is None:
            return
        others = [other for other in frames.items() if not _waits(other[1])]
        for ident, other in others:
            self._thread(ident).add(_stack(other), count)
        # Where it waits it may have been woken by the timer that another thread ran down.
        if not (others and _waits(frame)):
            self._thread(_main_ident()).add(_stack(frame), count)

    def by_wall(self) -> None:
        """Look at all threads but the caller's."""
        own = threading.get_ident()
        for ident, frame in sys._current_frames().items():
            if ident == own:
                continue
            if not self._with_idle and _waits(frame):
                self._thread(ident).idle += 1
            else:
                self._thread(ident).add(_stack(frame), 1)

    def run_by_wall(self, stop: threading.Event) -> None:
        """Look until told to stop."""
        interval_s = self.profile.interval_s
        due_s = monotonic()
        while not stop.wait(max(0.0, due_s - monotonic())):
            self.by_wall()
            due_s = max(due_s + interval_s, monotonic())

    def finish(self) -> Profile:
        """What was seen."""
        profile = self.profile
        profile.seconds = monotonic() - self._began_s
        profile.cpu_seconds = process_time() - self._began_cpu_s
        main = _main_ident()
        profile.threads = [
            self._by_ident[ident] for ident in sorted(self._by_ident, key=lambda i: i != main)
        ]
        return profile

    def _thread(self, ident: int) -> ThreadProfile:
        thread = self._by_ident.get(ident)
        if thread is None:
            thread = self._by_ident[ident] = ThreadProfile(_thread_name(ident))
        return thread


def _main_ident() -> int:
    return threading.main_thread().ident or 0


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


async def profile(seconds: float, hz: float = 100.0, *, clock: Clock = "cpu") -> Profile:
    """Profile all threads for ``seconds`` on the wall, ``hz`` times in each second of ``clock``.

    Outside the main thread, where no timer can interrupt it, and while somebody else uses that
    timer, the wall's clock is used in any case, and what waits is left out.

    Raises:
        UnderWayError: somebody else profiles already.
    """
    with exclusive("profile"):
        sampler = _Sampler(1 / hz, with_idle=clock == "wall")
        if clock == "cpu" and _timer_is_free():
            with _timer(1 / hz, sampler.by_cpu):
                await trio.sleep(seconds)
        else:
            with _thread(sampler.run_by_wall):
                await trio.sleep(seconds)
        return sampler.finish()


def _timer_is_free() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


@contextmanager
def _timer(interval_s: float, expired: Callable[[FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, lambda _, frame: expired(frame))
    try:
        signal.setitimer(signal.ITIMER_PROF, interval_s, interval_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # By default this signal kills, and one may still be on its way.
        signal.signal(signal.SIGPROF, before if callable(before) else _nothing)


def _nothing(_: int, frame: FrameType | None) -> None:
    """A signal came too late."""


@contextmanager
def _thread(run: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name="profiler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()  # within a sample's time
