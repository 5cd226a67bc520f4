"""Where the depth of a channel goes: when it will be empty, or how fast it grows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from admin.pages.format import number
from admin.pages.wording import plural

__all__ = ["TREND_S", "describe_trend", "find_span"]

TREND_S: Final = 600.0
"""The trend is that of the last ten minutes at most."""

_LEAST_POINTS: Final = 3
# Less than that share of the depth in `TREND_S` is no trend, nor are so few messages a minute.
_LEAST_SHARE: Final = 0.02
_LEAST_PER_MIN: Final = 1.0
_LONGEST_S: Final = 30 * 86_400


def describe_trend(depths: Sequence[float], slot_s: float, depth: int, *, is_paused: bool) -> str:
    """A sentence, or "" if there is no trend.

    Args:
        depths: of the span of `find_span`, one each ``slot_s``; NaN where unknown.
        slot_s: in seconds.
        depth: now.
        is_paused: nothing is delivered.
    """
    if not depth:
        return ""
    per_s = _slope([*depths, float(depth)], slot_s)
    if per_s is None:
        return ""
    per_min = per_s * 60
    if abs(per_min) < _LEAST_PER_MIN or abs(per_s) * TREND_S < _LEAST_SHARE * depth:
        return "" if is_paused else "The depth is steady."
    if per_s > 0:
        return f"The depth grows by {plural(math.ceil(per_min), 'message')} a minute."
    left_s = depth / -per_s
    if left_s > _LONGEST_S:
        return f"The depth shrinks by {number(-per_min)} a minute."
    return (
        f"Empty in about {_span(left_s)} if it goes on like this"
        f" ({plural(math.ceil(-per_min), 'message')} a minute fewer)."
    )


def find_span(jumps_s: Iterable[float], now_s: float, slot_s: float) -> float:
    """How far back a trend looks: not over a restart, an action, or a node that fell silent.

    The depth jumps there. ``jumps_s`` are their times; the slots of a jump are left out.
    """
    since_s = max(jumps_s, default=-math.inf)
    return max(0.0, min(TREND_S, now_s - since_s - 2 * slot_s))


def _span(seconds: float) -> str:
    for limit, unit_s, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(1, round(seconds / unit_s))} {unit}"
    return f"{round(seconds / 86_400)} days"


def _slope(values: Sequence[float], slot_s: float) -> float | None:
    """The change per second, by least squares over the values that are known."""
    points = [(at * slot_s, value) for at, value in enumerate(values) if not math.isnan(value)]
    if len(points) < _LEAST_POINTS:
        return None
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (value - mean) for at, value in points) / spread
