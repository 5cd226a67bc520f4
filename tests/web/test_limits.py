"""The pace that a request's body has to keep."""

from __future__ import annotations

from trionsq.web.limits import Pace, PaceWatch

PACE = Pace(window_s=10.0, min_bytes=100)


def test_within_a_window_nothing_need_come() -> None:
    """A body that is short enough may take a whole window."""
    assert PaceWatch(PACE, 5.0).keeps_up(14.9, 0)


def test_each_window_must_bring_its_bytes() -> None:
    """What came in one does not count in the next."""
    watch = PaceWatch(PACE, 0.0, received_bytes=7)
    assert watch.keeps_up(10.0, 1000)
    assert watch.due_s == 20.0
    assert watch.keeps_up(19.0, 1000)
    assert not watch.keeps_up(20.0, 1099)


def test_what_was_there_does_not_count() -> None:
    """Bytes from before the watch began are no pace."""
    assert not PaceWatch(PACE, 0.0, received_bytes=7).keeps_up(10.0, 106)
    assert PaceWatch(PACE, 0.0, received_bytes=7).keeps_up(10.0, 107)
