"""The filter for JSON messages: which pass, and with which fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.tools.json_filter import JsonFilter, Rejection

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", max_size=2), VALUES), st.lists(st.text("abc", max_size=2)))
def test_only_the_fields_to_be_kept(message: dict[str, Any], keep: list[str]) -> None:
    """These fields with their values, sorted; without a list the body is unchanged."""
    body = json.dumps(message).encode()
    kept = JsonFilter(keep, "", "").filtered_body(body)
    assert isinstance(kept, bytes)
    if not keep:
        assert kept == body
        return
    found = json.loads(kept)
    assert found == {name: message[name] for name in message.keys() & set(keep)}
    assert list(found) == sorted(found)


@given(st.binary())
def test_any_bytes(body: bytes) -> None:
    """Any body either passes as JSON or is dropped; nothing is raised."""
    passed = JsonFilter(["a"], "", "").filtered_body(body)
    assert passed is Rejection.DROP or (
        isinstance(passed, bytes) and json.loads(passed) is not None
    )


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"a": 1.0}', b'{"a":1}'),
        (b'{"a": -2e3}', b'{"a":-2000}'),
        (b'{"a": 1.5}', b'{"a":1.5}'),
        (b'{"a": 1e300}', b'{"a":1e+300}'),
        (b'{"a": 12345678901234567890123}', b'{"a":12345678901234567890123}'),
        (b'{"a": "\xc3\xa9\xff"}', b'{"a":"\xc3\xa9\xef\xbf\xbd"}'),
        (b'{"a": "\\ud800"}', b'{"a":"\\ud800"}'),
        (b'{"a": 1, "a": 2}', b'{"a":2}'),
        (b"null", b"{}"),
    ],
)
def test_values(body: bytes, kept: bytes) -> None:
    """Whole floats become integers; invalid UTF-8 does not end the tool."""
    assert JsonFilter(["a"], "", "").filtered_body(body) == kept


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"1",
        b'"a"',
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000,
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_can_not_be_decoded(body: bytes) -> None:
    """A body that is not JSON is dropped."""
    assert JsonFilter(["a"], "", "").filtered_body(body) is Rejection.DROP


@pytest.mark.parametrize(
    ("value", "body", "verdict"),
    [
        ("", b'{"a": null}', None),
        ("", b'{"b": 1}', Rejection.DROP),
        ("", b"null", Rejection.DROP),
        ("x", b'{"b": 1}', Rejection.REQUEUE),
        ("x", b'{"a": "x"}', None),
        ("x", b'{"a": "y"}', Rejection.DROP),
        ("1", b'{"a": "1"}', None),
        ("1", b'{"a": 1}', None),
        ("1", b'{"a": 1.0}', None),
        ("1.50", b'{"a": 1.5}', None),
        ("1.50", b'{"a": "1.5"}', Rejection.DROP),
        ("1", b'{"a": 2}', Rejection.DROP),
        ("x", b'{"a": 1}', Rejection.DROP),
        ("1", b'{"a": true}', Rejection.DROP),
        ("true", b'{"a": true}', Rejection.DROP),
        ("x", b'{"a": ["x"]}', Rejection.DROP),
    ],
)
def test_the_required_field(value: str, body: bytes, verdict: Rejection | None) -> None:
    """Strings are compared as strings, numbers as numbers; other values never match."""
    fields = JsonFilter([], "a", value)
    assert fields.is_active
    assert fields.filtered_body(body) == (body if verdict is None else verdict)


def test_without_options() -> None:
    """Without options no message is decoded."""
    assert not JsonFilter([], "", "1").is_active
