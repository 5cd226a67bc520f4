"""Short drills (`make drill` runs the long ones) against a real nsqd.

TRIONSQ_TEST_NSQD=/path/to/nsqd drills that one in place of ours.
"""

from __future__ import annotations

import pytest

from tests.drill.__main__ import describe, never_occurred, run_all
from tests.drill.kinds import KINDS, Kind
from tests.golden.needs import not_built
from tests.processes import other_binary
from tests.soak import by_level, in_short_soak, more_in_soak

EVERYWHERE = ("stop", "kill", "kill-log")
SEEDS = by_level(test=1, short=2, full=20)
LOAD_S_MAX = by_level(test=0.6, short=1.0, full=2.5)

pytestmark = pytest.mark.skipif("disk" in not_built(), reason=not_built().get("disk", ""))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=more_in_soak if name in EVERYWHERE else in_short_soak)
        for name, kind in KINDS.items()
    ],
)
def test_no_promise_is_broken(kind: Kind) -> None:
    """Whatever happens to nsqd under load: every acknowledged message is finished in every channel,
    but what a kill may cost, and nothing comes that was not published, before its time, beyond RDY,
    after its FIN, or with attempts of before."""
    keeps_delays = other_binary() is None
    seeds = range(3, 3 + SEEDS)
    totals, is_good = run_all(kind, seeds, LOAD_S_MAX, keeps_delays=keeps_delays)
    print(describe(totals))
    assert is_good
    if SEEDS > 1:
        assert never_occurred(kind, totals, SEEDS, keeps_delays=keeps_delays) == []
