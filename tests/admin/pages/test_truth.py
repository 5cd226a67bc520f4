"""No page draws silence as zero: dead nodes, and an nsqlookupd that is down, hangs or restarts."""

from __future__ import annotations

import re

import pytest
import trio
from trio.testing import MockClock

from admin.cluster.queries import HUNG_S
from admin.pages.format import UNKNOWN
from tests.admin.pages.support import Nodes, Pages, channel, pages, topic

DEAD = "two:4151"


def cluster() -> Nodes:
    """Two nodes have orders, the second one has legacy alone."""
    orders = topic("orders", channel("billing", depth=70, client_count=3), depth=0)
    legacy = topic("legacy", channel("archive", depth=40), depth=0)
    return Nodes({"one:4151": [orders], DEAD: [orders, legacy]})


async def polled(found: Pages, count: int = 1) -> None:
    """Wait for so many polls."""
    poller = found.dashboard.poller
    with poller.watch():
        for _ in range(count):
            await poller.changed(poller.snapshot.sequence if poller.snapshot else 0)


async def kill(found: Pages) -> None:
    """The second node dies, and nsqlookupd forgets it."""
    await polled(found, 2)
    del found.nodes.topics[DEAD]
    await polled(found, 5)


def figure(page: str, name: str) -> str:
    """What a tile shows."""
    tile = re.search(rf"<dt>{name}</dt><dd class=\"figure\">(.*?)</dd>", page, re.DOTALL)
    assert tile is not None
    return tile[1].strip()


@pytest.mark.parametrize("trouble", ["down", "hangs", "restarted"])
@pytest.mark.parametrize("path", ["/topics/orders", "/topics/orders/billing"])
async def test_nsqlookupd_in_trouble_blanks_no_page(
    path: str, trouble: str, autojump_clock: MockClock
) -> None:
    """What the poller has seen is asked and shown, within `HUNG_S`."""
    async with pages(cluster()) as found:
        await polled(found, 2)
        setattr(found.nodes, trouble, True)
        began_s = trio.current_time()
        page = await found.page(path)
        assert trio.current_time() - began_s <= HUNG_S
        name = "Depth" if path.endswith("billing") else "Depth of its channels"
        assert figure(page, name) == "140"
        assert "one:4151" in page
        assert DEAD in page
        assert "No node has" not in page
        assert "No channels" not in page
        assert ("no answer" in page or "refused" in page) == (trouble != "restarted")


@pytest.mark.parametrize("trouble", ["down", "hangs", "restarted"])
async def test_nodes_are_listed_without_nsqlookupd(trouble: str, autojump_clock: MockClock) -> None:
    """With ports and topics, within `HUNG_S`; so is each node's own page."""
    async with pages(cluster()) as found:
        await polled(found, 2)
        setattr(found.nodes, trouble, True)
        began_s = trio.current_time()
        page = await found.page("/nodes")
        assert trio.current_time() - began_s <= HUNG_S
        assert '<td data-label="TCP port" class="n">4150</td>' in page
        assert "legacy" in page
        page = await found.page(f"/nodes/{DEAD}")
        assert figure(page, "Depth") == "110"
        assert "There is no node" not in page


async def test_a_topic_is_unknown_if_nobody_could_be_asked(autojump_clock: MockClock) -> None:
    """Only if all sources agree a page says that no node has a topic."""
    nodes = cluster()
    nodes.down = True
    async with pages(nodes) as found:
        page = await found.page("/topics/orders")
        assert "No node has this topic" not in page
        assert "Unknown" in page
        nodes.down = False
        answer = await found.get("/topics/nosuch")
        assert answer.status_code == 200
        assert "There is no topic nosuch" in await answer.get_data(as_text=True)


@pytest.mark.parametrize("path", ["/topics/orders", "/topics/orders/billing"])
async def test_a_total_without_a_dead_node_is_at_least(
    path: str, autojump_clock: MockClock
) -> None:
    """The first lines say so, and the node's row has its last figures, marked as old."""
    async with pages(cluster()) as found:
        await kill(found)
        page = await found.page(path)
        name = "Depth" if path.endswith("billing") else "Depth of its channels"
        assert figure(page, name) == "≥ 70"
        assert "<b>At least:</b> 1 of 2 nodes does not answer" in page
        assert re.search(r"Last seen <time [^>]*>[^<]+</time> UTC with 70 messages", page)
        depth = 70 if path.endswith("billing") else 0
        assert f'<td class="n old-figure" data-label="Depth">{depth}</td>' in page
        assert '<td class="n old-figure" data-label="Messages">' in page


@pytest.mark.parametrize(
    ("path", "name"),
    [("/topics/legacy", "Depth of its channels"), ("/topics/legacy/archive", "Depth")],
)
async def test_a_topic_of_a_dead_node_is_not_zero(
    path: str, name: str, autojump_clock: MockClock
) -> None:
    """Nobody answers who has it: dashes, and what was there when it was last seen."""
    async with pages(cluster()) as found:
        await kill(found)
        page = await found.page(path)
        assert figure(page, name) == UNKNOWN
        assert "with 40 messages" in page
        assert "No node has" not in page
        assert "No channels" not in page


async def test_the_page_of_a_dead_node_has_its_last_figures(
    autojump_clock: MockClock,
) -> None:
    """Marked as old, with their time. Not "depth 0", and not "this node has no topics"."""
    async with pages(cluster()) as found:
        await kill(found)
        page = await found.page(f"/nodes/{DEAD}")
        assert [figure(page, name) for name in ("Topics", "Depth", "Clients")] == [
            f'<span class="old-figure">{last}</span>' for last in (2, 110, 3)
        ]
        assert re.search(r"at \d\d:\d\d UTC", page)
        assert "with a depth of 110, 0 in flight, 2 topics, 2 channels, 3 clients" in page
        assert "legacy</a> 40 messages" in page
        assert "has no topics" not in page
        page = await found.page("/nodes")
        assert re.search(r"last seen <time[^>]*>\d\d:\d\d<", page)
        assert re.search(r'class="old-figure" title="At [^"]* UTC">110<', page)
        assert "Forget" in page
        assert '<td data-label="TCP port" class="n">4150</td>' in page


async def test_the_list_has_the_topics_of_a_dead_node(autojump_clock: MockClock) -> None:
    """With a dash and what was held there; a sum without that node is "at least"."""
    async with pages(cluster()) as found:
        await kill(found)
        page = await found.page("/topics")
        assert "legacy</a>" in page
        assert "held 40" in page
        assert "≥ 70" in page
        assert "1 of 2 nodes silent" in page


async def test_every_node_answers_is_said_only_if_it_is_so(autojump_clock: MockClock) -> None:
    """Not for hours after a node died; nor while nsqlookupd can't tell which nodes there are."""
    async with pages(cluster()) as found:
        await polled(found, 2)
        assert "Every node answers" in await found.page("/")
        found.nodes.down = True
        await polled(found, 5)
        assert "2 of 2 known nodes answer; there may be more" in await found.page("/")
        found.nodes.down = False
        await kill(found)
        await trio.sleep(8 * 3600)
        page = await found.page("/")
        assert "Every node answers" not in page
        assert "1 of 2 nodes answer" in page
        assert "It held 110 messages when it last answered" in page
        assert figure(page, "Depth") == "≥ 70"


async def test_deleting_what_a_dead_node_has_is_not_offered_without_a_word(
    autojump_clock: MockClock,
) -> None:
    """nsqlookupd knows the topic and no producer: the page tells who had it, and with how much."""
    async with pages(cluster()) as found:
        await kill(found)
        found.nodes.inactive = {"legacy": ["archive"], "orders": [], "old": []}
        page = await found.page("/lookup")
        assert f"{DEAD} had this topic with 40 messages when it was last seen" in page
        assert "Delete topic old" in page
        # A node that answers has it, whatever nsqlookupd says.
        assert "Delete topic orders" not in page
        page = await found.page("/confirm/delete?topic=legacy")
        assert "The number of messages at stake is unknown" in page


@pytest.mark.parametrize("verb", ["pause", "delete"])
async def test_an_action_reaches_nodes_that_nsqlookupd_does_not_know(
    verb: str, autojump_clock: MockClock
) -> None:
    """A restarted nsqlookupd knows nobody: what the confirmation counted is what is acted on."""
    async with pages(cluster()) as found:
        await polled(found, 2)
        found.nodes.restarted = True
        await found.send(f"/do/{verb}", topic="orders", typed="orders")
        told = [url for url, _ in found.nodes.posted if "lookupd" not in url]
        assert told == [f"http://{node}/topic/{verb}?topic=orders" for node in ("one:4151", DEAD)]


async def test_a_dead_node_is_forgotten_by_an_admin(autojump_clock: MockClock) -> None:
    """One that answers is not; the audit names who did it."""
    async with pages(cluster()) as found:
        await kill(found)
        await found.send("/do/forget", node="one:4151")
        await found.send("/do/forget", node=DEAD)
        await polled(found, 1)
        assert "Forgot two:4151." in await found.page("/nodes")
        page = await found.page("/nodes")
        assert DEAD not in page
        assert "one:4151" in page
        entries = [each for each in found.dashboard.access.audit.entries() if each.node]
        assert [(each.action, each.node) for each in entries] == [("forget_node", DEAD)]


async def test_each_page_says_how_old_it_is(autojump_clock: MockClock) -> None:
    """At its top, red if polls do not come; a fresh page is never late, whoever looked before."""
    async with pages(cluster()) as found:
        await polled(found, 2)
        await trio.sleep(1000.0)
        for path in ("/", "/topics", "/topics/orders", "/topics/orders/billing", "/nodes"):
            page = await found.page(path)
            age = re.search(r'data-age="([0-9.]+)"', page)
            assert age is not None
            assert float(age[1]) <= 2 * found.dashboard.poller.interval_s
            assert 'id="age" class="small"' in page
            await trio.sleep(1000.0)
        hang(found)
        await trio.sleep(1000.0)
        assert 'id="age" class="small late"' in await found.page("/")


def hang(found: Pages) -> None:
    """The poller polls no more."""

    async def never(nursery: trio.Nursery) -> None:
        await trio.sleep_forever()

    found.dashboard.poller.nodes.update = never  # type: ignore[method-assign]


async def test_the_title_and_the_icon_tell_the_state(autojump_clock: MockClock) -> None:
    """On the second screen, too."""
    nodes = cluster()
    nodes.topics[DEAD] = nodes.topics["one:4151"]
    async with pages(nodes) as found:
        await polled(found, 2)
        page = await found.page("/topics")
        assert "<title>Topics" in page
        assert 'href="/static/logo.svg"' in page
        await kill(found)
        page = await found.page("/topics")
        assert "<title>(1) Topics" in page
        assert 'href="/static/logo-bad.svg"' in page


async def test_a_period_is_in_the_url(autojump_clock: MockClock) -> None:
    """With the other parameters of the page; one that is not known is the default."""
    async with pages(cluster()) as found:
        await polled(found, 2)
        page = await found.page("/?problems=all&range=6h")
        assert '<a href="/?problems=all&amp;range=6h" aria-current="true">6h</a>' in page
        assert '<a href="/?problems=all&amp;range=15m">15m</a>' in page
        page = await found.page("/topics/orders?range=<b>")
        assert '<a href="/topics/orders?range=1h" aria-current="true">1h</a>' in page
