"""Lists for thousands: chips, groups, favourites, files, and several rows at once."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from trio.testing import MockClock

from admin.access.modes import Mode
from admin.watch.marks import Mark
from tests.admin.pages.support import Nodes, Pages, channel, pages, parsed, topic


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Polls take no time."""
    return autojump_clock


pytestmark = pytest.mark.usefixtures("clock")


def cluster() -> Nodes:
    """Topics of two services and one alone."""
    return Nodes(
        {
            "one:4151": [
                topic("svc1.orders", channel("billing", depth=5, client_count=1), depth=1),
                topic("svc1.clicks", channel("=sum", depth=2)),
                topic("svc2.orders", channel("billing", depth=10, paused=True)),
                topic("alone", depth=100),
            ]
        }
    )


def links(page: str, label: str) -> dict[str, str]:
    """The links of a navigation, by their text."""
    part = page.split(f'aria-label="{label}"')[1].split("</nav>")[0]
    found = {}
    for piece in part.split("<a ")[1:]:
        href = piece.split('href="')[1].split('"')[0].replace("&amp;", "&")
        found[parsed(f"<a {piece}").text.split("\n")[0].strip()] = href
    return found


def names(page: str) -> list[str]:
    """The names of the rows."""
    heads = [part.split("</th>")[0] for part in page.split('<th scope="row"')[1:]]
    texts = [parsed(f"<th{head}").text.replace("paused", "").strip("★ ") for head in heads]
    return [" ".join(text.split()) for text in texts]


async def test_chips_keep_search_and_order_and_count_what_is_found() -> None:
    """D14: the second click does not lose the first one."""
    async with pages(cluster()) as found:
        page = await found.page("/topics?q=orders&sort=-depth")
        chips = links(page, "Show")
        assert list(chips)[:2] == ["Topics 2", "Channels 2"]
        assert "With messages 2" in chips
        query = parse_qs(urlsplit(chips["Channels 2"]).query)
        assert query == {"q": ["orders"], "sort": ["-depth"], "show": ["channels"]}
        page = await found.page(chips["Channels 2"])
        assert names(page) == ["svc2.orders / billing", "svc1.orders / billing"]


async def test_a_search_excludes_and_takes_expressions() -> None:
    """An expression that is none is told, not taken for no result."""
    async with pages(cluster()) as found:
        assert names(await found.page("/topics?q=svc+-clicks")) == ["svc1.orders", "svc2.orders"]
        assert names(await found.page("/topics?q=/^svc.%5C.c/")) == ["svc1.clicks"]
        assert "is not a regular expression" in await found.page("/topics?q=/[/")


async def test_groups_have_sums_and_lead_to_their_members() -> None:
    """By the prefix of the names, one part after the other."""
    async with pages(cluster()) as found:
        page = await found.page("/topics?group=yes&sort=-depth")
        assert names(page) == ["alone", "svc2.…", "svc1.…"]
        rows = json.loads(await body(found, "/topics?group=yes&as=json"))
        sums = {row["prefix"]: (row["names"], row["depth"]) for row in rows}
        assert sums == {"alone": (1, 100), "svc1.": (2, 8), "svc2.": (1, 10)}
        page = await found.page("/topics?group=yes&prefix=svc1.")
        assert names(page) == ["svc1.clicks", "svc1.orders"]


async def body(found: Pages, path: str) -> str:
    answer = await found.get(path)
    assert answer.status_code == 200
    assert "attachment" in answer.headers["Content-Disposition"]
    return str(await answer.get_data(as_text=True))


async def test_a_list_is_a_file_of_all_that_match() -> None:
    """Of all pages, with the filter and the order; a spreadsheet calculates nothing of it."""
    async with pages(cluster()) as found:
        rows = json.loads(await body(found, "/topics?q=svc&sort=-depth&size=25&as=json"))
        assert [(row["topic"], row["depth"]) for row in rows] == [
            ("svc2.orders", 10), ("svc1.orders", 6), ("svc1.clicks", 2),
        ]  # fmt: skip
        text = await body(found, "/topics?show=channels&filter=waiting&as=csv")
        table = list(csv.DictReader(io.StringIO(text)))
        assert [row["channel"] for row in table] == ["'=sum", "billing", "billing"]
        assert json.loads(await body(found, "/clients?as=json")) == []


async def test_favourites_are_kept_by_the_browser() -> None:
    """A topic and a channel; the list shows them by a chip of their own."""
    async with pages(cluster()) as found:
        assert "Favourites" not in await found.page("/topics")
        for path in ("/topics/svc1.orders", "/topics/svc2.orders/billing"):
            answer = await found.get(f"{path}?star=yes")
            assert (answer.status_code, answer.headers["Location"]) == (303, path)
        page = await found.page("/topics?filter=favourites")
        assert names(page) == ["svc1.orders"]
        page = await found.page("/topics?show=channels&filter=favourites")
        assert names(page) == ["svc2.orders / billing"]
        await found.get("/topics/svc1.orders?star=no")
        assert names(await found.page("/topics?filter=favourites")) == []


async def select(found: Pages, verb: str, on: Sequence[str], **fields: str) -> tuple[int, str]:
    """Status and note of the form of a list."""
    token = await found.token()
    form = {"csrf_token": token, "verb": verb, "on": list(on), "back": "/topics?q=svc", **fields}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    data = urlencode(form, doseq=True)
    answer = await found._request("POST", "/do/selected", data=data, headers=kind)
    if answer.status_code != 303:
        return answer.status_code, str(await answer.get_data(as_text=True))
    assert answer.headers["Location"] == "/topics?q=svc"
    return 303, parsed(await found.page("/topics?q=svc")).text


async def test_several_are_paused_at_once() -> None:
    """Each is told to each node, and each is in the audit."""
    async with pages(cluster()) as found:
        status, text = await select(found, "pause", ["svc1.orders", "svc1.clicks", "no name!"])
        assert status == 303
        assert "Paused 2 topics." in text
        paused = [url for url, _ in found.nodes.posted if "/topic/pause" in url]
        assert paused == [
            "http://one:4151/topic/pause?topic=svc1.orders",
            "http://one:4151/topic/pause?topic=svc1.clicks",
        ]
        entries = found.dashboard.access.audit.entries()
        assert {entry.topic for entry in entries if entry.action == "pause_topic"} == {
            "svc1.orders", "svc1.clicks",
        }  # fmt: skip


async def test_several_are_deleted_after_their_number_is_typed() -> None:
    """Without it the page says what is at stake, and nothing is done."""
    async with pages(cluster()) as found:
        await found.page("/topics")
        on = ["svc1.orders", "svc1.clicks"]
        status, page = await select(found, "delete", on)
        assert status == 200
        assert "delete 2" in page
        assert '<span class="stake">8</span>' in page
        status, page = await select(found, "delete", on, typed="delete 3")
        assert "does not match" in page
        assert not [url for url, _ in found.nodes.posted if "/topic/delete" in url]
        status, text = await select(found, "delete", on, typed="delete 2")
        assert "Deleted 2 topics." in text
        assert len([url for url, _ in found.nodes.posted if "one:4151/topic/delete" in url]) == 2


async def test_an_operator_deletes_nothing() -> None:
    """Nor does a viewer pause, or anybody without the token of a page."""
    async with pages(cluster(), Mode.PROXY, proxy_role_header="X-Role") as found:
        user = {"X-Forwarded-User": "ann", "X-Role": "operator"}
        form = {"verb": "delete", "on": "alone", "typed": "alone"}
        page = await found.page("/lookup", **user)
        token = next(a["value"] for _, a in parsed(page).tags if a.get("name") == "csrf_token")
        for verb, role, field, status in (
            ("delete", "operator", token, 403),
            ("pause", "viewer", token, 403),
            ("pause", "operator", "x", 403),
            ("pause", "operator", token, 303),
        ):
            answer = await found._request(
                "POST",
                "/do/selected",
                form={**form, "verb": verb, "csrf_token": field},
                headers={**user, "X-Role": role},
            )
            assert answer.status_code == status, (verb, role)
        assert not [url for url, _ in found.nodes.posted if "delete" in url]


async def test_a_mistyped_topic_is_not_found_and_near_names_are_told() -> None:
    """D9: without actions; the same for a channel."""
    async with pages(cluster()) as found:
        await found.page("/topics")
        answer = await found.get("/topics/svc1.order")
        page = await answer.get_data(as_text=True)
        assert answer.status_code == 200
        assert "There is no topic svc1.order" in page
        assert 'href="/topics/svc1.orders"' in page
        assert "/do/pause" not in page
        answer = await found.get("/topics/svc1.orders/biling")
        page = await answer.get_data(as_text=True)
        assert answer.status_code == 200
        assert 'href="/topics/svc1.orders/billing"' in page


async def test_the_search_of_the_top_bar_finds_everything() -> None:
    """D15: nodes, clients and inactive topics; what is found alone is opened."""
    nodes = cluster()
    nodes.inactive = {"legacy": []}
    client = {"remote_address": "10.0.0.9:5", "user_agent": "go-nsq/1.1", "hostname": "worker-7"}
    topics = nodes.topics["one:4151"] or []
    topics[0]["channels"][0]["clients"] = [client]
    async with pages(nodes) as found:
        for q, path in (
            ("legacy", "/topics/legacy"),
            ("worker-7", "/topics/svc1.orders/billing?q=10.0.0.9%3A5"),
            ("go-nsq", "/topics/svc1.orders/billing?q=10.0.0.9%3A5"),
            ("alone", "/topics/alone"),
        ):
            answer = await found.get(f"/search?q={q}")
            assert (answer.status_code, answer.headers.get("Location")) == (303, path), q
        page = await found.page("/search?q=one:4151")
        assert 'href="/nodes/one%3A4151"' in page
        assert "go-nsq/1.1" in page
        page = await found.page("/search?q=orders")
        assert "Topics" in page
        assert "Channels" in page


async def test_a_delete_that_finds_nothing_there_is_done() -> None:
    """D8: one node has the channel, another one does not; that is no warning."""
    nodes = cluster()
    nodes.topics["two:4151"] = [topic("alone")]
    nodes.refused["two:4151"] = 404
    nodes.topics["one:4151"] = [topic("alone", channel("c"))]
    async with pages(nodes) as found:
        await found.page("/topics")
        answer = await found.send("/do/delete", topic="alone", channel="c", typed="c")
        assert answer.status_code == 303
        text = parsed(await found.page("/topics")).text
        assert "Deleted channel c of alone." in text
        assert "failed" not in text


async def test_the_audit_tells_what_was_not_done() -> None:
    """D7: a name that is none is refused with its reason, and not "done"."""
    async with pages(cluster()) as found:
        await found.send("/do/create", topic="new topic!")
        (entry, *_) = found.dashboard.access.audit.entries()
        assert (entry.action, entry.topic, entry.failed) == ("create_topic", "new topic!", True)
        page = await found.page("/audit")
        assert "nothing done" in page
        assert "Not a valid topic name." in page


async def test_a_channel_says_who_paused_it() -> None:
    """Its problems of the overview stand at the top, too."""
    async with pages(cluster()) as found:
        await found.page("/topics")
        page = await found.page("/topics/svc2.orders/billing")
        assert "Not paused from this nsqadmin" in page
        assert "10 messages are waiting: the channel is paused." in page
        place = {"topic": "svc2.orders", "channel": "billing"}
        mark = Mark(1_790_000_000.0, "pause channel", user="ann", action="pause_channel", **place)
        found.dashboard.poller.marks.restore([mark])
        assert "Paused by ann on" in await found.page("/topics/svc2.orders/billing")
        await found.send("/do/pause", **place)
        page = await found.page("/topics/svc2.orders/billing")
        assert "Paused by 127.0.0.1 on" in page
