"""Charts of the poller's history, as the pages place them."""

from __future__ import annotations

import math
from typing import Final

from markupsafe import Markup

from admin.pages.charts import Line, chart, sparkline
from admin.pages.format import ago
from admin.watch.history import History, Key, Series

__all__ = ["Drawing"]

_NOTHING: Final = Series([], [], [], [])


class Drawing:
    """Draws one series of the history."""

    def __init__(self, history: History, key: Key) -> None:
        self._series = _begun(history.series(key) or _NOTHING)

    @property
    def sparks(self) -> dict[str, Markup]:
        """Small lines by what they show."""
        series = self._series
        return {
            "depth": sparkline(series.depth, "Messages waiting"),
            "rate_in": sparkline(series.rate_in, "Published per second", "in"),
            "rate_out": sparkline(series.rate_out, "Finished per second", "out"),
        }

    def depth_spark(self) -> Markup:
        """The small line of the depth."""
        return sparkline(self._series.depth, "Messages waiting")

    def depth_chart(self) -> Markup:
        """Messages waiting."""
        lines = [Line("waiting", self._series.depth)]
        return chart(lines, self._series.times, "Messages waiting")

    def rate_chart(self) -> Markup:
        """In and out."""
        series = self._series
        lines = [Line("in", series.rate_in, "in"), Line("out", series.rate_out, "out")]
        return chart(lines, series.times, "Messages per second", "/s")

    def window(self) -> str:
        """How far back it goes, as ``42 min``; "" if there is nothing."""
        times = self._series.times
        return ago(times[0], times[-1]) if len(times) > 1 else ""


def _begun(series: Series) -> Series:
    """From the first point that is known, so that a young series is not a dot at the right."""
    first = next(
        (n for n, depth in enumerate(series.depth) if not math.isnan(depth)), len(series.depth)
    )
    if not first:
        return series
    return Series(
        series.times[first:], series.depth[first:], series.rate_in[first:], series.rate_out[first:]
    )
