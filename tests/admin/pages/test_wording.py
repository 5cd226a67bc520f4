"""Texts of others, as a reader gets them."""

from __future__ import annotations

import pytest

from admin.pages.format import age
from admin.pages.search import BadSearchError, make_matcher
from admin.pages.trend import TREND_S, describe_trend, find_span
from admin.pages.wording import plain_error, plural, visible
from admin.upstream import NodeWarning, UpstreamError
from tests.admin.pages.support import Nodes, channel, pages, topic

NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("日本語 é \U0001f468\u200d\U0001f469", "日本語 é \U0001f468\u200d\U0001f469"),
        ("0.1/live\u202eevil", "0.1/live\\u202eevil"),
        ("a\x00b\x1b[0m", "a\\u0000b\\u001b[0m"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\ufeff\u2066x\U000e0041", "\\ufeff\\u2066x\\U000e0041"),
    ],
)
def test_what_can_not_be_seen_is_written_out(text: str, expected: str) -> None:
    """Control characters, marks that reorder or hide, and tags; scripts and emojis stay."""
    assert visible(text) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            UpstreamError("n:1", 'Get "http://n:1/stats?x=1": no answer within 5 s'),
            "n:1: no answer within 5 s",
        ),
        (
            UpstreamError(
                "n:1", 'got response 404 Not Found "{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}"', 404
            ),
            "n:1: it has no such channel",
        ),
        (UpstreamError("n:1", 'got response 500 X "no"', 500), "n:1: no (500)"),
        (
            UpstreamError("n:1", 'Post "http://n:1/x": reset', may_have_happened=True),
            "n:1: reset. It is not known whether the node did it.",
        ),
    ],
)
def test_an_error_names_the_node_and_says_what_is_wrong(
    error: UpstreamError, expected: str
) -> None:
    """No quoted URL, no escaped JSON."""
    assert plain_error(NodeWarning(error)) == expected


def test_all_that_failed_are_one_sentence() -> None:
    """With each reason on a line."""
    text = 'failed to query any nsqlookupd: Get "http://l:1/nodes": connection refused\nl:2: late'
    assert plain_error(text) == "No nsqlookupd answered. l:1: connection refused\nl:2: late"


def test_numbers_and_nouns_agree() -> None:
    """One is singular, zero is not; an age has whole seconds, and is never negative."""
    assert [plural(count, "topic") for count in (0, 1, 1234)] == [
        "0 topics", "1 topic", "1,234 topics",
    ]  # fmt: skip
    assert plural(2, "match", "matches") == "2 matches"
    assert [age(seconds) for seconds in (-0.04, 1404.3, 0.4)] == ["0s", "23m24s", "0s"]


@pytest.mark.parametrize(
    ("q", "text", "expected"),
    [
        ("a b", "b-A", True),
        ("a -b", "ab", False),
        ("a -b", "ac", True),
        ("/^ord.*s$/", "Orders", True),
        ("-/^ord/", "orders", False),
        ("-", "a-b", True),
        ("//", "a//b", True),
    ],
)
def test_a_search_has_words_exclusions_and_expressions(q: str, text: str, expected: bool) -> None:
    """In any case."""
    assert make_matcher(q)(text) is expected


def test_an_expression_can_not_hang_the_server() -> None:
    """What takes others exponential time is linear here; what is none is refused by name."""
    assert make_matcher(r"/(a+)+$/")("a" * 500 + "!") is False
    with pytest.raises(BadSearchError, match=r"/\[/ is not a regular expression"):
        make_matcher("/[/")


@pytest.mark.parametrize(
    ("depths", "depth", "expected"),
    [
        ([1000.0, 900.0, 800.0, 700.0], 600, "Empty in about 6 min if it goes on like this"),
        ([100.0, 200.0, 300.0, 400.0], 500, "The depth grows by 100 messages a minute."),
        ([500.0, 500.0, 501.0, 500.0], 500, "The depth is steady."),
        ([NAN, NAN, NAN, 500.0], 500, ""),
        ([5.0, 4.0, 3.0, 2.0], 0, ""),
    ],
)
def test_a_trend_is_a_sentence(depths: list[float], depth: int, expected: str) -> None:
    """When it will be empty, or how fast it grows; nothing where too little is known."""
    text = describe_trend(depths, 60.0, depth, is_paused=False)
    assert text.startswith(expected) if expected else text == ""


def test_a_trend_does_not_look_over_a_jump() -> None:
    """A node that fell silent, a restart, an emptied queue: the depth changes at once."""
    assert find_span([], 5000.0, 15.0) == TREND_S
    assert find_span([1000.0, 4900.0], 5000.0, 15.0) == 70.0
    assert find_span([4990.0], 5000.0, 15.0) == 0.0


async def test_no_page_hides_what_a_client_says(autojump_clock: object) -> None:
    """D12, D13: the user agent's mark is written out; a host name without a client id is shown."""
    client = {
        "client_id": "",
        "hostname": "\u65e5\u672c\u8a9e",
        "user_agent": "live\u202eevil/1.0",
        "remote_address": "10.0.0.1:5",
    }
    nodes = Nodes({"one:4151": [topic("t", channel("c", clients=[client], client_count=1))]})
    async with pages(nodes) as found:
        for path in ("/topics/t/c", "/clients", "/nodes/one:4151?show=clients"):
            page = await found.page(path)
            assert "\u202e" not in page, path
            assert "live\\u202eevil/1.0" in page, path
            assert "\u65e5\u672c\u8a9e" in page, path
