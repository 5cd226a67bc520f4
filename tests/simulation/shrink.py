"""Makes a bad day smaller: fewer faults, fewer programs, less load, and still bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Final

from tests.simulation.day import Outcome, live
from tests.simulation.plan import Plan

__all__ = ["shrink"]

# A smaller plan takes another course, so it gets a few chances.
_SEEDS: Final = 4


def shrink(
    plan: Plan, *, most_days: int = 400, live_plan: Callable[[Plan], Outcome] = live
) -> tuple[Plan, int]:
    """Return a plan that is as small as it can be made and bad in the same way, and the days lived.

    Args:
        plan: a bad one.
        most_days: lived at most.
        live_plan: lives a plan.

    Raises:
        ValueError: the plan is good.
    """
    kind = _kind(live_plan(plan))
    if not kind:
        raise ValueError("this day is good")
    days, progress = 1, True
    while progress:
        progress = False
        for smaller in _smaller(plan):
            for seed in range(plan.seed, plan.seed + _SEEDS):
                if days >= most_days:
                    return plan, days
                smaller.seed = seed
                days += 1
                if _kind(live_plan(smaller)) == kind:
                    plan, progress = deepcopy(smaller), True
                    break
            if progress:
                break
    return plan, days


def _kind(outcome: Outcome) -> str:
    """What was broken, without names and numbers."""
    text = outcome.violations[0] if outcome.violations else ""
    words = text.partition(":")[2] or text
    return " ".join(word for word in words.split() if word.isalpha())[:60]


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less, the largest steps first."""
    yield from _without_half(plan)
    for part in ("faults", "consumers", "producers", "lookupds"):
        for index in range(len(getattr(plan, part))):
            less = deepcopy(plan)
            gone = getattr(less, part).pop(index)
            if part == "producers" and not less.producers:
                continue
            if part != "faults":
                name = gone if isinstance(gone, str) else gone.name
                less.faults = [
                    each for each in less.faults if name not in (each.target, each.other)
                ]
            if part == "lookupds" and not less.lookupds:
                less.consumers = [each for each in less.consumers if each.nsqds]
            yield less
    if plan.has_admin:
        less = deepcopy(plan)
        less.has_admin = False
        yield less
    for index, producer in enumerate(plan.producers):
        if producer.count > 1:
            less = deepcopy(plan)
            less.producers[index].count = producer.count // 2
            yield less
    for index, consumer in enumerate(plan.consumers):
        if consumer.habits:
            less = deepcopy(plan)
            less.consumers[index].habits = {}
            yield less
    if plan.load_s > 1 and all(fault.at_s < plan.load_s / 2 for fault in plan.faults):
        less = deepcopy(plan)
        less.load_s /= 2
        yield less


def _without_half(plan: Plan) -> Iterator[Plan]:
    half = len(plan.faults) // 2
    if half > 1:
        for kept in (plan.faults[:half], plan.faults[half:]):
            less = deepcopy(plan)
            less.faults = deepcopy(kept)
            yield less
