"""JSON and redirects as nsqd writes them (trionsq.web.responses)."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trionsq.web.protocol import json_bytes
from trionsq.web.responses import redirect

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_json_says_what_it_was_given(value: object) -> None:
    """Whatever is escaped, a reader gets the same value."""
    assert json.loads(json_bytes(value)) == value


def test_json_is_compact_and_may_stand_in_html() -> None:
    """Keys keep their order; only what HTML or scripts could mistake is escaped."""
    assert json_bytes({"b": ["<é>"], "a": "&\u2028"}) == (
        '{"b":["\\u003cé\\u003e"],"a":"\\u0026\\u2028"}'.encode()
    )


def test_half_a_character_is_replaced() -> None:
    """A client's lone surrogate, which UTF-8 can't hold, must not break the document."""
    assert json_bytes("a\ud800b") == '"a\ufffdb"'.encode()


async def test_a_redirect_quotes_its_target() -> None:
    """The query of a redirected request can't smuggle HTML into the answer."""
    body = await redirect("GET", '/ping?a="<x>&').get_data(as_text=True)
    assert body == '<a href="/ping?a=&#34;&lt;x&gt;&amp;">Moved Permanently</a>.\n\n'
