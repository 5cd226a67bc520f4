"""Charts as inline SVG, drawn here so that they are there without script.

The script `charts.js` adds the values under the pointer.

Only presentation attributes and classes are used, because the content security policy forbids
inline style. Each chart has a text for screen readers. A point that is not a finite number is a
gap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from admin.pages.format import clock, compact
from admin.watch.marks import Mark

__all__ = ["Line", "bar", "chart", "sparkline"]

Points = Sequence[float | None]

_MAX_POINTS: Final = 120  # of a line; more than a small chart has room for
_SPARK: Final = (120.0, 28.0)
_CHART: Final = (720.0, 180.0)
_PAD: Final = 2.0
_DAY_S: Final = 86_400
# Steps between the times of an axis, in seconds, and how many of them there are at most.
_TICKS_S: Final = (5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600)
_MAX_TICKS: Final = 6
_TICK: Final = '<line class="grid" x1="{0}%" x2="{0}%" y1="0" y2="100%"/>'
_TIME: Final = '<text x="{0}%" y="11">{1}</text>'
# Percent of the width.
_EDGE: Final = 3
_MAX_MARKS: Final = 50


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart; ``kind`` is the class for its colour (``in``, ``out``...)."""

    name: str
    points: Points
    kind: str = "depth"

    @property
    def last(self) -> float | None:
        """The newest value; None: unknown."""
        return _finite(self.points[-1:])[0] if self.points else None


def sparkline(points: Points, name: str, kind: str = "depth") -> Markup:
    """A line without axes; empty until there are two points."""
    values = _thinned(points)
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup('<span class="spark spark-none" aria-hidden="true"></span>')
    width, height = _SPARK
    top = max(known) or 1.0
    runs = list(_runs(values, _evenly(len(values)), _SPARK, top))
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


def chart(
    lines: Sequence[Line],
    times_s: Sequence[float],
    name: str,
    unit: str = "",
    *,
    until_s: float | None = None,
    marks: Sequence[Mark] = (),
) -> Markup:
    """Lines over time, with a scale, times and marks; a text until there are two points.

    Args:
        lines: each has as many points as there are times.
        times_s: when each point was taken, in seconds since 1970, ascending.
        name: the title.
        unit: follows the numbers of the scale, as ``/s``.
        until_s: where the chart ends; by default at the last point.
        marks: moments in it.
    """
    values = [_finite(line.points) for line in lines]
    known = [[value for value in line if value is not None] for line in values]
    if max((len(line) for line in known), default=0) < 2:
        return Markup('<p class="chart-none"><b>{}</b> {}</p>').format(
            name, "Nothing yet. The chart starts with the second answer."
        )
    first_s = times_s[0]
    end_s = max(times_s[-1] if until_s is None else until_s, first_s + 1.0)
    width, height = _CHART
    top = _round_top(max(max(line, default=0.0) for line in known))
    places = [min(max((at - first_s) / (end_s - first_s), 0.0), 1.0) for at in times_s]
    step = width / max(len(places), 1)
    drawn = Markup("").join(
        Markup('<g class="line-{}">{}</g>').format(
            line.kind, _drawn(list(_runs(points, places, _CHART, top)), width, height, step / 2)
        )
        for line, points in zip(lines, values, strict=True)
    )
    shown = [mark for mark in marks if first_s <= mark.at_s <= end_s][-_MAX_MARKS:]
    said = "; ".join(
        [
            f"{line.name} now {compact(line.last)}{unit}, "
            f"{compact(min(line_known))} to {compact(max(line_known))}{unit}"
            for line, line_known in zip(lines, known, strict=True)
            if line_known
        ]
        + [f"{clock(mark.at_s)}: {mark.text}" for mark in shown]
    )
    return Markup(
        '<figure class="chart" data-chart="{data}"><figcaption>{name}{legend}'
        '<span class="chart-at" aria-hidden="true"></span></figcaption>'
        '<div class="chart-area"><div class="chart-scale" aria-hidden="true">'
        "<span>{top}</span><span>{half}</span><span>0</span></div>"
        '<svg class="plot" role="img" focusable="false"><title>{said}</title>'
        '<svg viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" width="100%" '
        'height="100%">{grid}{drawn}</svg>{ticks}{marks}'
        '<line class="cursor" x1="0" x2="0" y1="0" y2="100%" visibility="hidden"/></svg>'
        '<svg class="chart-times" aria-hidden="true" focusable="false">{times}</svg></div>'
        "</figure>"
    ).format(
        data=_data(lines, values, times_s, end_s, shown, unit),
        name=name,
        legend=_legend(lines, unit),
        top=compact(top) + unit,
        half=compact(top / 2) + unit,
        width=width,
        height=height,
        said=f"{name}: {said}",
        grid=_grid(width, height),
        drawn=drawn,
        ticks=_each_tick(_TICK, first_s, end_s),
        marks=Markup("").join(_mark(mark, first_s, end_s) for mark in shown),
        times=_each_tick(_TIME, first_s, end_s),
    )


def _mark(mark: Mark, first_s: float, end_s: float) -> Markup:
    return Markup(
        '<g class="mark"><title>{1} {2}</title><line x1="{0}%" x2="{0}%" y1="0" y2="100%"/></g>'
    ).format(_percent(mark.at_s, first_s, end_s), clock(mark.at_s), mark.text)


def _percent(at_s: float, first_s: float, end_s: float) -> str:
    return f"{100 * (at_s - first_s) / (end_s - first_s):.2f}"


def _data(
    lines: Sequence[Line],
    values: Sequence[Points],
    times_s: Sequence[float],
    end_s: float,
    marks: Sequence[Mark],
    unit: str,
) -> str:
    """What the script shows under the pointer: JSON with times in seconds since 1970."""
    document = {
        "from": round(times_s[0]),
        "to": round(end_s),
        "unit": unit,
        "times": [round(at) for at in times_s],
        "lines": [
            [line.name, [None if v is None else float(f"{v:.4g}") for v in points]]
            for line, points in zip(lines, values, strict=True)
        ],
        "marks": [[round(mark.at_s), mark.text] for mark in marks],
    }
    return json.dumps(document, separators=(",", ":"))


def _each_tick(element: str, first_s: float, end_s: float) -> Markup:
    """``element`` for each round time, with its place in percent and its name (UTC)."""
    step_s = next((each for each in _TICKS_S if (end_s - first_s) / each <= _MAX_TICKS), _DAY_S)
    at_s = math.ceil(first_s / step_s) * step_s
    ticks = []
    while at_s <= end_s:
        place = _percent(at_s, first_s, end_s)
        # A name at the edge would be cut.
        if element != _TIME or _EDGE < float(place) < 100 - _EDGE:
            name = clock(at_s) if step_s < 60 else clock(at_s)[:5]
            ticks.append(Markup(element).format(place, name))
        at_s += step_s
    return Markup("").join(ticks)


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


def _legend(lines: Sequence[Line], unit: str) -> Markup:
    """The newest value of each line, a dash if it is unknown."""
    return Markup("").join(
        Markup('<span class="key line-{}"><i></i>{} <b>{}</b></span>').format(
            line.kind, line.name, compact(line.last) + unit
        )
        for line in lines
    )


def _grid(width: float, height: float) -> Markup:
    return Markup("").join(
        Markup('<line class="grid" x1="0" x2="{0:g}" y1="{1:g}" y2="{1:g}"/>').format(width, y)
        for y in (_PAD, height / 2, height - _PAD)
    )


def _finite(points: Points) -> list[float | None]:
    return [
        None if value is None or not math.isfinite(value) else max(float(value), 0.0)
        for value in points
    ]


def _thinned(points: Points) -> list[float | None]:
    """At most `_MAX_POINTS` points, the highest of each stretch, so that no peak is lost."""
    values = _finite(points)
    stretch = -(-len(values) // _MAX_POINTS)
    if stretch <= 1:
        return values
    thinned: list[float | None] = []
    for first in range(0, len(values), stretch):
        some = [value for value in values[first : first + stretch] if value is not None]
        thinned.append(max(some, default=None))
    return thinned


def _evenly(count: int) -> list[float]:
    return [place / max(count - 1, 1) for place in range(count)]


def _runs(
    values: Sequence[float | None], places: Sequence[float], size: tuple[float, float], top: float
) -> Iterator[list[tuple[float, float]]]:
    """Runs of points without a gap, as coordinates of the drawing; ``places`` are 0 to 1."""
    width, height = size
    run: list[tuple[float, float]] = []
    for place, value in zip(places, values, strict=True):
        if value is not None:
            y = height - _PAD - (height - 2 * _PAD) * min(value / top, 1.0)
            run.append((place * width, y))
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
