"""Numbers for people."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.pages import format as shown


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (999, "999ns"),
        (1_500, "1.5us"),
        (999_949, "999.9us"),
        (999_950, "1ms"),
        (20_000_000, "20ms"),
        (999_950_000, "1s"),
        (3_500_000_000, "3.5s"),
        (59_950_000_000, "1m0s"),
        (3_723_500_000_000, "1h2m3.5s"),
        (86_400_000_000_000, "1d0h"),
        (-1_500_000_000, "-1.5s"),
        (None, "–"),  # noqa: RUF001
    ],
)
def test_durations_are_short(ns: int | None, text: str) -> None:
    """As 1h2m3.5s, without a unit of which there are too many."""
    assert shown.duration_ns(ns) == text


@given(st.integers(min_value=-(2**80), max_value=2**80))
def test_numbers_have_separators_and_lose_nothing(value: int) -> None:
    """Without its separators a number is what it was."""
    assert int(shown.number(value).replace(",", "")) == value


@given(st.floats(min_value=0, max_value=1e20))
def test_compact_numbers_are_short_and_near(value: float) -> None:
    """Five characters at most, and right to three digits."""
    text = shown.compact(value)
    assert len(text) <= 5
    unit = "kMGTPE".find(text[-1]) + 1
    told = float(text.rstrip("kMGTPE")) * 1000**unit
    assert math.isclose(told, value, rel_tol=0.006, abs_tol=0.006)


@given(st.one_of(st.floats(), st.integers(), st.none()))
def test_whatever_is_given_is_shown(value: float | None) -> None:
    """Peers lie: nothing that they send makes a page fail."""
    whole = int(value) if value is not None and math.isfinite(value) else None
    texts = [
        shown.number(value),
        shown.compact(value),
        shown.rate(value),
        shown.duration_s(value),
        shown.when(value),
        shown.ago(value, 1e9),
        shown.duration_ns(whole),
        shown.nbytes(whole),
    ]
    assert all(texts)
    assert re.fullmatch(r"|\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\dZ", shown.iso_time(value))


def test_rates() -> None:
    """Small ones have digits, large ones separators, and a little is not nothing."""
    rates = (0, 0.004, 0.05, 1.234, 12.34, 99.96, 12345.6, None)
    assert [shown.rate(value) for value in rates] == [
        "0", "<0.01", "0.05", "1.23", "12.3", "100", "12,346", shown.UNKNOWN,
    ]  # fmt: skip


def test_times_and_sizes() -> None:
    """Coarse ages, UTC times, binary sizes."""
    assert [shown.ago(at, 1e6) for at in (1e6, 1e6 - 90, 1e6 - 600, 1e6 - 8e3, 1e6 - 9e5)] == [
        "now", "90 s", "10 min", "2 h", "10 d",
    ]  # fmt: skip
    assert shown.when(1_700_000_000) == "2023-11-14 22:13:20"
    assert [shown.nbytes(size) for size in (0, 1023, 1024, 1536, 10**12)] == [
        "0 B", "1 KiB", "1 KiB", "1.5 KiB", "931 GiB",
    ]  # fmt: skip
    assert shown.percent(1, 8) == "12 %"
    assert shown.percent(1, 0) == shown.UNKNOWN
