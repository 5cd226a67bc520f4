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
