"""Engine, durability and trouble of logs on the pages (admin.pages.settings)."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.admin.pages.support import Nodes, channel, pages, topic

EVIL = "<script>alert('x')</script>"


@pytest.fixture(autouse=True)
def _clock(autojump_clock: MockClock) -> None:
    """Polls take no time."""


def cluster(settings: dict[str, Any] | None) -> Nodes:
    """A node with two topics, and one that does not answer."""
    topics = [topic("orders", channel("billing")), topic("mail")]
    return Nodes({"one:4151": topics, "two:4151": None}, settings=settings)


def settings(**more: Any) -> dict[str, Any]:
    """What a node says: one topic has a log."""
    rows = [
        {"topic": "orders", "storage": "log", "durability": "always"},
        {"topic": "mail", "storage": "default", "durability": "memory"},
    ]
    return {"disk_full": False, "damaged_count": 0, "damaged": [], "topics": rows, **more}


async def test_the_pages_say_how_a_topic_is_kept() -> None:
    """For each node that says so: on the page of the topic and on that of the node."""
    async with pages(cluster(settings())) as site:
        assert "log, always" in await site.page("/topics/orders")
        mail = await site.page("/topics/mail")
        assert ">default</span>" in mail
        assert "log, always" not in mail
        node = await site.page("/nodes/one:4151")
        assert node.count("log, always") == 1
        assert node.count(">default</span>") == 1


@pytest.mark.parametrize(
    ("oldest", "text"),
    [
        ({"held_by": "channel", "channel": EVIL}, "which has not finished it"),
        ({"held_by": "topic", "channel": ""}, "the topic: no channel has had it"),
        ({"held_by": "retention", "channel": ""}, ">retention<"),
        ({"held_by": "none", "channel": ""}, "nothing: it is the only one"),
    ],
    ids=lambda value: value["held_by"] if isinstance(value, dict) else "",
)
async def test_the_page_of_a_topic_says_what_its_log_has(oldest: dict[str, str], text: str) -> None:
    """First and last message by sequence and time, size, retention, and what keeps the oldest
    file."""
    figures = {
        "retain": "24h0m0s",
        "retain_bytes": 5_000_000,
        "first": {"sequence": 1_000, "time": "2026-11-20T08:00:00.000181Z"},
        "last": {"sequence": 90_113, "time": "2026-11-23T10:12:44.7Z"},
        "segments": 3,
        "bytes": 301_990_012,
        "oldest_segment": oldest,
    }
    stored = {"topic": "orders", "storage": "log", "durability": "always"}
    async with pages(cluster({"topics": [stored | figures]})) as site:
        page = await site.page("/topics/orders")
        for part in ("1,000 ", "90,113 ", "2026-11-20 08:00:00 UTC", "2026-11-23 10:12:44 UTC"):
            assert part in page
        assert "24h0m0s or " in page
        assert "in 3 files" in page
        assert text in page
        assert "<script>alert" not in page


async def test_a_log_without_messages_has_no_places() -> None:
    """A dash stands for each; a node that says nothing of its log has no row."""
    empty = {"first": None, "last": None, "retain": "0s", "oldest_segment": {"held_by": "none"}}
    stored = {"topic": "orders", "storage": "log", "durability": "always"}
    async with pages(cluster({"topics": [stored | empty]})) as site:
        page = await site.page("/topics/orders")
        assert page.count('data-label="First message">\N{EN DASH}<') == 1
        assert "as long as they are needed" in page
    async with pages(cluster({"topics": [stored]})) as site:
        assert 'id="log-title"' not in await site.page("/topics/orders")


async def test_trouble_of_logs_is_on_the_page_of_the_node() -> None:
    """Damaged places by name, as far as they are told, and a full disk."""
    damaged = [{"topic": "orders", "file": "f", "offset": 9, "text": f"f at 9 {EVIL}"}]
    trouble = settings(disk_full=True, damaged_count=3, damaged=damaged)
    async with pages(cluster(trouble)) as site:
        node = await site.page("/nodes/one:4151")
        assert "The disk is full: topics with a log take no messages." in node
        assert "f at 9 &lt;script&gt;" in node
        assert "2 more places are damaged." in node


async def test_older_nodes_show_nothing_and_are_not_asked_again() -> None:
    """The pages are as they were; one request in five minutes finds that out."""
    nodes = cluster(None)
    async with pages(nodes) as site:
        for path in ("/topics/orders", "/nodes/one:4151", "/topics/mail"):
            page = await site.page(path)
            assert "How this node keeps the topic" not in page
        asked = [url for url in nodes.gets if "/topic/settings" in url]
        assert len(asked) == 1


async def test_a_node_that_lacks_the_topic_has_the_path() -> None:
    """Its other topics are asked for all the same."""
    nodes = cluster({"topics": [{"topic": "mail", "storage": "log", "durability": "interval"}]})
    async with pages(nodes) as site:
        assert "How this node keeps" not in await site.page("/topics/orders")
        assert "log, interval" in await site.page("/topics/mail")
