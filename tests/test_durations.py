"""Durations: every notation that flags and config files may use, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq import durations


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("250ms", 250_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("2us", 2_000),
        ("2\u00b5s", 2_000),
        ("2\u03bcs", 2_000),
        ("-1m", -60_000_000_000),
        ("+1m", 60_000_000_000),
        ("1s1s", 2_000_000_000),
        ("0.3ns", 0),
        ("-9223372036854775808ns", durations.MIN_NS),
        ("9223372036854775807ns", durations.MAX_NS),
    ],
)
def test_reads_each_notation(text: str, expected_ns: int) -> None:
    """Units, fractions, signs and sequences mean what they mean to NSQ's daemons."""
    assert durations.parse(text) == expected_ns


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "10", "s", ".s", "+", "-", "1 s", " 1s", "1s ", "1s\n", "--1s", "1s2"),
        *("1d", "1S", "1e3s", "\u0661s"),
        *("9223372036854775808ns", "300000h10000000h", "9" * 5_000 + "s"),
    ],
)
def test_refuses_what_is_no_duration(text: str) -> None:
    """A bare number, an unknown unit or a value beyond 64 bits is an error, never a guess."""
    with pytest.raises(ValueError, match="duration"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("duration_ns", "expected"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5\u00b5s"),
        (250_000_000, "250ms"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (-5_400_000_000_000, "-1h30m0s"),
    ],
)
def test_shows_the_usual_notation(duration_ns: int, expected: str) -> None:
    """Usage texts show durations as NSQ's own do."""
    assert durations.render(duration_ns) == expected


@given(st.integers(durations.MIN_NS, durations.MAX_NS))
def test_what_is_shown_reads_as_the_same_value(duration_ns: int) -> None:
    """No nanosecond is lost between render and parse."""
    assert durations.parse(durations.render(duration_ns)) == duration_ns


@given(st.text(alphabet="0123456789.+-nsuµmh ", max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    """Whatever an operator types, the answer is nanoseconds in range or a ValueError."""
    try:
        duration_ns = durations.parse(text)
    except ValueError:
        return
    assert durations.MIN_NS <= duration_ns <= durations.MAX_NS
