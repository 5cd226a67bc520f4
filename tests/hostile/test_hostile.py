"""A short form of `make hostile`, whose bombs are of 1 GiB.

`make test` has two of its kinds and the short soak eight, with bombs of 32 MiB; the full soak has
all of them, with 64 MiB.

nsqd's time limits are not waited for.
"""

from __future__ import annotations

import pytest

from tests.fuzz.watch import MIB
from tests.hostile.plan import ATTACKS, describe
from tests.hostile.target import Attack, attack
from tests.processes import other_binary
from tests.soak import by_level, in_short_soak, in_soak, more_in_soak

BOMB_NBYTES = by_level(test=32, short=32, full=64) * MIB
IN_TEST = ("deflate: zeros as one message", "auth server answers no JSON")
IN_SHORT = (
    *IN_TEST,
    "snappy over TLS: a line without end",
    "snappy: MPUBs of 200,000 messages",
    "half open: all kinds at once",
    "auth server dies within its answer",
    "auth server answers 10 MB",
    "auth server grants catastrophic patterns",
)


def mark_of(kind: Attack) -> pytest.MarkDecorator:
    """In which run the kind is first."""
    if kind.name in IN_TEST:
        return more_in_soak
    return in_short_soak if kind.name in IN_SHORT else in_soak


def test_the_short_form_names_attacks_that_there_are() -> None:
    """None of them is left out because it was renamed."""
    assert set(IN_SHORT) <= {kind.name for kind in ATTACKS}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.name, marks=mark_of(kind)) for kind in ATTACKS]
)
@pytest.mark.skipif(other_binary() is not None, reason="the limits are ours")
def test_others_flow_on_and_memory_stays_bounded(kind: Attack) -> None:
    """Under attack the peak of nsqd's memory grows by 64 MiB at most, and a producer and a
    consumer beside it miss nothing."""
    print(describe(kind, attack(kind, BOMB_NBYTES)))
