"""Parameters (trionsq.web.request)."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.web.protocol import HttpError, flag, parse_query, valid_argument, valid_topic_name


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8))))
def test_what_was_escaped_comes_back(pairs: list[tuple[bytes, bytes]]) -> None:
    """Any bytes can be sent, and the first value of a name wins."""
    raw = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in pairs)
    expected: dict[bytes, bytes] = {}
    for name, value in pairs:
        expected.setdefault(name, value)
    assert parse_query(raw.encode()) == expected


@pytest.mark.parametrize("raw", [b"a=%", b"a=%4", b"a=%zz", b"%ZZ=1", b"a;b", b"x=1&a=1;2"])
def test_a_malformed_query_is_refused(raw: bytes) -> None:
    """A bad escape or a raw semicolon anywhere."""
    with pytest.raises(HttpError, match="400 INVALID_REQUEST"):
        parse_query(raw)


def test_empty_pieces_mean_nothing() -> None:
    """Surplus ampersands are ignored; a name may lack its value."""
    assert parse_query(b"&&a&b=&") == {b"a": b"", b"b": b""}


@pytest.mark.parametrize(
    ("given_value", "meant"),
    [(b"true", True), (b"1", True), (b"false", False), (b"0", False), (b"no", True), (b"", True)],
)
def test_a_flag_has_four_spellings(given_value: bytes, meant: bool) -> None:
    """Anything else is the default."""
    assert flag({b"x": given_value}, b"x", default=True) is meant


@pytest.mark.parametrize(
    ("raw", "code"),
    [(b"", "MISSING_ARG_TOPIC"), (b"topic=", "INVALID_TOPIC"), (b"topic=%ff", "INVALID_TOPIC")],
)
def test_a_topic_must_be_named(raw: bytes, code: str) -> None:
    """Missing and invalid names are told apart."""
    with pytest.raises(HttpError, match=f"400 {code}"):
        valid_topic_name(parse_query(raw))


@pytest.mark.parametrize(
    ("raw", "refused"),
    [
        (b"topic=t", "400 MISSING_ARG_CHANNEL"),
        (b"channel=", "400 INVALID_ARG_CHANNEL"),
        (b"channel=c%0a", "400 INVALID_ARG_CHANNEL"),
        (b"channel=*", "400 INVALID_ARG_CHANNEL"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(raw: bytes, refused: str) -> None:
    """Missing or invalid, as the endpoints of channels say it."""
    with pytest.raises(HttpError, match=refused):
        valid_argument(parse_query(raw), b"channel")
    assert valid_argument(parse_query(b"channel=c%23ephemeral"), b"channel") == "c#ephemeral"
