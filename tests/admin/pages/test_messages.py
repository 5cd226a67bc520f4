"""The message browser: over all nodes, page by page, and what is done with one message."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from trio.testing import MockClock

from admin.pages.scan import MAX_SCANNED, BadWishError, Wish, parse_time
from tests.admin.pages.support import Nodes, Pages, channel, pages, parsed, topic


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Polls take no time."""
    return autojump_clock


pytestmark = pytest.mark.usefixtures("clock")


def message(number: int, body: str = "", **more: Any) -> dict[str, Any]:
    """A message of /channel/peek."""
    body = body or f'{{"n": {number}}}'
    return {
        "id": f"{number:016x}", "timestamp": number * 10**9, "attempts": number % 5,
        "where": "memory", "body_size": len(body), "body_cut": False,
        "body_encoding": "utf-8", "body": body, **more,
    }  # fmt: skip


def cluster(*messages: dict[str, Any]) -> Nodes:
    """Two nodes with the same messages each."""
    topics = [topic("t", channel("c", depth=len(messages)))]
    return Nodes({"one:4151": topics, "two:4151": topics}, messages=list(messages))


def shown(page: str) -> list[str]:
    """The bodies on a page."""
    return [part.split("</pre>")[0].split(">", 1)[1] for part in page.split("<pre")[1:]]


def following(page: str) -> str:
    """The link to the next page; "" if there is none."""
    return next(
        (a["href"] for tag, a in parsed(page).tags if tag == "a" and a.get("rel") == "next"), ""
    )


async def test_pages_go_over_all_nodes_and_show_each_message_once() -> None:
    """To the end of the last node; what no search asked for is shown as it is."""
    async with pages(cluster(*(message(n, f"m{n}") for n in range(12)))) as found:
        path, bodies, count = "/peek?topic=t&channel=c", list[str](), 0
        while path:
            page = await found.page(path)
            bodies += shown(page)
            path, count = following(page), count + 1
        assert bodies == [f"m{n}" for n in range(12)] * 2
        assert count == 3
        page = await found.page("/peek?topic=t&channel=c&node=two:4151&limit=25")
        assert len(shown(page)) == 12
        assert not following(page)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("text=ANN", [3]),
        ("json=n=7", [7]),
        ("json=$.n=3", [3]),
        ("json=tags[1]=b", [3]),
        ("json=tags[5]", []),
        ("json=name", [3]),
        ("attempts=4", [4, 9]),
        ("since=1970-01-01T00:00:05&until=1970-01-01T00:00:07", [5, 6]),
        ("text=Ann&attempts=4", []),
    ],
)
async def test_a_search_finds_by_text_path_time_and_attempts(
    query: str, numbers: list[int]
) -> None:
    """On all nodes; the page says how many it looked at."""
    bodies = [message(n) for n in range(10)]
    bodies[3] = message(3, json.dumps({"n": 3, "name": "Ann", "tags": ["a", "b"]}))
    async with pages(cluster(*bodies)) as found:
        page = await found.page(f"/peek?topic=t&channel=c&view=raw&{query}")
        expected = [str(bodies[n]["body"]) for n in numbers] * 2
        assert [each.replace("&#34;", '"') for each in shown(page)] == expected
        assert "Looked at 20 messages: that is all." in page


async def test_a_search_is_bounded_and_goes_on_where_it_was() -> None:
    """A request looks at so many messages; the next one finds the rest, none twice."""
    many = [message(n, f"m{n}") for n in range(MAX_SCANNED + 600)]
    many[-1] = message(1, "needle")
    async with pages(cluster(*many)) as found:
        before = len(found.nodes.gets)
        page = await found.page("/peek?topic=t&channel=c&node=one:4151&text=needle")
        assert shown(page) == []
        assert f"Looked at {MAX_SCANNED:,} messages; there are more, on one:4151." in page
        assert len(found.nodes.gets) - before < 40
        link = following(page)
        assert parse_qs(urlsplit(link).query)["at"] == [str(MAX_SCANNED)]
        page = await found.page(link)
        assert shown(page) == ["needle"]
        assert not following(page)


def test_a_wish_that_makes_no_sense_is_told() -> None:
    """Rather than taken for nothing found."""
    for query in ({"json": "a[x]"}, {"since": "yesterday"}, {"attempts": "many"}):
        with pytest.raises(BadWishError):
            Wish.parse(query)
    assert parse_time("2026-01-01T00:00:00+01:00") == parse_time("2025-12-31T23:00:00")


async def test_bodies_are_pretty_raw_or_hex() -> None:
    """As somebody chooses."""
    async with pages(cluster(message(1, '{"a":1}'))) as found:
        path = "/peek?topic=t&channel=c&node=one:4151&view="
        assert shown(await found.page(path + "pretty")) == ["{\n  &#34;a&#34;: 1\n}"]
        assert shown(await found.page(path + "raw")) == ["{&#34;a&#34;:1}"]
        assert "7b 22 61 22 3a 31 7d" in shown(await found.page(path + "hex"))[0]


async def test_a_body_is_downloaded_as_it_is() -> None:
    """Also binary, and when the message has moved forward; another one is not taken for it."""
    raw = bytes(range(256))
    odd = message(5, base64.b64encode(raw).decode(), body_encoding="base64")
    async with pages(cluster(message(1), odd)) as found:
        path = f"/message?topic=t&channel=c&state=queued&node=one:4151&id={odd['id']}&offset="
        for offset in (1, 400):
            answer = await found.get(f"{path}{offset}")
            assert await answer.get_data(as_text=False) == raw
            assert answer.headers["Content-Type"] == "application/octet-stream"
            assert "sandbox" in answer.headers["Content-Security-Policy"]
        answer = await found.get(path.replace(odd["id"], "f" * 16) + "1")
        assert answer.status_code == 404
        answer = await found.get(path.replace("one:4151", "evil:80") + "1")
        assert answer.status_code == 404
        assert not [url for url in found.nodes.gets if "evil" in url]


async def test_a_message_is_published_again_to_any_topic() -> None:
    """The form has its body; binary as hex."""
    raw = base64.b64encode(b"\x00\xff").decode()
    odd = message(5, raw, body_encoding="base64")
    async with pages(cluster(message(1, "\n<b>x</b>"), odd)) as found:
        path = "/publish?topic=t&channel=c&state=queued&node=one:4151"
        page = await found.page(f"{path}&id={message(1)['id']}&offset=0")
        assert ">\n\n&lt;b&gt;x&lt;/b&gt;</textarea>" in page
        page = await found.page(f"{path}&id={odd['id']}&offset=1")
        assert ">\n00 ff</textarea>" in page
        answer = await found.send("/do/publish", topic="t", node="", body="00 ff", format="hex")
        assert answer.status_code == 303
        assert found.nodes.posted[-1] == ("http://one:4151/pub?topic=t", b"\x00\xff")


async def act(found: Pages, verb: str, node: str = "one:4151") -> str:
    id_ = message(1)["id"]
    form = {"topic": "t", "channel": "c", "node": node, "id": id_, "verb": verb}
    answer = await found.send("/do/message", **form)
    assert answer.status_code == 303
    return parsed(await found.page(answer.headers["Location"])).text


async def test_a_message_in_flight_is_requeued_or_finished() -> None:
    """At its node, and in the audit; what is not in flight any more is told."""
    async with pages(cluster(message(1))) as found:
        assert "Requeued message" in await act(found, "requeue")
        assert "Finished message" in await act(found, "finish")
        paths = [urlsplit(url).path for url, _ in found.nodes.posted if "one:4151" in url]
        assert paths == ["/channel/requeue", "/channel/finish"]
        actions = [entry.action for entry in found.dashboard.access.audit.entries()]
        assert actions[:2] == ["finish_message", "requeue_message"]
        assert "Nothing was done" in await act(found, "finish", "evil:80")
        found.nodes.refused["one:4151"] = 404
        assert "Nothing was done" in await act(found, "requeue")
        (entry, *_) = found.dashboard.access.audit.entries()
        assert entry.failed


async def test_a_deferred_message_is_cancelled_or_due_now() -> None:
    """By its id and its due time, as nsqd asks for it; what an older nsqd can't is told."""
    due = message(1, due=5 * 10**18, due_in_seconds=-0.04)
    async with pages(cluster(due)) as found:
        page = await found.page("/peek?topic=t&channel=c&state=deferred&node=one:4151")
        assert "due now" in page
        assert 'name="due" value="5000000000000000000"' in page
        form = {"topic": "t", "channel": "c", "node": "one:4151", "id": due["id"]}
        answer = await found.send("/do/message", **form, verb="cancel", due=str(due["due"]))
        assert "Cancelled message" in parsed(await found.page(answer.headers["Location"])).text
        (url, _) = found.nodes.posted[-1]
        assert urlsplit(url).path == "/channel/deferred/cancel"
        assert parse_qs(urlsplit(url).query)["due"] == [str(due["due"])]
        found.nodes.refused["one:4151"] = 404
        answer = await found.send("/do/message", **form, verb="requeue", due=str(due["due"]))
        (url, _) = found.nodes.posted[-1]
        assert urlsplit(url).path == "/channel/deferred/requeue"
        answer = await found.send("/do/message", **form, verb="cancel", due="1")
        assert "Nothing was done." in parsed(await found.page(answer.headers["Location"])).text


async def test_a_log_shows_what_was_consumed_by_time() -> None:
    """From the chosen time on; a token leads to the next page."""
    lines = [
        {"note": "begin", "topic": "t", "from": 7, "to": None, "next": "x"},
        {
            "sequence": 7,
            "id": "a" * 16,
            "timestamp": 1_800_000_000 * 10**9,
            "body": "old",
            "body_encoding": "utf-8",
        },
        {"note": "end", "reason": "count", "sequence": 8, "next": "12.8"},
    ]
    nodes = cluster()
    nodes.settings = {"topics": [{"topic": "t", "storage": "log", "durability": "always"}]}
    nodes.documents["/topic/log"] = b"\n".join(json.dumps(line).encode() for line in lines)
    async with pages(nodes) as found:
        path = "/peek?topic=t&channel=c&state=log&node=one:4151&since=2026-01-01T10:00&limit=10"
        page = await found.page(path)
        assert "old" in shown(page)
        assert "sequence 7" in page
        asked = [parse_qs(urlsplit(url).query) for url in found.nodes.gets if "/topic/log" in url]
        assert asked[0]["from"] == ["2026-01-01T10:00:00Z"]
        assert asked[1]["after"] == ["12.8"]
