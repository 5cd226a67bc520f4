"""The log engine crashes at any operation, again and again, and keeps what it has promised."""

from __future__ import annotations

import pytest

from tests.soak import by_level, in_short_soak, in_soak, more_in_soak
from tests.storage.log.sqlite_disk import open_state
from tests.storage.log.sweep.history import run
from tests.storage.log.sweep.mutants import ROOT, BadChange, bad_changes, find

POINTS = by_level(test=2_000, short=5_000, full=40_000)
# Each part begins with its own seeds.
PARTS = range(by_level(test=2, short=4, full=20))
SEEDS_A_PART = 1_000_000

_CHANGES = {change.name: change for change in bad_changes()}
_AT_ONCE = {"record-fsync", "sequence-of-the-state-forgotten"}


@more_in_soak
@pytest.mark.parametrize("part", PARTS)
def test_no_promise_is_broken(part: int) -> None:
    """Whatever was acknowledged holds after each crash, and what was finished stays so."""
    seed, points = part * SEEDS_A_PART, 0
    while points < POINTS // len(PARTS):
        points += run(seed).crashes
        seed += 1


@in_short_soak
def test_no_promise_is_broken_with_the_files_of_sqlite() -> None:
    """The same with SQLite's own files on the disk that crashes."""
    seed = points = 0
    while points < by_level(test=0, short=300, full=1_000):
        points += run(seed, open_state).crashes
        seed += 1


def test_each_bad_change_applies() -> None:
    """Its text occurs once, and what takes its place is Python."""
    for change in bad_changes():
        text = (ROOT / "trionsq/storage/log" / change.file).read_text()
        assert text.count(change.old) == 1, change.name
        compile(text.replace(change.old, change.new), change.file, "exec")
    assert len(_CHANGES) == len(bad_changes()) >= 40


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=in_short_soak if name in _AT_ONCE else in_soak)
        for name, change in _CHANGES.items()
    ],
)
def test_a_bad_change_is_found(change: BadChange) -> None:
    """Without one fsync, or one rule, a promise is broken."""
    assert find(change, change.points) is not None
