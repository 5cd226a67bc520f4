"""The charts of one series of the history, for a period that the URL selects (``?range=6h``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup

from admin.pages.drawing import Line, chart, sparkline
from admin.pages.format import ago
from admin.watch.history import SHORT_S, History, Key, Series, latency_key
from admin.watch.marks import Mark

__all__ = ["RANGES", "RANGE_DEFAULT", "SeriesCharts"]

RANGES: Final[Mapping[str, float]] = {
    "15m": 900.0, "1h": SHORT_S, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0,
}  # fmt: skip
"""Periods in seconds, by their name in the URL."""
RANGE_DEFAULT: Final = "1h"
_KINDS: Final = ("bad", "depth", "in")
_NOTHING: Final = Series([], [], [], [], 0.0)


class SeriesCharts:
    """Draws one series of the history."""

    def __init__(
        self,
        history: History,
        key: Key,
        *,
        span_s: float = SHORT_S,
        now_s: float | None = None,
        marks: Sequence[Mark] = (),
        picker: Markup | None = None,
    ) -> None:
        """``now_s``: where charts end; ``picker``: links to other periods."""
        self._history = history
        self._key = key
        self._span_s = span_s
        self._now_s = now_s
        self._marks = marks
        self._picker = Markup() if picker is None else picker
        self._series = _begun(history.series(key, span_s) or _NOTHING)

    @property
    def sparks(self) -> dict[str, Markup]:
        """Small lines by what they show."""
        series = self._series
        return {
            "depth": sparkline(series.depth, "Depth"),
            "rate_in": sparkline(series.rate_in, "Published per second", "in"),
            "rate_out": sparkline(series.rate_out, "Finished per second", "out"),
        }

    def depth_spark(self) -> Markup:
        """The small line of the depth."""
        return sparkline(self._series.depth, "Depth")

    def depth_chart(self, depth: float | None = None, at_least: bool = False) -> Markup:
        """The depth; ``depth`` is that of the page, now, and ``at_least`` that or more."""
        series = self._series
        times_s, points = self._to_now(series.times, series.depth, depth)
        line = Line("at least" if at_least else "depth", points)
        return self._chart([line], times_s, "Depth, messages")

    def rate_chart(
        self, came: str = "published", rate_in: float | None = None, rate_out: float | None = None
    ) -> Markup:
        """Messages that came and were finished; the rates are those of the page, now."""
        series = self._series
        times_s, points_in = self._to_now(series.times, series.rate_in, rate_in)
        _, points_out = self._to_now(series.times, series.rate_out, rate_out)
        if len(points_in) < len(points_out):
            times_s, points_out = self._to_now(series.times, series.rate_out, rate_out)
            points_in = [*points_in, None]
        elif len(points_out) < len(points_in):
            points_out = [*points_out, None]
        lines = [Line(came, points_in, "in"), Line("finished", points_out, "out")]
        return self._chart(lines, times_s, "Messages per second", "/s")

    def latency_chart(self, quantiles: Sequence[tuple[float, float]]) -> Markup | None:
        """The latencies of a topic's or channel's series; None if there are none.

        ``quantiles`` are those of now, each with its seconds.
        """
        if not quantiles:
            return None
        topic, channel = [*self._key[1:], "", ""][:2]
        found = self._history.series(latency_key(topic, channel), self._span_s)
        if found is None:
            return None
        series = _begun(found)
        columns = (series.depth, series.rate_in, series.rate_out)
        lines = [
            Line(f"{100 * quantile:g} %", [1000 * each for each in column], kind)
            for (quantile, _), column, kind in zip(quantiles, columns, _KINDS, strict=False)
        ]
        return self._chart(lines, series.times, "Latency, publish to finish", " ms")

    def cards(
        self,
        *,
        came: str = "published",
        depth: float | None = None,
        at_least: bool = False,
        rate_in: float | None = None,
        rate_out: float | None = None,
        quantiles: Sequence[tuple[float, float]] = (),
    ) -> Markup:
        """The charts of a page, and the links to other periods.

        The figures are those that the page shows now, so that both are the same; ``at_least``:
        the depth lacks a node that does not answer.
        """
        drawn = [
            ("Depth over time", self.depth_chart(depth, at_least)),
            ("Rates over time", self.rate_chart(came, rate_in, rate_out)),
        ]
        if (latencies := self.latency_chart(quantiles)) is not None:
            drawn.append(("Latency over time", latencies))
        cards = Markup("").join(
            Markup('<section class="card" aria-label="{}">{}</section>').format(label, each)
            for label, each in drawn
        )
        return Markup('{}<div class="pair">{}</div>').format(self._picker, cards)

    def window(self) -> str:
        """The period of the series, as ``42 min``; "" if it is empty."""
        times = self._series.times
        return ago(times[0], times[-1]) if len(times) > 1 else ""

    def _to_now(
        self, times_s: Sequence[float], points: Sequence[float], value: float | None
    ) -> tuple[list[float], list[float | None]]:
        """The points, with the value of now at the end if it is known."""
        ended, all_points = list(times_s), list[float | None](points)
        if value is not None and self._now_s is not None and ended:
            ended.append(max(self._now_s, ended[-1]))
            all_points.append(value)
        return ended, all_points

    def _chart(
        self, lines: Sequence[Line], times_s: Sequence[float], name: str, unit: str = ""
    ) -> Markup:
        return chart(lines, times_s, name, unit, until_s=self._now_s, marks=self._marks)


def _begun(series: Series) -> Series:
    """The series from its first known point, so that a young one fills the chart.

    This point stands where its slot begins: a mark of the same slot may be before its middle.
    """
    first = next(
        (n for n, depth in enumerate(series.depth) if not math.isnan(depth)), len(series.depth)
    )
    times = series.times[first:]
    if times:
        times[0] -= times[0] % series.slot_s
    return Series(
        times,
        series.depth[first:],
        series.rate_in[first:],
        series.rate_out[first:],
        series.slot_s,
    )
