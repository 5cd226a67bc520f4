"""What the event loop does for a while: how often it runs, how late it is, who holds it up.

While it is asked for it costs about two microseconds for each step of a task, else nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush, heappushpop
from time import perf_counter_ns, process_time
from typing import Final

import trio
from trio.lowlevel import Task

from trionsq.debug.exclusive import exclusive
from trionsq.debug.places import Place, place_of

__all__ = ["LoopFigures", "SlowStep", "watch_loop"]

# The probe sleeps so long; what it oversleeps is the loop's lag.
_PROBE_S: Final = 0.02
_SLOWEST_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A stretch in which one task ran and no other could.

    Attributes:
        duration_ms: wall time, with that of other threads which had the interpreter.
        task: its name.
        after: where the task was when it gave way; None if it ended.
    """

    duration_ms: float
    task: str
    after: Place | None


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Of ``seconds`` of watching.

    Attributes:
        seconds: wall time.
        cpu_seconds: processor time of the process, all threads.
        turns: times that the loop looked for I/O and timers.
        steps: times that a task ran.
        busy_seconds: wall time in tasks.
        lag_ms: of a task that wanted to wake up, in order, shortest first.
        slowest: steps, longest first.
    """

    seconds: float
    cpu_seconds: float
    turns: int
    steps: int
    busy_seconds: float
    lag_ms: list[float]
    slowest: list[SlowStep]

    def lag_quantile_ms(self, quantile: float) -> float:
        """The lag that ``quantile`` (0..1) of the wake-ups do not exceed."""
        if not self.lag_ms:
            return 0.0
        return self.lag_ms[min(len(self.lag_ms) - 1, int(quantile * len(self.lag_ms)))]


class _Watch(trio.abc.Instrument):
    def __init__(self, name: Callable[[Task], str | None]) -> None:
        self.turns = 0
        self.steps = 0
        self.busy_ns = 0
        self._name = name
        self._own = trio.lowlevel.current_task()
        self._began_ns: int | None = None
        # A heap, shortest first; steps of equal length are told apart by their number.
        self._slowest: list[tuple[int, int, SlowStep]] = []

    def before_io_wait(self, timeout: float) -> None:
        self.turns += 1

    def before_task_step(self, task: Task) -> None:
        self._began_ns = perf_counter_ns()

    def after_task_step(self, task: Task) -> None:
        if self._began_ns is None:
            return  # watching began in the midst of it
        duration_ns = perf_counter_ns() - self._began_ns
        self.steps += 1
        self.busy_ns += duration_ns
        if task is self._own:
            return  # it would be among the longest of a loop that has little to do
        slowest = self._slowest
        if len(slowest) < _SLOWEST_MAX:
            heappush(slowest, (duration_ns, self.steps, self._step(task, duration_ns)))
        elif duration_ns > slowest[0][0]:
            heappushpop(slowest, (duration_ns, self.steps, self._step(task, duration_ns)))

    def _step(self, task: Task, duration_ns: int) -> SlowStep:
        places = [place_of(frame, line) for frame, line in task.iter_await_frames()]
        own = [place for place in places if not place.is_of_trio]
        name = self._name(task) if places else None
        return SlowStep(duration_ns / 1e6, name or task.name, own[-1] if own else None)

    @property
    def slowest(self) -> list[SlowStep]:
        return [step for _, _, step in sorted(self._slowest, reverse=True)]


async def watch_loop(
    seconds: float, name: Callable[[Task], str | None] = lambda task: None
) -> LoopFigures:
    """Watch the event loop for so long.

    ``name`` may have a better name for a task than trio.

    Raises:
        UnderWayError: somebody else watches already.
    """
    watch = _Watch(name)
    lag_ms: list[float] = []
    with exclusive("loop"):
        trio.lowlevel.add_instrument(watch)
        try:
            began_ns, cpu_s = perf_counter_ns(), process_time()
            until_ns = began_ns + int(seconds * 1e9)
            before_ns = began_ns
            while before_ns < until_ns:
                sleep_s = min(_PROBE_S, (until_ns - before_ns) / 1e9)
                await trio.sleep(sleep_s)
                now_ns = perf_counter_ns()
                lag_ms.append(max(0.0, (now_ns - before_ns) / 1e6 - sleep_s * 1e3))
                before_ns = now_ns
            cpu_s = process_time() - cpu_s
        finally:
            trio.lowlevel.remove_instrument(watch)
    return LoopFigures(
        seconds=(before_ns - began_ns) / 1e9,
        cpu_seconds=cpu_s,
        turns=watch.turns,
        steps=watch.steps,
        busy_seconds=watch.busy_ns / 1e9,
        lag_ms=sorted(lag_ms),
        slowest=watch.slowest,
    )
