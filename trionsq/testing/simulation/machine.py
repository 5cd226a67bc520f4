"""A machine: its clocks, its disk, and the process on it, which is a trio run of its own.

The private parts of trio that this needs are all in this file: a `Runner` that is driven from
outside, and the context that says which of the runs is the current one.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from random import Random
from typing import Any, Final, NoReturn, Protocol

import sniffio
import trio
from outcome import Error
from trio._core._entry_queue import EntryQueue
from trio._core._instrumentation import Instruments
from trio._core._ki import KIManager
from trio._core._run import GLOBAL_RUN_CONTEXT, Runner, unrolled_run

from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.simulation.world import World

__all__ = ["Machine", "Process"]

# What a step of a process costs: all tasks that can run, once.
_STEP_S: Final = 50e-6
# A coroutine that is closed may wait again, in a ``finally`` clause, and is closed again.
_MAX_LAST_WORDS: Final = 100


class Socket(Protocol):
    """An end of a connection, as the kernel has it."""

    def close_by_kernel(self) -> None:
        """The process is dead: close the connection."""

    def vanish(self) -> None:
        """The machine lost its power: nothing arrives or leaves any more."""


class Machine:
    """A computer. Its name is its host name.

    Attributes:
        name: of the machine, and its host name.
        world: what it is part of.
        disk: of its data; replaced by `kill` and `lose_power`.
        process: what runs now, None if nothing does.
        is_up: whether it has power. A machine without a process refuses connections, one without
            power does not even answer.
        ends: its ends of open connections, those of dead processes included.
        listeners: what accepts connections, by port.
        clock_rate: seconds of its monotonic clock in a true second.
    """

    def __init__(self, world: World, name: str, *, clock_rate: float = 1.0) -> None:
        """``clock_rate`` is the speed of its monotonic clock; 1 is right."""
        self.name = name
        self.world = world
        self.disk = SimulatedDisk(random=Random(world.random.getrandbits(64)), path=f"/{name}")
        self.process: Process | None = None
        self.is_up = True
        self.ends: dict[Socket, None] = {}
        self.listeners: dict[int, Callable[[Any], object]] = {}
        self.clock_rate = clock_rate
        self._wall_offset_ns = 0
        world.machines[name] = self

    def __repr__(self) -> str:
        return f"<Machine {self.name} {self.process}>"

    # Clocks

    def monotonic_s(self) -> float:
        """Seconds since some point; never goes back."""
        return self.world.now_s * self.clock_rate

    def wall_ns(self) -> int:
        """The wall clock: nanoseconds since 1970, as this machine has it."""
        return self.world.wall_ns + self._wall_offset_ns

    def jump_clock(self, seconds: float) -> None:
        """Move the wall clock, as an operator or a time server does."""
        self._wall_offset_ns += round(seconds * 1e9)
        self.world.note("clock", self.name, seconds)

    # The process

    def boot(self, main: Callable[[], Awaitable[object]]) -> Process:
        """Start a process, in its own run; ``main`` is its main task.

        An exception of the process is raised by `World.run`.
        """
        if self.process is not None:
            raise RuntimeError(f"{self} has a process already")
        self.is_up = True
        self.world.note("boot", self.name)
        self.process = Process(self, main)
        return self.process

    def ended(self) -> None:
        """The process has ended by itself: the kernel closes what it left open."""
        self.world.note("exit", self.name)
        self.process = None
        self._close_sockets()

    def kill(self) -> None:
        """End the process as by ``kill -9``: not one of its statements runs any more.

        Its connections are closed by the kernel, and what it wrote is in the page cache.
        """
        assert self.process is not None, self
        self.world.note("kill", self.name)
        process, self.process = self.process, None
        process.kill()
        self._close_sockets()
        self._replace_disk(self.disk.after_kill())

    def switch_off(self) -> None:
        """Kill the process, if there is one."""
        if self.process is not None:
            self.kill()

    def lose_power(self) -> None:
        """End the process and the kernel: peers hear nothing, and unsynced writes may be lost."""
        self.world.note("power", self.name)
        process, self.process = self.process, None
        if process is not None:
            process.kill()
        self.is_up = False
        for end in list(self.ends):
            end.vanish()
        self.listeners.clear()
        self._replace_disk(self.disk.after_power_loss())

    def _replace_disk(self, disk: SimulatedDisk) -> None:
        self.disk.crashed = True
        self.disk = disk

    def _close_sockets(self) -> None:
        self.listeners.clear()
        for end in list(self.ends):
            end.close_by_kernel()


class Process:
    """A program that runs on a machine: one trio run.

    Attributes:
        machine: where it runs.
        is_alive: whether it has neither ended nor been killed.
        is_stopped: whether it is stopped, as by SIGSTOP.
    """

    def __init__(self, machine: Machine, main: Callable[[], Awaitable[object]]) -> None:
        self.machine = machine
        self.is_alive = True
        self.is_stopped = False
        self._world = machine.world
        self._signalled = trio.Event()
        self._tick_s = math.inf
        self._tick_number = 0
        self._runner = Runner(
            clock=_MachineClock(machine),
            instruments=Instruments([]),
            io_manager=_NoSockets(),  # type: ignore[arg-type]
            system_context=copy_context(),
            ki_manager=KIManager(),
            strict_exception_groups=True,
            entry_queue=EntryQueue(wakeup=_Wakeup(self)),  # type: ignore[arg-type]
        )
        self._hooks = _asyncgen_hooks(self._runner)
        self._loop = unrolled_run(self._runner, main, (), host_uses_signal_set_wakeup_fd=True)
        with self.entered():
            next(self._loop)
        self._plan_tick(self._world.now_s)

    def __repr__(self) -> str:
        state = "stopped" if self.is_stopped else "runs" if self.is_alive else "dead"
        return f"<Process on {self.machine.name}: {state}>"

    async def wait_signal(self) -> None:
        """Wait for `terminate`, as a daemon waits for SIGTERM."""
        await self._signalled.wait()

    def terminate(self) -> None:
        """Send SIGTERM: `wait_signal` returns."""
        self.call(self._signalled.set)

    def stop(self) -> None:
        """Stop all of its tasks at once, as by SIGSTOP. Its connections stay open."""
        self._world.note("stop", self.machine.name)
        self.is_stopped = True

    def resume(self) -> None:
        """Let it go on, as by SIGCONT: all that was due meanwhile is due now."""
        self._world.note("resume", self.machine.name)
        self.is_stopped = False
        self._plan_tick(self._world.now_s)

    def kill(self) -> None:
        """See `Machine.kill`."""
        self.is_alive = False
        self._tick_number += 1
        self._world.bury(self)

    def dispose(self) -> None:
        """Release a dead process: its coroutines are closed, and what they do then is void."""
        tasks = list(self._runner.tasks)
        with self.entered(), warnings.catch_warnings(action="ignore"):
            self._loop.close()  # trio warns of an abandoned run
            for task in tasks:
                for nursery in task.child_nurseries:
                    nursery._children.clear()
            for task in tasks:
                for _ in range(_MAX_LAST_WORDS):
                    try:
                        task.coro.close()
                    except BaseException:
                        continue
                    break
            self._runner.tasks.clear()
            self._runner.runq.clear()

    # Steps

    def entered(self) -> _Entered:
        """Inside this context, trio's functions belong to this run."""
        return _Entered(self)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function that may wake tasks of this run, as the kernel does. Dead: do nothing."""
        if self.is_alive:
            if self._world.current is self.machine:
                function(*args)
                return
            with self.entered():
                function(*args)
            self._plan_next_tick()

    def call_kernel(self, function: Callable[..., object], *args: Any) -> None:
        """The same for what belongs to the kernel, such as socket buffers: also if it is dead."""
        if self.is_alive:
            self.call(function, *args)
        else:
            with self.entered():
                function(*args)

    def _plan_next_tick(self) -> None:
        if self._runner.runq:
            self._plan_tick(self._world.now_s + _STEP_S)
        else:
            time_s = self._runner.deadlines.next_deadline() / self.machine.clock_rate
            # A rounded time may be just too early: then the next tick comes a step later.
            self._plan_tick(time_s if time_s > self._world.now_s else self._world.now_s + _STEP_S)

    def _plan_tick(self, time_s: float) -> None:
        if time_s != self._tick_s:
            self._tick_s = time_s
            self._tick_number += 1
            if time_s < math.inf:
                self._world.at(time_s, self._tick, self._tick_number)

    def _tick(self, number: int) -> None:
        if number != self._tick_number or self.is_stopped:
            return
        self._tick_s = math.inf
        self._world.steps += 1
        self._world.note("step", self.machine.name, len(self._runner.runq))
        try:
            with self.entered():
                self._loop.send([])
        except StopIteration:
            self._end()
        else:
            self._plan_next_tick()

    def _end(self) -> None:
        self.is_alive = False
        self.machine.ended()
        outcome = self._runner.main_task_outcome
        if isinstance(outcome, Error):
            outcome.unwrap()


class _Entered:
    """Makes a run the current one; nests. A class, because each step needs one."""

    __slots__ = ("_library", "_outer", "_outer_hooks", "_process", "_saved")

    def __init__(self, process: Process) -> None:
        self._process = process

    def __enter__(self) -> None:
        process, context = self._process, GLOBAL_RUN_CONTEXT.__dict__
        self._outer, self._outer_hooks = process._world.current, sys.get_asyncgen_hooks()
        self._saved = context.copy()
        context.clear()
        context["runner"] = process._runner
        self._library, sniffio.thread_local.name = sniffio.thread_local.name, "trio"
        process._world.current = process.machine
        sys.set_asyncgen_hooks(*process._hooks)

    def __exit__(self, *_error: object) -> None:
        context = GLOBAL_RUN_CONTEXT.__dict__
        context.clear()
        context.update(self._saved)
        sniffio.thread_local.name = self._library
        self._process._world.current = self._outer
        sys.set_asyncgen_hooks(*self._outer_hooks)


class _MachineClock(trio.abc.Clock):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        return self._machine.monotonic_s()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._machine.monotonic_s()


class _NoSockets:
    """In place of trio's I/O: what is simulated has none."""

    def process_events(self, _events: object) -> None:
        """There are no events."""

    def close(self) -> None:
        """Nothing is open."""

    def force_wakeup(self) -> None:
        """Nothing sleeps."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(f"a simulated process used real I/O: {name}")


class _Wakeup:
    """In place of the socket pair that wakes trio's loop for `run_sync_soon`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_due = False
        self._lot = trio.lowlevel.ParkingLot()

    async def wait_woken(self) -> None:
        if not self._is_due:
            await self._lot.park()
        self._is_due = False

    def wakeup_thread_and_signal_safe(self) -> None:
        self._is_due = True
        self._process.call(self._lot.unpark_all)

    def close(self) -> None:
        """Nothing is open."""


def _asyncgen_hooks(runner: Runner) -> Any:
    """Return the hooks of a run; they are set only while it takes a step."""
    outer = sys.get_asyncgen_hooks()
    runner.asyncgens.install_hooks(runner)
    # A plain tuple: the collector does not look into what `sys` returns.
    hooks = tuple(sys.get_asyncgen_hooks())
    sys.set_asyncgen_hooks(*outer)
    return hooks
