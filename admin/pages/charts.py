"""Small charts of the poller's history, as inline SVG.

Only presentation attributes and classes are used, because the content security policy forbids
inline style. Each chart has a text for screen readers. A point that is not a finite number is a
gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from admin.pages.format import ago, compact
from admin.watch.history import History, Key, Series

__all__ = ["Line", "SeriesCharts", "bar", "chart", "sparkline"]

Points = Sequence[float | None]

_MAX_POINTS: Final = 120  # of a line; more than a small chart has room for
_SPARK: Final = (120.0, 28.0)
_CHART: Final = (720.0, 180.0)
_PAD: Final = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart; ``kind`` is the class for its colour (``in``, ``out``...)."""

    name: str
    points: Points
    kind: str = "depth"


def sparkline(points: Points, name: str, kind: str = "depth") -> Markup:
    """A line without axes; empty until there are two points."""
    values = _thinned(points)
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup('<span class="spark spark-none" aria-hidden="true"></span>')
    width, height = _SPARK
    top = max(known) or 1.0
    runs = list(_runs(values, width, height, top))
    label = f"{name}: now {compact(values[-1])}, {compact(min(known))} to {compact(max(known))}"
    return Markup(
        '<svg class="spark {kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        'preserveAspectRatio="none" focusable="false"><title>{label}</title>{drawn}</svg>'
    ).format(
        kind=f"line-{kind}",
        width=width,
        height=height,
        label=label,
        drawn=_drawn(runs, width, height, width / len(values) / 2),
    )


def chart(lines: Sequence[Line], times_s: Sequence[float], name: str, unit: str = "") -> Markup:
    """Lines over time, with a scale; a text until there are two points.

    Args:
        lines: each has as many points as there are times.
        times_s: when each point was taken, in seconds, ascending.
        name: the title.
        unit: follows the numbers of the scale, as ``/s``.
    """
    values = [_thinned(line.points) for line in lines]
    known = [[value for value in line if value is not None] for line in values]
    if max((len(line) for line in known), default=0) < 2:
        return Markup('<p class="chart-none">{}</p>').format(
            "The chart starts after the second poll, in a few seconds."
        )
    width, height = _CHART
    top = _round_top(max(max(line, default=0.0) for line in known))
    drawn = Markup("").join(
        Markup('<g class="line-{}">{}</g>').format(
            line.kind,
            _drawn(
                list(_runs(points, width, height, top)),
                width,
                height,
                width / max(len(points), 1) / 2,
            ),
        )
        for line, points in zip(lines, values, strict=True)
    )
    said = "; ".join(
        f"{line.name} now {compact(points[-1])}{unit}, "
        f"{compact(min(line_known))} to {compact(max(line_known))}{unit}"
        for line, points, line_known in zip(lines, values, known, strict=True)
        if line_known
    )
    return Markup(
        '<figure class="chart"><figcaption>{name}{legend}</figcaption>'
        '<div class="chart-area"><div class="chart-scale" aria-hidden="true">'
        "<span>{top}</span><span>{half}</span><span>0</span></div>"
        '<svg viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" role="img" '
        'focusable="false"><title>{said}</title>{grid}{drawn}</svg></div>'
        '<div class="chart-times" aria-hidden="true"><span>{since} ago</span><span>now</span></div>'
        "</figure>"
    ).format(
        name=name,
        legend=_legend(lines, values, unit),
        top=compact(top) + unit,
        half=compact(top / 2) + unit,
        width=width,
        height=height,
        said=f"{name}: {said}",
        grid=_grid(width, height),
        drawn=drawn,
        since=ago(times_s[0], times_s[-1]) if len(times_s) > 1 else "a moment",
    )


def bar(value: float | None, top: float | None) -> Markup:
    """A bar for ``value`` relative to ``top``; decoration beside the number."""
    part = 0.0
    if value and top and math.isfinite(value) and math.isfinite(top):
        part = min(max(value / top, 0.0), 1.0)
    return Markup(
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" '
        'focusable="false"><rect class="bar-all" width="100" height="4"/>'
        '<rect class="bar-part" width="{:.1f}" height="4"/></svg>'
    ).format(100 * part)


def _legend(lines: Sequence[Line], values: Sequence[Points], unit: str) -> Markup:
    """The newest value of each line, a dash if it is unknown."""
    return Markup("").join(
        Markup('<span class="key line-{}"><i></i>{} <b>{}</b></span>').format(
            line.kind, line.name, compact(points[-1] if points else None) + unit
        )
        for line, points in zip(lines, values, strict=True)
    )


def _grid(width: float, height: float) -> Markup:
    return Markup("").join(
        Markup('<line class="grid" x1="0" x2="{0:g}" y1="{1:g}" y2="{1:g}"/>').format(width, y)
        for y in (_PAD, height / 2, height - _PAD)
    )


def _thinned(points: Points) -> list[float | None]:
    """At most `_MAX_POINTS` points, the highest of each stretch, so that no peak is lost."""
    values = [
        None if value is None or not math.isfinite(value) else max(float(value), 0.0)
        for value in points
    ]
    stretch = -(-len(values) // _MAX_POINTS)
    if stretch <= 1:
        return values
    thinned: list[float | None] = []
    for first in range(0, len(values), stretch):
        some = [value for value in values[first : first + stretch] if value is not None]
        thinned.append(max(some, default=None))
    return thinned


def _runs(
    values: Sequence[float | None], width: float, height: float, top: float
) -> Iterator[list[tuple[float, float]]]:
    """Runs of points without a gap, as coordinates of the drawing."""
    step = width / max(len(values) - 1, 1)
    run: list[tuple[float, float]] = []
    for place, value in enumerate(values):
        if value is not None:
            y = height - _PAD - (height - 2 * _PAD) * min(value / top, 1.0)
            run.append((place * step, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _drawn(
    runs: Sequence[Sequence[tuple[float, float]]], width: float, height: float, half_step: float
) -> Markup:
    parts = []
    for run in runs:
        if len(run) == 1:  # a line of one point is invisible
            x, y = run[0]
            run = [(max(x - half_step, 0.0), y), (min(x + half_step, width), y)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
        first, last = run[0][0], run[-1][0]
        area = f"{first:.1f},{height:g} {line} {last:.1f},{height:g}"
        parts.append(f'<polygon class="area" points="{escape(area)}"/>')
        parts.append(f'<polyline class="line" fill="none" points="{escape(line)}"/>')
    return Markup("".join(parts))


def _round_top(highest: float) -> float:
    """The end of the scale: 1, 2, 5 or 10 times a power of ten."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(power * step for step in (1, 2, 5, 10, 20) if power * step >= highest)


_NOTHING: Final = Series([], [], [], [])


class SeriesCharts:
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
        """The period of the series, as ``42 min``; "" if it is empty."""
        times = self._series.times
        return ago(times[0], times[-1]) if len(times) > 1 else ""


def _begun(series: Series) -> Series:
    """The series from its first known point, so that a young one fills the chart."""
    first = next(
        (n for n, depth in enumerate(series.depth) if not math.isnan(depth)), len(series.depth)
    )
    if not first:
        return series
    return Series(
        series.times[first:], series.depth[first:], series.rate_in[first:], series.rate_out[first:]
    )
