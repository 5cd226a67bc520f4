"""The table of options: kinds, bounds and choices (trionsq.options)."""

from __future__ import annotations

import dataclasses

import pytest

from trionsq.options import FLOAT, SECONDS, STRING, choice, option, table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """One option of each sort."""

    share: float = option("share", 0.5, FLOAT, "a share", low=0, high=1)
    least: float = option("least", 1.0, FLOAT, "bounded on one side", low=1)
    mode: str = option("mode", "fast", choice("mode", "fast", "slow"), "a choice")
    secret: str = option("secret", "", STRING, "a secret", secret=True)


def check(options: Options) -> None:
    """Check each value."""
    for name, spec in table(options):
        spec.check(getattr(options, name))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(share=1.5), "must be at least 0 and at most 1, not 1.5"),
        (Options(share=float("nan")), "must be finite"),
        (Options(least=0.5), "must be at least 1, not 0.5"),
        (Options(mode="no"), "must be one of fast, slow, not no"),
    ],
)
def test_a_value_out_of_range_is_refused(options: Options, text: str) -> None:
    """The error says which values are allowed."""
    with pytest.raises(ValueError, match=text):
        check(options)


def test_the_limits_themselves_are_allowed() -> None:
    """Both ends of a range belong to it."""
    check(Options(share=0, least=1))
    check(Options(share=1, mode="slow"))


def test_a_secret_is_not_in_the_repr() -> None:
    """A repr ends up in logs."""
    assert "hush" not in repr(Options(secret="hush"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m30s", 90.0), ("250", 0.25), ("-1", -1.0), ("1ms", 0.001)]
)
def test_seconds_are_read_from_text(text: str, seconds: float) -> None:
    """A bare number is milliseconds; -1 stays -1."""
    assert SECONDS.parse(text) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"), [("1m30s", 90.0), (250, 0.25), (-1, -1.0), ("1ms", 0.001)]
)
def test_seconds_are_read_from_a_config_file(value: object, seconds: float) -> None:
    """As from text; a number is milliseconds."""
    assert SECONDS.from_config(value) == seconds


@pytest.mark.parametrize("value", [2.5, "2.5"])
def test_numbers_are_read(value: object) -> None:
    """From text, and from a config file also as a number."""
    assert FLOAT.from_config(value) == 2.5
    assert FLOAT.parse("2.5") == 2.5


@pytest.mark.parametrize("value", [True, None, "x", [1]])
def test_what_is_no_number_is_refused(value: object) -> None:
    """A boolean is none either."""
    with pytest.raises(ValueError, match=r"must be a number|parse error"):
        FLOAT.from_config(value)
