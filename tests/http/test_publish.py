"""Text bodies of /mpub (trionsq.http.publish.LineSplitter)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.http import publish
from trionsq.http.publish import LineSplitter
from trionsq.web.protocol import HttpError

MSG_MAX, BODY_MAX = 5, 30

bodies = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b"ccc"]), max_size=25).map(b"".join)


def split(body: bytes, cuts: list[int]) -> list[bytes] | str:
    """The messages, or the refusal."""
    splitter = LineSplitter(MSG_MAX, BODY_MAX)
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    try:
        for start, end in pairwise(places):
            splitter.feed(body[start:end])
    except HttpError as refused:
        return f"{refused}"
    bodies = splitter.finish()
    return [] if bodies is None else list(bodies.slice(0, bodies.count))


def plainly(body: bytes) -> list[bytes] | str:
    """What `split` must give, at once and without pieces."""
    if any(len(line) > MSG_MAX for line in body[:BODY_MAX].split(b"\n")):
        return "413 MSG_TOO_BIG"
    if len(body) > BODY_MAX:
        return "413 BODY_TOO_BIG"
    return [line for line in body.split(b"\n") if line]


@given(bodies, st.lists(st.integers(0, 100), max_size=10))
def test_pieces_do_not_matter(body: bytes, cuts: list[int]) -> None:
    """Messages and refusals are the same however the body came in."""
    assert split(body, cuts) == plainly(body)


@given(bodies, st.lists(st.integers(0, 100), max_size=10), st.integers(0, BODY_MAX))
def test_a_large_body_has_the_same_messages(body: bytes, cuts: list[int], list_max: int) -> None:
    """What is kept in one object is what would be kept one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_MAX_LIST_BYTES", list_max)
        assert split(body, cuts) == plainly(body)


def test_lines_are_messages() -> None:
    """Empty lines are dropped, CR stays, the last line needs no newline."""
    assert split(b"a\n\nb\r\nc", []) == [b"a", b"b\r", b"c"]


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_nothing_is_no_message(body: bytes) -> None:
    """A body without text has no messages, which is no error."""
    assert split(body, []) == []
