"""The failure drills, once and short. `make drill-cluster` repeats them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy import netns
from tests.deploy.drill.__main__ import main
from tests.deploy.drill.faults import DRILLS
from tests.deploy.drill.harness import Drill, DrillError, Setting, run_drill
from tests.soak import smoke

WHY_NOT = netns.why_not()
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

SHORT_DRILLS = {drill.name: drill for drill in DRILLS if not drill.is_long}
IN_SHORT = ("killed-on-disk", "cut-off", "full-disk", "rolling-restart")
SHORT = Setting(rate=1000, hold_s=0.5)


@needs_namespaces
@pytest.mark.parametrize("drill", smoke(SHORT_DRILLS, next(iter(SHORT_DRILLS)), in_short=IN_SHORT))
async def test_what_was_acknowledged_outlives(drill: Drill, tmp_path: Path) -> None:
    """Only the memory of a killed node is lost; another node accepts refused messages."""
    outcome = await run_drill(drill, tmp_path, SHORT)
    counts = outcome.counts
    assert outcome.wrong == ()
    assert counts["lost"] == 0 or drill.may_lose
    assert counts["acknowledged"] > 0


@needs_namespaces
async def test_a_drill_that_hangs_fails_with_what_it_saw(tmp_path: Path) -> None:
    """The error has the stage, the figures so far, and the ends of the logs."""
    setting = Setting(limit_s=0.05)
    with pytest.raises(DrillError, match="at the stage 'start'") as caught:
        await run_drill(DRILLS[0], tmp_path, setting)
    assert "'acknowledged': 0" in str(caught.value)
    assert "--- nsqd-1" in str(caught.value)


def test_without_namespaces_there_are_no_drills(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drills print the reason and exit with 77."""
    monkeypatch.setattr(netns, "why_not", lambda: "no root")
    assert main([]) == 77
    assert capsys.readouterr().out == "no drills here: no root\n"
