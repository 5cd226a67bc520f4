"""A short form of `make hostile`: bombs of 32 MiB instead of 1 GiB, nine of its kinds in all.

nsqd's time limits are not waited for. All others are for `make hostile`.
"""

from __future__ import annotations

import pytest

from tests.fuzz.watch import MIB
from tests.hostile.plan import ATTACKS, describe
from tests.hostile.target import Attack, attack
from tests.processes import other_binary

BOMB_NBYTES = 32 * MIB
IN_SHORT = (
    "deflate: zeros as one message",
    "snappy over TLS: a line without end",
    "deflate: NOPs with a parameter",
    "snappy: MPUBs of 200,000 messages",
    "half open: all kinds at once",
    "auth server dies within its answer",
    "auth server answers 10 MB",
    "auth server answers no JSON",
    "auth server grants catastrophic patterns",
)
KINDS = [kind for kind in ATTACKS if kind.name in IN_SHORT]


def test_the_short_form_names_attacks_that_there_are() -> None:
    """None of them is left out because it was renamed."""
    assert len(KINDS) == len(IN_SHORT)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.skipif(other_binary() is not None, reason="the limits are ours")
def test_others_flow_on_and_memory_stays_bounded(kind: Attack) -> None:
    """Under attack the peak of nsqd's memory grows by 64 MiB at most, and a producer and a
    consumer beside it miss nothing."""
    print(describe(kind, attack(kind, BOMB_NBYTES)))
