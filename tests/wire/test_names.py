"""Names of topics and channels (trionsq.wire.names)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire.names import is_ephemeral, is_valid_name, quote

ALPHABET = ".abcxyzABCXYZ0189_-"


@given(st.text(ALPHABET, min_size=1, max_size=64))
def test_every_name_of_the_alphabet_is_valid(name: str) -> None:
    """1 to 64 letters, digits, dots, underscores and hyphens make a valid name."""
    assert is_valid_name(name.encode())


@given(st.text(ALPHABET, min_size=1, max_size=54))
def test_ephemeral_suffix_counts_into_the_64_bytes(stem: str) -> None:
    """The suffix may follow any stem, as long as both together have 64 bytes."""
    name = stem + "#ephemeral"
    assert is_valid_name(name.encode())
    assert is_ephemeral(name)
    assert not is_valid_name(b"a" * 55 + b"#ephemeral")


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"a" * 65,
        b"#ephemeral",
        b"t#other",
        b"t#ephemeral#ephemeral",
        b"t#EPHEMERAL",
        b"t#ephemeral ",
        b"t\n",
        b"t#ephemeral\n",
        b"t\x00",
        b"a b",
        b"a$b",
        b"t\xe9",
        "té".encode(),
        "t\u0661".encode(),
    ],
)
def test_everything_else_is_refused(name: bytes) -> None:
    """No other byte passes, not even a newline at the end or a digit of another script."""
    assert not is_valid_name(name)


def test_plain_name_is_not_ephemeral() -> None:
    """Only the whole suffix at the end makes a name ephemeral."""
    assert not is_ephemeral("ephemeral")


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"", b'""'),
        (b"t\xe9", rb'"t\xe9"'),
        ("té".encode(), '"té"'.encode()),
        (b'a"b\\c', rb'"a\"b\\c"'),
        (b"a\tb\x01", rb'"a\tb\x01"'),
        (b"\a\b\f\n\r\t\v", rb'"\a\b\f\n\r\t\v"'),
        (b"\x00\x1f\x7f ", rb'"\x00\x1f\x7f "'),
        (b"\xe2\x82", rb'"\xe2\x82"'),
        (b"\xed\xa0\x80", rb'"\xed\xa0\x80"'),
        ("\u0085\u00a0\u00ad\u200b".encode(), rb'"\u0085\u00a0\u00ad\u200b"'),
        ("\ufffd".encode(), '"\ufffd"'.encode()),
        ("\U0001f600".encode(), '"\U0001f600"'.encode()),
        ("\U000e0001".encode(), rb'"\U000e0001"'),
    ],
)
def test_quote_escapes_as_go_does(name: bytes, quoted: bytes) -> None:
    """Error texts quote a name to the byte as nsqd's do."""
    assert quote(name) == quoted


@given(st.binary(max_size=80))
def test_quoted_name_is_one_printable_line(name: bytes) -> None:
    """Whatever a client sent, its quoted form is valid UTF-8 and cannot break a log line."""
    assert quote(name).decode().isprintable()


@given(st.from_regex(r"[.a-zA-Z0-9_-]{1,64}", fullmatch=True))
def test_quote_leaves_valid_names_alone(name: str) -> None:
    """A name without odd characters is only put in quotes."""
    assert quote(name.encode()) == f'"{name}"'.encode()
