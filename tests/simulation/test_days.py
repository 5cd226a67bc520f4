"""A day is what its plan says: it can be lived again, written to a file, and made smaller."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.day import Outcome, live
from tests.simulation.mutants import ROOT
from tests.simulation.plan import FAULTS, Plan, draw_plan
from tests.simulation.shrink import shrink

# A day with nsqlookupd, several nsqds and faults.
_SEED = next(
    seed
    for seed in range(100)
    if (plan := draw_plan(seed)).lookupds and len(plan.nsqds) > 1 and len(plan.faults) > 1
)


def test_a_day_is_the_same_in_each_process() -> None:
    """Neither what was lived before nor the hashes of a process change the trace of a seed."""
    program = (
        "from tests.simulation.day import live; from tests.simulation.plan import draw_plan; "
        f"print(live(draw_plan({_SEED})).trace_hash)"
    )
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    hashes = [live(draw_plan(_SEED)).trace_hash for _ in range(2)]
    assert {process.stdout.strip(), *hashes} == {hashes[0]}


def test_a_plan_survives_a_file() -> None:
    """The plan that a file has is lived as the one that was written."""
    plan = draw_plan(_SEED)
    assert Plan.from_json(plan.to_json()) == plan


def test_plans_have_all_kinds_of_faults() -> None:
    """No kind of fault is forgotten by the draw."""
    kinds = {fault.kind for seed in range(2000) for fault in draw_plan(seed).faults}
    assert kinds == FAULTS


def _bad_with(plan: Plan) -> Outcome:
    """A stand-in for a day: bad if nsqd0 is killed while consumer0 exists."""
    is_bad = any(fault.kind == "kill" and fault.target == "nsqd0" for fault in plan.faults) and any(
        consumer.name == "consumer0" for consumer in plan.consumers
    )
    violations = ["nsqd0: lost messages"] if is_bad else []
    return Outcome(plan.seed, violations, "", Counter(), 0.0, 0, 0, 0)


def test_a_bad_plan_is_made_smaller() -> None:
    """Only what makes the day bad is left of it."""
    plan = next(
        plan
        for plan in map(draw_plan, range(1000))
        if _bad_with(plan).violations and len(plan.faults) > 2 and len(plan.consumers) > 2
    )
    smaller, _ = shrink(plan, live_plan=_bad_with)
    assert [(fault.kind, fault.target) for fault in smaller.faults] == [("kill", "nsqd0")]
    assert [consumer.name for consumer in smaller.consumers] == ["consumer0"]
    assert not smaller.lookupds
    assert len(smaller.producers) == 1
    assert smaller.producers[0].count == 1
    assert _bad_with(smaller).violations


def test_a_good_plan_is_not_made_smaller() -> None:
    """There is nothing to look for in it."""
    plan = draw_plan(_SEED)
    plan.faults.clear()
    with pytest.raises(ValueError, match="good"):
        shrink(plan, live_plan=_bad_with)
