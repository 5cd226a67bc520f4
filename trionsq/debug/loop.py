"""What the event loop does for a while: how often it runs, how late it is, who holds it up.

While it is asked for it costs some five microseconds for each step of a task, else nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns, process_time
from typing import Final

import trio

from trionsq.debug.exclusive import exclusive
from trionsq.debug.steps import GarbagePauses, SlowStep, StepWatch

__all__ = ["LoopFigures", "watch_loop"]

# The probe sleeps so long; what it oversleeps is the loop's lag.
_PROBE_S: Final = 0.02


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
        garbage: pauses of the garbage collector, by generation.
    """

    seconds: float
    cpu_seconds: float
    turns: int
    steps: int
    busy_seconds: float
    lag_ms: list[float]
    slowest: list[SlowStep]
    garbage: dict[int, GarbagePauses]

    def lag_quantile_ms(self, quantile: float) -> float:
        """The lag that ``quantile`` (0..1) of the wake-ups do not exceed."""
        if not self.lag_ms:
            return 0.0
        return self.lag_ms[min(len(self.lag_ms) - 1, int(quantile * len(self.lag_ms)))]


async def watch_loop(seconds: float) -> LoopFigures:
    """Watch the event loop for so long.

    Raises:
        UnderWayError: somebody else watches already.
    """
    watch = StepWatch(trio.lowlevel.current_task())
    lag_ms: list[float] = []
    with exclusive("loop"), watch:
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
        garbage=watch.garbage,
    )
