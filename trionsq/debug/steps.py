"""The longest steps of an event loop: which task, and which function ran meanwhile.

A step is a stretch in which one task runs and no other can. An instrument of trio sees where each
step begins and ends. The place where a task finally yields is not what took so long, so a thread
looks every 2 ms at what a long step runs. A step has its wall time, its processor time and the time
that it waited for a processor: on a shared machine, only the rest is the program's own doing.

This module imports nothing of ours: benchmarks load it into other versions of the program.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from time import perf_counter_ns, thread_time_ns
from types import FrameType
from typing import Any, Final, NamedTuple

import trio
from trio.lowlevel import Task

__all__ = ["COLLECTING", "GarbagePauses", "SlowStep", "StepWatch"]

# A step is sampled after this time, and then this often; the benchmark's limit is 20 ms.
_SAMPLE_AFTER_NS: Final = 2_000_000
_SAMPLE_EACH_S: Final = 0.002
_MAX_SLOWEST: Final = 10
_NOBODY: Final = "trio: timers and I/O"
COLLECTING: Final = "garbage collection"
"""What ran in a step that was mostly garbage collection."""


class Place(NamedTuple):
    """A line of code.

    Attributes:
        module: dotted name.
        line: number in its file.
        function: qualified name inside the module.
        file: path.
    """

    module: str
    line: int
    function: str
    file: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function}"

    @property
    def is_of_trio(self) -> bool:
        """Whether it is trio's own code."""
        return self.module.partition(".")[0] in ("trio", "outcome")


def place_of(frame: FrameType, line: int | None = None) -> Place:
    """Return the place of ``frame``, at ``line`` if that is known better."""
    code = frame.f_code
    module = str(frame.f_globals.get("__name__", "?"))
    return Place(module, line or frame.f_lineno or 0, code.co_qualname, code.co_filename)


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A stretch in which one task ran and no other could.

    Attributes:
        duration_ms: wall time, also of other threads that ran meanwhile.
        cpu_ms: processor time of the loop's thread.
        queued_ms: wall time in which no processor was free for the thread; None if the system
            does not provide it.
        garbage_ms: wall time of garbage collections.
        task: name of the task.
        after: where the task yielded; None if it ended.
        ran: ``module function`` that was sampled most often; None if the step was too short.
    """

    duration_ms: float
    cpu_ms: float
    queued_ms: float | None
    garbage_ms: float
    task: str
    after: Place | None
    ran: str | None

    @property
    def own_ms(self) -> float:
        """Its time on a machine without other work."""
        return max(self.cpu_ms, self.duration_ms - (self.queued_ms or 0.0))


@dataclass(slots=True)
class GarbagePauses:
    """The number of collections of one generation, and the longest processor time of one."""

    count: int = 0
    longest_cpu_ms: float = 0.0


@dataclass(slots=True)
class _CurrentStep:
    """The current step: the clocks at its begin, and its samples."""

    began_ns: int
    began_cpu_ns: int
    began_queued_ns: int | None
    garbage_ns: int = 0
    ran: list[str] = field(default_factory=list)


class StepWatch(trio.abc.Instrument):
    """An instrument that watches its event loop between ``__enter__`` and ``__exit__``.

    Call both in the thread of the loop. Watching costs about five microseconds for each step.

    Attributes:
        turns: how often the loop checked for I/O and timers.
        steps: how often a task ran.
        busy_ns: wall time in tasks.
        longest_turn_cpu_ns: processor time between two checks for I/O, in which each task that was
            ready ran once; input that arrives meanwhile waits for the next turn.
        garbage: pauses by generation.
    """

    def __init__(self, own: Task | None = None) -> None:
        """``own``: a task that is not watched."""
        self._own = own
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_ident = 0
        self._queued = _QueuedTime()
        self._now: _CurrentStep | None = None
        self._ended_ns: int | None = None
        self._ended_cpu_ns = 0
        self._collection_began_ns = 0, 0
        self._turn_began_cpu_ns = 0
        self.reset()

    def reset(self) -> None:
        """Start again; a step that is under way is the first one."""
        self.turns = 0
        self.steps = 0
        self.busy_ns = 0
        self.longest_turn_cpu_ns = 0
        self.garbage: dict[int, GarbagePauses] = {}
        # A heap, shortest first; steps of equal length are told apart by their number.
        self._slowest: list[tuple[float, int, SlowStep]] = []

    def __enter__(self) -> StepWatch:
        self._loop_ident = threading.get_ident()
        self._queued.open(threading.get_native_id())
        gc.callbacks.append(self._count_collection)
        self._thread = threading.Thread(target=self._sample_steps, name="step watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()  # within the interval of samples
        gc.callbacks.remove(self._count_collection)
        self._queued.close()

    @property
    def slowest(self) -> list[SlowStep]:
        """The longest steps, longest first."""
        return [step for _, _, step in sorted(self._slowest, reverse=True)]

    # Called by trio

    def before_io_wait(self, timeout: float) -> None:
        self.turns += 1
        self._ended_ns = None
        turn_ns = thread_time_ns() - self._turn_began_cpu_ns
        if self._turn_began_cpu_ns and turn_ns > self.longest_turn_cpu_ns:
            self.longest_turn_cpu_ns = turn_ns

    def after_io_wait(self, timeout: float) -> None:
        self._ended_cpu_ns, self._ended_ns = thread_time_ns(), perf_counter_ns()
        self._turn_began_cpu_ns = self._ended_cpu_ns

    def before_task_step(self, task: Task) -> None:
        cpu_ns, now_ns = thread_time_ns(), perf_counter_ns()
        ended_ns, self._ended_ns = self._ended_ns, None
        if ended_ns is not None and now_ns - ended_ns > _SAMPLE_AFTER_NS:
            # trio never blocks between steps, so the time that it did not compute it waited.
            gap_ms = (now_ns - ended_ns) / 1e6
            cpu_ms = min((cpu_ns - self._ended_cpu_ns) / 1e6, gap_ms)
            self._keep(SlowStep(gap_ms, cpu_ms, gap_ms - cpu_ms, 0.0, _NOBODY, None, None))
        self._now = _CurrentStep(now_ns, cpu_ns, self._queued.read_ns())

    def after_task_step(self, task: Task) -> None:
        current, self._now = self._now, None
        if current is None:
            return  # the watch began within this step
        self._ended_cpu_ns, self._ended_ns = thread_time_ns(), perf_counter_ns()
        duration_ns = self._ended_ns - current.began_ns
        self.steps += 1
        self.busy_ns += duration_ns
        if task is self._own:
            return  # in an idle loop it would be among the longest
        duration_ms = duration_ns / 1e6
        if len(self._slowest) == _MAX_SLOWEST and duration_ms <= self._slowest[0][0]:
            return
        cpu_ms = (self._ended_cpu_ns - current.began_cpu_ns) / 1e6
        self._keep(self._step(task, current, duration_ms, min(cpu_ms, duration_ms)))

    def _step(
        self, task: Task, current: _CurrentStep, duration_ms: float, cpu_ms: float
    ) -> SlowStep:
        places = [place_of(frame, line) for frame, line in task.iter_await_frames()]
        own = [place for place in places if not place.is_of_trio]
        garbage_ms = current.garbage_ns / 1e6
        ran = Counter(current.ran).most_common(1)[0][0] if current.ran else None
        if garbage_ms > duration_ms / 2:
            ran = f"{COLLECTING}, in {ran}" if ran else COLLECTING
        queued_ms = None
        if duration_ms * 1e6 > _SAMPLE_AFTER_NS:
            queued_ns = self._queued.read_ns()
            if queued_ns is not None and current.began_queued_ns is not None:
                queued_ms = min(duration_ms, (queued_ns - current.began_queued_ns) / 1e6)
        after = own[-1] if own else None
        return SlowStep(duration_ms, cpu_ms, queued_ms, garbage_ms, task.name, after, ran)

    def _keep(self, step: SlowStep) -> None:
        entry = (step.duration_ms, self.steps, step)
        if len(self._slowest) < _MAX_SLOWEST:
            heappush(self._slowest, entry)
        else:
            heappushpop(self._slowest, entry)

    # Called by the garbage collector, in the thread that it stops

    def _count_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began_ns = perf_counter_ns(), thread_time_ns()
            return
        began_ns, began_cpu_ns = self._collection_began_ns
        pauses = self.garbage.setdefault(info["generation"], GarbagePauses())
        pauses.count += 1
        pauses.longest_cpu_ms = max(pauses.longest_cpu_ms, (thread_time_ns() - began_cpu_ns) / 1e6)
        current = self._now
        if current is not None:
            current.garbage_ns += perf_counter_ns() - began_ns

    # In a thread of its own

    def _sample_steps(self) -> None:
        while not self._stop.wait(_SAMPLE_EACH_S):
            current = self._now
            if current is None or perf_counter_ns() - current.began_ns < _SAMPLE_AFTER_NS:
                continue
            frame = sys._current_frames().get(self._loop_ident)
            if frame is not None and self._now is current:
                current.ran.append(_function(frame))


def _function(frame: FrameType) -> str:
    """Return the innermost function that belongs neither to the standard library nor to trio."""
    innermost = place_of(frame)
    outer: FrameType | None = frame
    while outer is not None:
        place = place_of(outer)
        if _is_own(place):
            return f"{place.module} {place.function}"
        outer = outer.f_back
    return f"{innermost.module} {innermost.function}"


def _is_own(place: Place) -> bool:
    package = place.module.partition(".")[0]
    return not (place.is_of_trio or package in sys.stdlib_module_names or place.module == __name__)


class _QueuedTime:
    """How long a thread has waited for a processor so far; on Linux only."""

    def __init__(self) -> None:
        self._file = -1

    def open(self, thread_id: int) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{thread_id}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def read_ns(self) -> int | None:
        if self._file < 0:
            return None
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return None
