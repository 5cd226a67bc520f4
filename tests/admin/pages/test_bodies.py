"""Messages shown to people, and typed by them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.pages.bodies import BadBodyError, display_body, parse_body
from tests.soak import by_level, more_in_soak

JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


def message(body: bytes) -> dict[str, Any]:
    """As nsqd's /topic/peek has it."""
    try:
        text, encoding = body.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    return {"body": text, "body_encoding": encoding, "body_size": len(body), "body_cut": False}


@more_in_soak
@settings(max_examples=by_level(test=25, short=100, full=1_000))
@given(st.one_of(st.lists(JSON), st.dictionaries(st.text(), JSON)), st.booleans())
def test_json_keeps_its_meaning(value: Any, ascii_only: bool) -> None:
    """Indented JSON is the same document."""
    shown = display_body(message(json.dumps(value, ensure_ascii=ascii_only).encode()))
    assert shown.kind == "JSON"
    assert json.loads(shown.text) == value


def test_json_keeps_its_spelling() -> None:
    """Long numbers lose no digit, and a key that is there twice is shown twice."""
    shown = display_body(message(b'{"a":1.10,"a":123456789012345678901234567890,"b":[],"c":{}}'))
    assert shown.text.splitlines() == [
        "{",
        '  "a": 1.10,',
        '  "a": 123456789012345678901234567890,',
        '  "b": [],',
        '  "c": {}',
        "}",
    ]


@given(st.binary(max_size=6000))
def test_any_body_is_shown(body: bytes) -> None:
    """Bytes that are no text are shown as hex, all of them up to 4 KiB."""
    shown = display_body(message(body))
    assert shown.text
    if shown.kind == "binary":
        digits = "".join(line[10:58].replace(" ", "") for line in shown.text.splitlines())
        assert bytes.fromhex(digits) == body[:4096]
        assert bool(shown.cut) == (len(body) > 4096)


@given(st.dictionaries(st.sampled_from(["body", "body_encoding", "body_size", "body_cut"]), JSON))
def test_a_node_may_answer_anything(lie: dict[str, Any]) -> None:
    """No answer of a node makes the page fail."""
    assert isinstance(display_body(lie).text, str)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5_000, "{bad", "[1,]", '"\\ud800"'])
def test_what_is_no_json_is_text(text: str) -> None:
    """Also what would be too deep to look into."""
    assert display_body(message(text.encode())).kind == "text"


@given(st.binary(max_size=100))
def test_what_is_typed_becomes_bytes(body: bytes) -> None:
    """Hex and Base64, with whatever space between."""
    assert parse_body(body.hex(" ", 2), "hex") == body
    assert parse_body("0x" + body.hex().upper(), "hex") == body
    assert parse_body(base64.encodebytes(body).decode(), "base64") == body


@pytest.mark.parametrize(("typed", "form"), [("abc", "hex"), ("xy", "hex"), ("a=b", "base64")])
def test_what_can_not_be_read_is_refused(typed: str, form: str) -> None:
    """Rather than published as something else."""
    with pytest.raises(BadBodyError):
        parse_body(typed, form)
