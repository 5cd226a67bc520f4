"""A part of the fuzzing that `make fuzz` does, with seeds that stay: a fiftieth in `make test`, a
tenth in the short soak, all of it in the full one."""

from __future__ import annotations

import logging
import mmap

import pytest

from tests.fuzz import watch
from tests.fuzz.mutate import case_random, cut, mutated
from tests.fuzz.parser import FuzzError
from tests.fuzz.plan import RUNS, Run, describe
from tests.processes import other_binary
from tests.soak import by_level, more_in_soak
from trionsq.broker.client import Client
from trionsq.broker.commands import Commands
from trionsq.wire import events

PART = by_level(test=100, short=20, full=1)
SEED = 4
# What has no broker has nobody beside it.
_WITHOUT_PAIR = ("TCP commands, parser", "nsqlookupd TCP, sessions")


@more_in_soak
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
@pytest.mark.skipif(other_binary() is not None, reason="the log of another nsqd is not ours")
def test_nonsense_changes_nothing_for_others(run: Run) -> None:
    """It stays up, its memory is bounded, no defect shows in the log, and a producer and a consumer
    beside it miss nothing."""
    count = run.count // PART
    found = run.fuzz(count, SEED)
    print(describe(run, count, SEED, found))
    if "rounds of the pair" in found or ("parser" not in run.name and "sessions" not in run.name):
        # How many there are in the time that the cases take is the machine's matter.
        assert found["rounds of the pair"] >= 1


def test_a_case_is_the_same_each_time() -> None:
    """Whatever is drawn follows from the seed and the number."""
    for number in range(200):
        drawn = []
        for _ in range(2):
            random = case_random(7, number)
            data = mutated(random, b"PUB t\n\0\0\0\5hello" * 3)
            drawn.append((data, cut(random, data)))
        assert drawn[0] == drawn[1]
        assert b"".join(drawn[0][1]) == drawn[0][0]


def test_a_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that fails at some commands does not get by, and the case is named."""

    def fails(self: Commands, client: Client, event: events.Touch) -> None:
        raise RuntimeError("a defect made by the test")

    monkeypatch.setattr(Commands, "_touch", fails)
    with pytest.raises(FuzzError, match="seed 1, cases range"):
        RUNS[1].fuzz(200, 1)


def test_a_logged_trace_is_found() -> None:
    """Also if whoever logged it went on."""

    def log_one() -> None:
        try:
            raise RuntimeError("made by the test")
        except RuntimeError:
            logging.getLogger("trionsq").exception("failed")

    with pytest.raises(AssertionError, match="made by the test"), watch.no_traces():
        log_one()


def test_growth_is_found() -> None:
    """Memory that is still held in the end counts."""
    # A mapping of its own: small blocks would go where earlier tests have left room.
    with mmap.mmap(-1, 60 * watch.MIB) as kept:
        with pytest.raises(AssertionError, match="grown by"), watch.bounded_growth(20 * watch.MIB):
            kept.write(b"x" * len(kept))
        assert len(kept) == 60 * watch.MIB
