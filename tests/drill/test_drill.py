"""A short form of the drill (`make drill` runs the long one) against a real nsqd.

TRIONSQ_TEST_NSQD=/path/to/nsqd drills that one in place of ours.
"""

from __future__ import annotations

import pytest

from tests.drill.__main__ import describe, never_occurred, run_all
from tests.drill.run import Terms
from tests.golden.needs import not_built
from tests.processes import other_binary
from tests.soak import by_level, in_short_soak, more_in_soak

SEEDS = by_level(test=(3,), short=(3, 4), full=range(3, 23))
KILL_SEEDS = by_level(test=(104,), short=(104,), full=range(104, 114))
"""With a small --sync-every: killed before the first sync of a queue, nsqd v1.3.0 itself may
deliver a damaged message, out of step with the records of the file that it writes over."""
LOAD_S_MAX = by_level(test=1.0, short=2.0, full=2.0)

pytestmark = pytest.mark.skipif("disk" in not_built(), reason=not_built().get("disk", ""))


@more_in_soak
def test_nothing_acknowledged_is_lost_by_a_stop_under_load() -> None:
    """SIGTERM amid publishing and consuming, a start with the same folder: every acknowledged
    message that was not finished comes to every channel, none that was finished does, attempts
    go on, and none comes before the time it was deferred to."""
    terms = Terms(keeps_delays=other_binary() is None)
    totals, is_good = run_all(SEEDS, LOAD_S_MAX, terms)
    print(describe(totals))
    assert is_good
    assert never_occurred(totals, len(SEEDS), terms) == []


@in_short_soak
def test_a_kill_damages_nothing() -> None:
    """After SIGKILL amid publishing and consuming nsqd starts with the same folder, delivers no
    message that was never published and none damaged, and can be emptied."""
    terms = Terms(is_clean=False)
    totals, is_good = run_all(KILL_SEEDS, LOAD_S_MAX, terms)
    print(describe(totals))
    assert is_good
    assert never_occurred(totals, len(KILL_SEEDS), terms) == []
