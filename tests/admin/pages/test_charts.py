"""Drawings of whatever the history holds."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from admin.pages.charts import SeriesCharts
from admin.pages.drawing import Line, bar, chart, sparkline
from admin.watch.history import WHOLE, History
from admin.watch.marks import Mark
from admin.watch.snapshot import Row, Snapshot

POINTS = st.lists(st.one_of(st.none(), st.floats()), max_size=400)


def coordinates(markup: str) -> list[tuple[float, float]]:
    """All points of all lines; the markup must be well-formed."""
    tree = ET.fromstring(f"<x>{markup}</x>")
    drawn = [each.get("points", "") for each in tree.iter() if each.tag.startswith("poly")]
    pairs = (pair.split(",") for points in drawn for pair in points.split())
    return [(float(x), float(y)) for x, y in pairs]


@given(POINTS)
def test_a_line_stays_in_its_frame(points: list[float | None]) -> None:
    """Gaps, infinities, what is negative or huge: well-formed, and inside."""
    for x, y in coordinates(sparkline(points, "<depth>")):
        assert 0 <= x <= 120
        assert 0 <= y <= 28
    times = [float(n) for n in range(len(points))]
    for x, y in coordinates(chart([Line("in & out", points)], times, "<name>", "/s")):
        assert 0 <= x <= 720
        assert 0 <= y <= 180


@given(st.floats(), st.floats())
def test_a_bar_is_never_longer_than_its_frame(value: float, top: float) -> None:
    """Whatever the figures are."""
    drawn = ET.fromstring(bar(value, top)).findall("rect")[1]
    assert 0 <= float(drawn.get("width", "")) <= 100


def test_a_line_says_what_it_shows() -> None:
    """Who does not see it is told the last, the lowest and the highest."""
    assert "<title>depth: now 3, 1 to 1.2k</title>" in sparkline([1, math.nan, 1200, 3], "depth")


def test_no_peak_is_lost_by_thinning() -> None:
    """The highest of 1,000 points is at the top."""
    points: list[float | None] = [1.0] * 1000
    points[777] = 50.0
    assert min(y for _, y in coordinates(sparkline(points, "depth"))) == 2.0


def test_gaps_are_gaps_and_single_points_are_seen() -> None:
    """Nothing is drawn where nothing is known; a point alone is a short line."""
    drawn = sparkline([1, 1, None, None, 1, None], "depth")
    assert drawn.count("<polyline") == 2
    lone = drawn.rpartition('<polyline class="line" fill="none" points="')[2].partition('"')[0]
    first, last = (float(pair.split(",")[0]) for pair in lone.split())
    assert last > first


def test_nothing_to_draw_is_said() -> None:
    """One point is no line yet."""
    assert "second answer" in chart([Line("in", [1.0])], [1.0], "Rates")
    assert "<svg" not in sparkline([1.0], "depth")


def test_the_scale_ends_at_a_round_figure() -> None:
    """1, 2 or 5 times a power of ten."""
    for highest, top in ((0.0, "1"), (3.0, "5"), (11.0, "20"), (999.0, "1k"), (1000.0, "1k")):
        assert f"<span>{top}</span>" in chart([Line("in", [0, highest])], [0, 1], "Rates")


def test_times_and_marks_stand_where_they_were() -> None:
    """Round times in UTC below the chart; a mark by its place, its time and its text."""
    times = [1_790_000_000.0 + 60 * n for n in range(61)]
    drawn = chart(
        [Line("depth", [1.0] * 61)],
        times,
        "Depth",
        until_s=times[-1],
        marks=[Mark(times[15], "pause <channel> by ann"), Mark(times[0] - 10, "earlier")],
    )
    root = ET.fromstring(drawn)
    texts = [(each.get("x"), each.text) for each in root.iter("text")]
    assert texts[0] == ("11.11%", "14:20")
    assert [text for _, text in texts][1:3] == ["14:30", "14:40"]
    [mark] = [each for each in root.iter("g") if each.get("class") == "mark"]
    title, line = list(mark)
    assert title.text == "14:28:20 pause <channel> by ann"
    assert line.get("x1") == "25.00%"
    data = json.loads(root.get("data-chart", ""))
    assert data["marks"] == [[1_790_000_900, "pause <channel> by ann"]]
    assert (len(data["times"]), data["lines"][0][0]) == (61, "depth")


async def test_a_mark_at_the_start_of_the_first_slot_is_drawn() -> None:
    """A node may restart right after nsqadmin has started."""
    history = History(3600.0, 15.0)
    began_s = 1_790_000_010.0 // 15 * 15
    for number in range(3):
        taken_s = began_s + 1 + 15 * number
        total = Row(depth=5, nodes=1, rate_in=1.0, rate_out=1.0)
        await history.add_snapshot(Snapshot(1, taken_s, total=total))
        marks = [Mark(began_s + 0.5, "restart")]
        charts = SeriesCharts(history, WHOLE, now_s=taken_s + 1, marks=marks)
        assert "restart" in charts.depth_chart(5), number


async def test_the_last_figure_is_that_of_the_page() -> None:
    """Tile and legend show one figure, and the chart ends with it, now."""
    history = History(3600.0, 15.0)
    for number in range(4):
        total = Row(depth=5, nodes=1, rate_in=1.0, rate_out=1.0)
        await history.add_snapshot(Snapshot(1, 1_790_000_000.0 + 15 * number, total=total))
    charts = SeriesCharts(history, WHOLE, now_s=1_790_000_100.0)
    drawn = charts.cards(depth=9, rate_in=2.0)
    assert "depth <b>9</b>" in drawn
    assert "published <b>2/s</b>" in drawn
    assert "at least <b>9</b>" in charts.cards(depth=9, at_least=True)
    assert charts.latency_chart([(0.99, 0.5)]) is None
