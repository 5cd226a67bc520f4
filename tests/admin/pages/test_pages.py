"""Every page, of clusters of all kinds."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from trio.testing import MockClock

from admin.access.modes import Mode
from tests.admin.pages.support import Nodes, Pages, channel, pages, parsed, topic

LONG = "x" * 54 + "#ephemeral"
ODD = ("orders", "a.b-c_d", "metrics#ephemeral", LONG)
EVIL = "<script>alert('x')</script>\"&amp;"


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Polls take no time."""
    return autojump_clock


pytestmark = pytest.mark.usefixtures("clock")


def paths(name: str = "orders", sub: str = "billing") -> list[str]:
    """The path of each page."""
    a, b = quote(name, safe=""), quote(sub, safe="")
    return [
        "/",
        "/?problems=all",
        "/topics",
        f"/topics?q={a}",
        "/topics?show=channels&filter=waiting",
        "/topics?show=inactive",
        "/topics?group=yes",
        f"/topics?prefix={a[:2]}&group=yes",
        "/topics?q=/[/",
        "/clients",
        f"/search?q={a}",
        "/search?q=nothing-of-the-kind",
        f"/topics/{a}",
        f"/topics/{a}/{b}",
        "/nodes",
        "/nodes/one:4151",
        "/nodes/one:4151?show=channels",
        "/nodes/one:4151?show=clients",
        "/nodes/nobody:1",
        "/counter",
        "/lookup",
        "/audit",
        f"/peek?topic={a}",
        f"/peek?topic={a}&channel={b}&state=in_flight",
        f"/publish?topic={a}",
        f"/confirm/empty?topic={a}",
        f"/confirm/delete?topic={a}&channel={b}",
        f"/confirm/tombstone?topic={a}&node=one:4151",
    ]


def busy() -> Nodes:
    """Two nodes with all kinds of names, and figures as large as they get."""
    client = {
        "client_id": EVIL,
        "hostname": EVIL,
        "user_agent": EVIL,
        "remote_address": "10.0.0.1:1234",
        "connect_ts": 5,
        "authed": True,
        "auth_identity": EVIL,
        "auth_identity_url": "javascript:alert(1)",
        "tls": True,
        "tls_version": EVIL,
        "sample_rate": 7,
        "deflate": True,
        "snappy": True,
    }
    latency = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 2_500_000}]}
    figures: dict[str, Any] = {"depth": 2**53, "backend_depth": 2**52, "message_count": 2**60}
    topics = [
        topic(
            name,
            channel("billing", clients=[client], client_count=1, **figures),
            channel(LONG, paused=True, depth=1, e2e_processing_latency=latency),
            paused=True,
            e2e_processing_latency=latency,
            **figures,
        )
        for name in ODD
    ]
    bodies = [("utf-8", EVIL), ("utf-8", '{"a":1.10,"b":[]}'), ("base64", "AAH/"), ("utf-8", "")]
    messages = [
        {"id": "0" * 16, "timestamp": 1, "attempts": 2, "where": "memory", "body_size": 3,
         "body_cut": False, "body_encoding": encoding, "body": body}
        for encoding, body in bodies
    ]  # fmt: skip
    return Nodes(
        {"one:4151": topics, "two:4151": topics}, inactive={"old": ["a"]}, messages=messages
    )


@pytest.mark.parametrize("name", ODD)
async def test_each_page_is_well_formed_with_odd_names(name: str) -> None:
    """No page breaks at a name that NSQ allows, and none holds script or style of its own."""
    async with pages(busy()) as site:
        for path in paths(name):
            check(await site.page(path), path)


def check(page: str, path: str) -> None:
    """The rules for every page."""
    found = parsed(page)
    assert "<script>alert" not in page, path
    for tag, attributes in found.tags:
        assert tag != "style", path
        assert "style" not in attributes, (path, attributes)
        assert not any(name.startswith("on") for name in attributes), (path, attributes)
        assert tag != "script" or attributes.get("src", "").startswith("/"), path
        for name in ("href", "src", "action"):
            value = attributes.get(name, "")
            outside = value.startswith("https://nsq.io/")
            assert value[:1] in ("", "/", "#") or outside, (path, value)
        assert tag != "form" or "method" not in attributes or "csrf_token" in page, path
    names = [tag for tag, _ in found.tags]
    assert names.count("h1") == 1, path
    assert names.count("main") == 1, path
    assert "<title>" in page, path
    assert "lang" in dict(found.tags)["html"], path
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), (path, ids)
    labelled = {attributes.get("for") for tag, attributes in found.tags if tag == "label"}
    for tag, attributes in found.tags:
        if tag in ("select", "textarea", "input") and attributes.get("type") != "hidden":
            assert attributes.get("id") in labelled, (path, attributes)


@pytest.mark.parametrize(
    "nodes",
    [
        Nodes({}),
        Nodes({}, down=True),
        Nodes({"one:4151": None}),
        Nodes({"one:4151": []}),
        Nodes({"one:4151": [topic("orders", channels=None)]}),
        Nodes({"one:4151": [topic("orders", channel("billing"))], "two:4151": None}),
    ],
    ids=["empty", "lookupd-down", "node-down", "no-topics", "no-channels", "one-down"],
)
async def test_each_page_is_there_whatever_the_cluster_is_like(nodes: Nodes) -> None:
    """Nobody is shown an error 500, nor an empty page."""
    async with pages(nodes) as site:
        for path in paths():
            answer = await site.get(path)
            if path.startswith("/search") and answer.status_code == 303:
                continue  # found alone, so it is opened
            assert answer.status_code == 200
            check(await answer.get_data(as_text=True), path)


async def test_a_live_part_is_a_part_of_its_page() -> None:
    """What htmx asks for is the live part alone, without frame and forms' scripts."""
    async with pages(busy()) as site:
        for path in ("/", "/topics", "/topics/orders", "/nodes", "/counter"):
            whole = await site.page(path)
            part = await site.page(path, **{"HX-Request": "true"})
            assert "<html" in whole
            assert "<html" not in part
            assert "<main" not in part
            live = next(a for _, a in parsed(whole).tags if a.get("id") == "live")
            assert live["hx-get"] == path


async def test_a_node_that_is_down_costs_its_own_row() -> None:
    """The rest is shown, and the first page says who is missing."""
    nodes = Nodes({"one:4151": [topic("orders", channel("billing", depth=7))], "two:4151": None})
    async with pages(nodes) as site:
        first = parsed(await site.page("/")).text
        assert "Something is wrong" in first
        assert "1 of 2 nodes answer" in first
        assert "two:4151 has not answered" in first
        listed = await site.page("/nodes")
        assert "does not answer" in listed
        assert 'href="/nodes/one%3A4151"' in listed


async def test_nothing_is_wrong() -> None:
    """A healthy cluster is told to be one."""
    quiet = topic("orders", channel("billing", client_count=2, message_count=9))
    async with pages(Nodes({"one:4151": [quiet]})) as site:
        assert "Nothing is wrong" in await site.page("/")


async def test_what_is_shown_is_escaped() -> None:
    """Texts of clients and messages are texts, and only web addresses become links."""
    async with pages(busy()) as site:
        page = await site.page("/topics/orders/billing")
        assert "&lt;script&gt;alert(&#39;x&#39;)" in page
        assert "javascript:" not in page
        assert "Sampled 7 %" in page
        peeked = await site.page("/peek?topic=orders&channel=billing")
        assert "&lt;script&gt;" in peeked
        assert "00 01 ff" in peeked
        assert "&#34;a&#34;: 1.10," in peeked


async def test_the_many_topics_are_shown_page_by_page() -> None:
    """Of 2,000 topics a page has 50, whatever is asked for; a search finds one of them."""
    many = [topic(f"topic-{number:04}", channel("all")) for number in range(2000)]
    async with pages(Nodes({"one:4151": many})) as site:
        page = await site.page("/topics")
        assert page.count('scope="row"') == 50
        assert "1–50 of 2,000" in page  # noqa: RUF001
        last = await site.page("/topics?page=999")
        assert "topic-1999" in last
        found = await site.page("/topics?q=TOPIC-0042")
        assert found.count('scope="row"') == 1
        assert len((await site.page("/topics?size=100000")).encode()) < 200_000


async def test_many_who_look_at_a_topic_ask_the_nodes_once() -> None:
    """Two looks at the same moment are one question to each node."""
    async with pages(busy()) as site:
        await site.page("/topics/orders")
        before = sum("topic=orders" in url for url in site.nodes.gets)
        await site.page("/topics/orders")
        assert sum("topic=orders" in url for url in site.nodes.gets) == before


async def test_peeking_at_an_original_node_is_explained() -> None:
    """There is no button that fails, but a sentence."""
    nodes = busy()
    nodes.original = True
    async with pages(nodes) as site:
        page = await site.page("/topics/orders")
        assert "the original nsqd has no /topic/peek" in page
        assert "original nsqd" in await site.page("/peek?topic=orders")


async def sent(site: Pages, path: str, **fields: str) -> tuple[str, str]:
    """Where a form leads, and what is said there."""
    answer = await site.send(path, **fields)
    assert answer.status_code == 303
    where = answer.headers["Location"]
    page = await site.page(where.partition("#")[0])
    notes = page.partition('role="status">')[2].partition("</div>")[0]
    return where, notes


async def test_forms_do_what_they_say() -> None:
    """Each action reaches every node that has the topic, and the page afterwards tells of it."""
    async with pages(busy()) as site:
        where, note = await sent(site, "/do/pause", topic="orders", channel="billing")
        assert where == "/topics/orders/billing"
        assert "Paused channel billing of orders." in note
        urls = [url for url, _ in site.nodes.posted]
        assert urls == [
            f"http://{node}:4151/channel/pause?topic=orders&channel=billing"
            for node in ("one", "two")
        ]
        assert (await sent(site, "/do/delete", topic="orders", typed="orders"))[0] == "/topics"
        _, note = await sent(site, "/do/create", topic="new", channel="c#ephemeral")
        assert "Created channel c#ephemeral of new." in note
        assert any("/channel/create?topic=new" in url for url, _ in site.nodes.posted)
        _, note = await sent(site, "/do/create", topic="no such name")
        assert "Not a valid topic name" in note


@pytest.mark.parametrize("verb", ["pause", "unpause", "empty"])
@pytest.mark.parametrize("channel", ["", "a"])
async def test_what_no_node_has_is_not_said_to_be_changed(verb: str, channel: str) -> None:
    """Of a topic that only nsqlookupd knows nothing can be paused or emptied."""
    async with pages(busy()) as site:
        fields = {"topic": "old", "channel": channel, "typed": channel or "old"}
        answer = await site.send(f"/do/{verb}", **fields)
        page = await site.page(answer.headers["Location"])
        assert "Nothing was done: no node has the topic or channel." in page
        assert not site.nodes.posted


@pytest.mark.parametrize("verb", ["empty", "delete", "tombstone"])
async def test_nothing_is_lost_without_the_typed_name(verb: str) -> None:
    """The server looks at what was typed, whatever a script allows."""
    async with pages(busy()) as site:
        for typed in ("", "order", "billing"):
            fields = {"topic": "orders", "typed": typed}
            fields |= {"node": "one:4151"} if verb == "tombstone" else {}
            _, note = await sent(site, f"/do/{verb}", **fields)
            assert "does not match" in note
        assert site.nodes.posted == []


async def test_the_confirmation_tells_what_is_at_stake() -> None:
    """All that would be lost is counted, over all nodes; emptying a topic spares its channels."""
    here = topic("t", channel("c", depth=5, in_flight_count=2, deferred_count=1), depth=10)
    async with pages(Nodes({"one:4151": [here], "two:4151": [here], "three:4151": []})) as site:
        stakes = {}
        for path in ("empty?topic=t", "empty?topic=t&channel=c", "delete?topic=t",
                     "tombstone?topic=t&node=one:4151"):  # fmt: skip
            page = await site.page(f"/confirm/{path}")
            stakes[path] = page.partition('class="stake">')[2].partition("<")[0]
        assert list(stakes.values()) == ["20", "16", "36", "18"]


async def test_a_message_is_published_as_it_was_typed() -> None:
    """Text with the lines of the form, hex as bytes; what can't be read is asked for again."""
    async with pages(busy()) as site:
        fields = {"topic": "metrics#ephemeral", "node": "two:4151", "defer": "1500"}
        _, note = await sent(site, "/do/publish", body="a\r\nb", format="text", **fields)
        assert "Published 3 bytes to two:4151, deferred by 1.5s." in note
        await sent(site, "/do/publish", body="00 ff\n0x10", format="hex", **fields)
        url = "http://two:4151/pub?topic=metrics%23ephemeral&defer=1500"
        assert site.nodes.posted == [(url, b"a\nb"), (url, b"\x00\xff\x10")]
        answer = await site.send("/do/publish", body="zz", format="hex", **fields)
        again = await answer.get_data(as_text=True)
        assert "Not valid hex" in again
        assert ">\nzz</textarea>" in again
        bad = await site.send("/do/publish", topic="t", node="evil:80", body="x", format="text")
        assert "does not exist" in await bad.get_data(as_text=True)
        assert len(site.nodes.posted) == 2


async def test_a_message_after_a_form_is_shown_once() -> None:
    """Neither does it stay, nor can a broken cookie break a page."""
    async with pages(busy()) as site:
        await sent(site, "/do/pause", topic="orders")
        assert "Paused topic" not in await site.page("/topics/orders")
        for value in ("x", "W10=", "bnVsbA==", "WyJnb29kIiwgMV0=", "Int9Ig=="):
            site.cookies["nsqadmin_flash"] = value
            check(await site.page("/topics/orders"), value)


async def test_who_may_only_look_sees_no_buttons() -> None:
    """With --admin-user everybody reads; what changes things is for the admins."""
    async with pages(busy(), Mode.ACL, admin_user=("alice",)) as site:
        page = await site.page("/topics/orders")
        for text in ("Delete topic", "Pause topic", "Unpause topic", "Publish a", "Tombstone"):
            assert text not in page
        asked = await site.page("/topics/orders", **{"X-Forwarded-User": "alice"})
        assert "Delete topic" in asked
        assert "alice" in asked


async def test_a_base_path_begins_every_link() -> None:
    """Also those of Graphite behind the proxy, and forms."""
    options: dict[str, Any] = {"base_path": "/nsq", "graphite_url": "http://graphite"}
    async with pages(busy(), proxy_graphite=True, **options) as site:
        for path in (
            "",
            *(path for path in paths() if path.count("/") == 1 and path[1:2].isalpha()),
        ):
            for tag, attributes in parsed(await site.page(f"/nsq{path}")).tags:
                for name in ("href", "src", "action", "hx-get", "data-events"):
                    value = attributes.get(name, "")
                    if value and not value.startswith(("#", "https://nsq.io")):
                        assert value.startswith("/nsq"), (path, tag, value)


async def test_graphite_is_linked_if_there_is_one() -> None:
    """Images of the chosen interval, remembered; none when they are off."""
    async with pages(busy(), graphite_url="http://graphite:80/") as site:
        page = await site.page("/topics/orders?t=12h")
        assert "http://graphite:80/render?target=summarize%28sumSeries%28stats.gauges.nsq." in page
        assert "from=-12h" in page
        assert "from=-12h" in await site.page("/topics/orders")
        assert "/render" not in await site.page("/topics/orders?t=off")
    async with pages(busy()) as site:
        assert "/render" not in await site.page("/topics/orders")


@pytest.mark.parametrize("path", ["/", "/topics", "/api/topics", "/clients", "/message?topic=t"])
async def test_another_host_name_reads_nothing_on_loopback(path: str) -> None:
    """A page elsewhere, whose name was made to lead here, learns no name of the cluster."""
    async with pages(busy(), Mode.LOCAL) as site:
        assert (await site.get(path, Host="127.0.0.1:4171")).status_code != 403
        answer = await site.get(path, Host="evil.example:4171")
        assert answer.status_code == 403
        assert "orders" not in await answer.get_data(as_text=True)
