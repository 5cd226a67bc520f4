"""Foreign text and grouped errors as a log line shows them."""

from __future__ import annotations

import pytest

from trionsq.logtext import first_error, printable


@pytest.mark.parametrize("text", ["", "E_INVALID no such thing", "Zürich 東京", 'it\'s \\ "x"'])
def test_printable_text_stays(text: str) -> None:
    """A short text without unprintable characters is shown as it is."""
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\ud800", r"\ud800"),
        ("é\\\n", r"\xe9\\\n"),
        ("\u202eevil", r"\u202eevil"),
    ],
)
def test_unprintable_text_is_escaped(text: str, shown: str) -> None:
    """No character of a peer ends the line or moves the terminal's cursor."""
    assert printable(text) == shown


def test_length() -> None:
    """What is shown is bounded, also if each character becomes ten; the dots tell of the rest."""
    assert printable("x" * 200) == "x" * 200
    assert printable("x" * 201) == "x" * 200 + "..."
    assert printable("xyz", 2) == "xy..."
    assert len(printable("\U000e0001" * 1000)) == 203


def test_the_first_error_of_a_group() -> None:
    """Nested groups are opened; an error that is no group is the answer itself."""
    error = ValueError("x")
    assert first_error(error) is error
    inner = BaseExceptionGroup("inner", [error, KeyError()])
    assert first_error(ExceptionGroup("outer", [ExceptionGroup("i", [error])])) is error
    assert first_error(BaseExceptionGroup("outer", [inner, OSError()])) is error
