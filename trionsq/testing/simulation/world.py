"""The world: what happens next, at which time, by which chance; and the trace of it.

An event is a function that is called at a time. Events of one time are called in the order in which
they were planned. Nothing else moves time: no thread, no real clock.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, Final, Protocol
from unittest import mock

import trio
import trio._core._run as trio_run

__all__ = ["World"]

# The wall clock at the beginning: a whole second, so that traces are easy to read.
_START_NS: Final = 1_700_000_000_000_000_000


class Corpse(Protocol):
    """A process that was killed."""

    def dispose(self) -> None:
        """Release what it holds."""


class Inhabitant(Protocol):
    """A machine, as the world sees it."""

    def wall_ns(self) -> int:
        """Its wall clock, in nanoseconds since 1970."""

    def monotonic_s(self) -> float:
        """Its monotonic clock, in seconds."""

    def switch_off(self) -> None:
        """Kill what runs on it, if anything does."""


class World:
    """Simulated time and the events to come.

    One world at a time; only in a thread that runs no trio.

    Attributes:
        seed: everything that happens by chance comes from it.
        random: for choices of the simulation itself.
        now_s: simulated seconds since the beginning.
        counts: how often each kind of event happened, by name.
        machines: all machines, by name.
        current: the machine whose code runs now; None between two of them.
        steps: of processes, so far.
        lines: the trace as text, the newest last; only if ``traced``.
    """

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_s = 0.0
        self.counts: Counter[str] = Counter()
        self.machines: dict[str, Inhabitant] = {}
        self.current: Inhabitant | None = None
        self.steps = 0
        self.lines: list[str] = []
        self._traced = traced
        self._hash = hashlib.blake2b(digest_size=8)
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = count()
        self._dead: list[Corpse] = []

    def __repr__(self) -> str:
        return f"<World seed={self.seed} {self.now_s:.6f} s, {len(self._events)} events to come>"

    # Events

    def at(self, time_s: float, event: Callable[..., object], *args: Any) -> None:
        """Call ``event`` at a time; now if that time has passed."""
        when_s = max(time_s, self.now_s)
        heapq.heappush(self._events, (when_s, next(self._numbers), event, args))

    def after(self, delay_s: float, event: Callable[..., object], *args: Any) -> None:
        """Call ``event`` after a delay in seconds."""
        self.at(self.now_s + delay_s, event, *args)

    def run(self, seconds: float) -> None:
        """Let everything happen that is due within the next ``seconds``.

        Raises:
            BaseException: an event failed, or a process ended with an error.
        """
        end_s = self.now_s + seconds
        events = self._events
        with self._simulated():
            while events and events[0][0] <= end_s:
                self.now_s, _, event, args = heapq.heappop(events)
                event(*args)
        self.now_s = end_s

    def note(self, kind: str, *details: object) -> None:
        """Enter something in the trace: what it was, and numbers or names that identify it."""
        line = f"{self.now_s:.9f} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        if self._traced:
            self.lines.append(line)

    @property
    def trace_hash(self) -> str:
        """A hash of the trace: two runs of one seed have the same."""
        return self._hash.copy().hexdigest()

    # Clocks

    @property
    def wall_ns(self) -> int:
        """The true wall clock: nanoseconds since 1970."""
        return _START_NS + round(self.now_s * 1e9)

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Replace what differs between two runs: clocks, and trio's order of tasks."""

        def wall_ns() -> int:
            return self.wall_ns if self.current is None else self.current.wall_ns()

        def wall_s() -> float:
            return wall_ns() / 1e9

        def monotonic_s() -> float:
            return self.now_s if self.current is None else self.current.monotonic_s()

        with (
            mock.patch.object(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            mock.patch.object(trio_run, "_r", self.random),
            mock.patch.object(time, "time_ns", wall_ns),
            mock.patch.object(time, "time", wall_s),
            mock.patch.object(time, "monotonic", monotonic_s),
            mock.patch.object(time, "perf_counter", monotonic_s),
            mock.patch.object(trio.to_thread, "run_sync", _run_inline),
            _without_collector(),
        ):
            yield

    # The end

    def bury(self, process: Corpse) -> None:
        """Keep a killed process: its coroutines must not be closed while the world goes on."""
        self._dead.append(process)

    def close(self) -> None:
        """Kill what still runs, and release everything. Call this last."""
        for machine in self.machines.values():
            machine.switch_off()
        self._events.clear()
        with _last_words_ignored():
            for process in self._dead:
                process.dispose()
            self._dead.clear()


async def _run_inline(function: Callable[..., Any], *args: Any, **_options: object) -> Any:
    """In place of `trio.to_thread.run_sync`: a thread that is done at once."""
    await trio.lowlevel.checkpoint()
    return function(*args)


@contextmanager
def _without_collector() -> Iterator[None]:
    # A collection could close an abandoned generator, at a point that no seed knows.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _last_words_ignored() -> Iterator[None]:
    """What a killed process logs or raises while it is taken apart means nothing."""

    def ignore(_error: object) -> None:
        """Nothing to say."""

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with mock.patch.object(sys, "unraisablehook", ignore):
            yield
    finally:
        logging.disable(disabled)
