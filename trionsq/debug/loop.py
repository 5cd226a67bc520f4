"""What the event loop does for a while: its turns, its lag, and the steps that hold it up.

Watching costs about five microseconds for each step of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns, process_time
from typing import Any, Final

import trio

from trionsq.debug.process import exclusive
from trionsq.debug.steps import GarbagePauses, SlowStep, StepWatch

__all__ = ["LoopMetrics", "loop_document", "trio_metrics", "watch_loop"]

# The sleep of a probe; the time that it oversleeps is the lag of the event loop.
_PROBE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class LoopMetrics:
    """What was seen of the event loop.

    Attributes:
        seconds: duration, wall time.
        cpu_seconds: processor time of the process, all threads.
        turns: how often the loop checked for I/O and timers.
        steps: how often a task ran.
        busy_seconds: wall time in tasks.
        lag_ms: how late the probe woke up, sorted, shortest first.
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
        """Return the lag that ``quantile`` (0..1) of the wake-ups do not exceed."""
        if not self.lag_ms:
            return 0.0
        return self.lag_ms[min(len(self.lag_ms) - 1, int(quantile * len(self.lag_ms)))]


async def watch_loop(seconds: float) -> LoopMetrics:
    """Watch the event loop for ``seconds``. Cancelling stops the watch.

    Raises:
        UnderWayError: another watch is under way.
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
    return LoopMetrics(
        seconds=(before_ns - began_ns) / 1e9,
        cpu_seconds=cpu_s,
        turns=watch.turns,
        steps=watch.steps,
        busy_seconds=watch.busy_ns / 1e9,
        lag_ms=sorted(lag_ms),
        slowest=watch.slowest,
        garbage=watch.garbage,
    )


# As JSON


def loop_document(metrics: LoopMetrics) -> dict[str, Any]:
    """Return the metrics as JSON."""
    seconds = metrics.seconds
    return {
        "seconds": seconds,
        "turns_per_second": metrics.turns / seconds,
        "task_steps_per_second": metrics.steps / seconds,
        "busy_share": metrics.busy_seconds / seconds,
        "cpu_share": metrics.cpu_seconds / seconds,
        "lag_ms": {
            "p50": metrics.lag_quantile_ms(0.5),
            "p99": metrics.lag_quantile_ms(0.99),
            "max": metrics.lag_quantile_ms(1.0),
        },
        "longest_steps": [
            {
                "duration_ms": step.duration_ms,
                "cpu_ms": step.cpu_ms,
                "waited_for_cpu_ms": step.queued_ms,
                "garbage_ms": step.garbage_ms,
                "task": step.task,
                "ran": step.ran,
                "gave_way_at": None if step.after is None else str(step.after),
            }
            for step in metrics.slowest
        ],
        "garbage_collections": [
            {
                "generation": generation,
                "count": pauses.count,
                "longest_cpu_ms": pauses.longest_cpu_ms,
            }
            for generation, pauses in sorted(metrics.garbage.items())
        ],
    }


def trio_metrics() -> dict[str, Any]:
    """Return trio's own statistics as JSON."""
    statistics = trio.lowlevel.current_statistics()
    io = statistics.io_statistics
    return {
        "tasks_living": statistics.tasks_living,
        "tasks_runnable": statistics.tasks_runnable,
        "seconds_to_next_deadline": _finite(statistics.seconds_to_next_deadline),
        "calls_from_threads_waiting": statistics.run_sync_soon_queue_size,
        "io_backend": io.backend,
        "tasks_waiting_to_read": getattr(io, "tasks_waiting_read", None),
        "tasks_waiting_to_write": getattr(io, "tasks_waiting_write", None),
    }


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds
