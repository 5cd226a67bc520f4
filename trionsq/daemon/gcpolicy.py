"""When Python looks for reference cycles: among few objects often, among all when that is short.

The interpreter stops while it looks, 0.1 to 0.25 us for each object (measured on Python 3.11 to
3.13). Left to itself it looks through everything from time to time: more than a second with a
million messages in memory, which form no cycles and go with their last reference. It also lets the
young ones grow without limit as long as old ones go at the same rate, for it compares what comes
with what goes. So

- what is there at the start is never looked at again;
- the young are looked at some times a second, more often when there are many;
- a collection of everything is made on purpose: when little is in memory, or when so many tasks
  have ended at an age that only such a collection finds what they left behind.

Python 3.14 and later collects in small steps by itself, and is left alone.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any, Final

import trio
from trio.lowlevel import Task

from trionsq.histogram import Histogram

__all__ = [
    "Memory",
    "collect_on_purpose",
    "count_objects",
    "full_is_due",
    "next_look_s",
    "pauses_s",
    "start_collecting",
    "tune_gc",
]

log = logging.getLogger("trionsq")

_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

pauses_s = Histogram(_BOUNDS_S)
"""How long collections of this process took, in seconds, since `tune_gc`."""

_COLLECTS_IN_STEPS: Final = sys.version_info >= (3, 14)
# Without `collect_on_purpose`, and in a burst, Python looks at the young when there are so many
# more of them than before; every second time together with those that were once found alive,
# so that what stays is looked at once or twice: each costs a single PUB 4 % (callgrind).
# Where as many go as come these are some 20,000: 13 ms (measured), for a coroutine takes 0.6 us.
_MAX_YOUNG: Final = 2_500
_YOUNG_COLLECTIONS: Final = 0
# All are looked at automatically only while nobody does it on purpose.
_MIDDLE_COLLECTIONS: Final = 100
_NEVER: Final = 2**31 - 1
# A collection of so many young objects takes about half a millisecond.
_YOUNG_WANTED: Final = 2_500
# An idle process has fewer, and nothing to do.
_PROMOTED_MIN: Final = 1_000
_LOOKS_TO_AGE: Final = 3
_LOOK_MIN_S: Final = 0.01
# A burst after a rest may make some 100,000 in this time: 10 to 20 ms.
_MAX_LOOK_S: Final = 0.1
_FULL_EACH_S: Final = 10.0
# So many blocks of memory, among them 40,000 objects at most that are looked at: up to 10 ms. A
# broker with a few hundred connections has fewer.
_SHORT_BLOCKS: Final = 100_000
# A TCP client is three tasks and leaves no cycles. An HTTP connection with 20 requests is some ten,
# and left 120 objects (measured), about 20 KB: so this is 100 MB at most.
_MAX_OLD_ENDS: Final = 50_000
# A pause that an operator may want to know of.
_LONG_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known without looking at the objects.

    Attributes:
        blocks: of memory in use, more than at the start.
        promotions: collections since the last full one whose survivors became old.
        old_ends: tasks that have ended since then, and were old.
    """

    blocks: int
    promotions: int
    old_ends: int


def full_is_due(memory: Memory) -> bool:
    """Whether to look at all objects now."""
    if not memory.promotions and not memory.old_ends:
        return False  # the last time found all there is to find
    return memory.blocks <= _SHORT_BLOCKS or memory.old_ends >= _MAX_OLD_ENDS


def tune_gc() -> None:
    """Set up this process's collector; to be called once, when all modules are imported."""
    gc.collect()
    gc.freeze()
    if not _COLLECTS_IN_STEPS:
        gc.set_threshold(_MAX_YOUNG, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
    if _observe not in gc.callbacks:
        gc.callbacks.append(_observe)


def start_collecting() -> None:
    """Let `collect_on_purpose` run as long as this thread's event loop does."""
    trio.lowlevel.spawn_system_task(collect_on_purpose, name="garbage collection")


def next_look_s(before_s: float, young: int) -> float:
    """When to look at the young again, if there were so many ``before_s`` after the last look."""
    wanted_s = before_s * _YOUNG_WANTED / max(1, young)
    return min(max(wanted_s, _LOOK_MIN_S), 2 * before_s, _MAX_LOOK_S)


def count_objects(generation: int) -> int:
    """Return how many objects of a generation, 0 to 2, there are.

    The list of them must be gone before another thread runs, which one call into C sees to: a
    tuple that a thread is making with `tuple` of a generator fails if anybody holds it.
    """
    return sum(map(len, map(gc.get_objects, (generation,))))


async def collect_on_purpose(full_each_s: float = _FULL_EACH_S) -> None:
    """Make collections, for ever; without it Python makes all of them.

    ``full_each_s`` is the time between two looks whether a full one is due.
    """
    if _COLLECTS_IN_STEPS:
        return
    start_blocks = sys.getallocatedblocks()
    look_s = _MAX_LOOK_S
    with _no_automatic_full(), _OldTasks() as old:
        full_at_s = trio.current_time() + full_each_s
        for number in count():
            await trio.sleep(look_s)
            young = count_objects(0)
            look_s = next_look_s(look_s, young)
            # What is under way has some looks' time to end before it is old.
            is_turn = number % _LOOKS_TO_AGE == 0
            many = is_turn and young + count_objects(1) >= _PROMOTED_MIN
            gc.collect(1 if many else 0)
            if trio.current_time() < full_at_s:
                continue
            full_at_s = trio.current_time() + full_each_s
            blocks = sys.getallocatedblocks() - start_blocks
            memory = Memory(blocks, old.promotions, old.ends)
            if full_is_due(memory):
                old.forget()
                _collect(memory)


def _collect(memory: Memory) -> None:
    began_s = perf_counter()
    found = gc.collect()
    took_s = perf_counter() - began_s
    if took_s > _LONG_S:
        log.info(
            "GC: a full collection took %.0f ms and found %d objects; %d connections or other"
            " tasks had ended",
            took_s * 1e3,
            found,
            memory.old_ends,
        )


class _OldTasks(trio.abc.Instrument):
    """Counts tasks that end after a collection has promoted what they refer to.

    Attributes:
        promotions: collections since `forget` whose survivors became old.
        ends: such tasks since `forget`.
    """

    def __init__(self) -> None:
        self.promotions = 0
        self.ends = 0
        self._age = 0
        # The age at which each task began.
        self._born: dict[Task, int] = {}

    def __enter__(self) -> _OldTasks:
        gc.callbacks.append(self._collected)
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)
        gc.callbacks.remove(self._collected)

    def forget(self) -> None:
        """A full collection comes now."""
        self.promotions = 0
        self.ends = 0

    def task_spawned(self, task: Task) -> None:
        self._born[task] = self._age

    def task_exited(self, task: Task) -> None:
        if self._born.pop(task, -1) < self._age:
            self.ends += 1

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 1:
            self._age += 1
            self.promotions += 1


@contextmanager
def _no_automatic_full() -> Iterator[None]:
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)


_began_s = 0.0


def _observe(phase: str, info: dict[str, Any]) -> None:
    global _began_s
    if phase == "start":
        _began_s = perf_counter()
    else:
        pauses_s.observe(perf_counter() - _began_s)
