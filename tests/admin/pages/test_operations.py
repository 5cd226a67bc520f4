"""Dead letters, policies, drain and clients: what the pages show, and what nodes are told."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from trio.testing import MockClock

from admin.access.modes import Mode
from admin.cluster.shapes import ClientStats
from admin.pages.clients import STUCK_S, ClientProgress, ClientRow
from tests.admin.pages.support import Nodes, Pages, channel, pages, parsed, topic


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Polls take no time."""
    return autojump_clock


pytestmark = pytest.mark.usefixtures("clock")

LETTER: dict[str, Any] = {
    "id": "1f" * 8, "topic": "t", "channel": "c", "message_id": "0a" * 8, "reason": "timed_out",
    "attempts": 3, "first_time": "2026-01-01T00:00:00Z", "last_time": "2026-01-01T00:05:00Z",
    "age_in_seconds": 61.2, "client": "worker\u202e", "state": "waiting", "body_size": 8,
    "body_cut": False, "body_encoding": "utf-8", "body": '{"a": 1}', "dead_letter_topic": "t.dead",
}  # fmt: skip
POLICY = {"name": "poison", "source": "http", "topics": "t*", "channels": "*", "priority": 1,
          "max_attempts": 3}  # fmt: skip


def cluster() -> Nodes:
    """Two of ours and an original nsqd, which is silent on all of this."""
    topics = [topic("t", channel("c"))]
    nodes = Nodes({"one:4151": topics, "two:4151": topics})
    nodes.documents = {
        "/deadletter": {"count": 7, "next": 9, "deadletters": [LETTER]},
        "/deadletter/replay": {"count": 7},
        "/deadletter/discard": {"count": 7},
        "/policy": {"policies": [POLICY], "file_error": ""},
        "/policy/poison": {},
        "/policy/new": {},
        "/config/drain": {"state": "off"},
    }
    return nodes


def sent(found: Pages, path: str) -> list[dict[str, list[str]]]:
    """The parameters of what nodes were told."""
    urls = [urlsplit(url) for url, _ in found.nodes.posted]
    return [parse_qs(url.query) for url in urls if url.path == path]


async def test_dead_letters_have_count_reason_age_and_body() -> None:
    """Of all nodes, with the way to more of each; nothing in them reorders the page."""
    async with pages(cluster()) as found:
        page = await found.page("/deadletters?topic=t&channel=c&reason=timed_out")
        text = parsed(page).text
        for part in ("14 messages", "timed out", "3 attempts", "1m1s ago", "worker\\u202e"):
            assert part in text, part
        assert page.count('<article class="message"') == 2
        assert "node=one%3A4151&amp;after=9" in page
        asked = [url for url in found.nodes.gets if "/deadletter" in url]
        assert parse_qs(urlsplit(asked[0]).query)["reason"] == ["timed_out"]


async def test_letters_are_replayed_after_a_question() -> None:
    """Those of the filter, at the chosen rate, on each node; the audit has it."""
    async with pages(cluster()) as found:
        page = await found.page("/deadletters/replay?topic=t&channel=c")
        assert "Replay 14 messages?" in parsed(page).text
        fields = {"verb": "replay", "topic": "t", "channel": "c", "rate": "50"}
        answer = await found.send("/do/letters", **fields)
        assert answer.status_code == 303
        query = {"topic": ["t"], "channel": ["c"], "rate": ["50"]}
        assert sent(found, "/deadletter/replay") == [query, query]
        assert "14 messages on the way back" in parsed(await found.page("/deadletters")).text
        (entry, *_) = found.dashboard.access.audit.entries()
        assert (entry.action, entry.topic, entry.note) == ("replay_dead_letters", "t", "14 letters")


async def test_letters_are_discarded_after_their_number_is_typed() -> None:
    """One of them by its id, at its node alone."""
    async with pages(cluster()) as found:
        fields = {"verb": "discard", "id": LETTER["id"], "node": "two:4151", "count": "1"}
        answer = await found.send("/do/letters", **fields)
        assert "does not match" in await answer.get_data(as_text=True)
        assert not sent(found, "/deadletter/discard")
        answer = await found.send("/do/letters", **fields, typed="discard 1")
        assert answer.status_code == 303
        assert sent(found, "/deadletter/discard") == [{"id": [LETTER["id"]]}]
        answer = await found.send("/do/letters", verb="discard", typed="discard 1", count="1")
        assert answer.status_code == 400


async def test_policies_show_whether_nodes_agree() -> None:
    """A node that lacks one, or has another one, is marked."""
    async with pages(cluster()) as found:
        text = parsed(await found.page("/policies")).text
        for part in ("poison", "t*", "max_attempts 3", "2 of 2"):
            assert part in text
        page = await found.page("/policies/edit?name=poison")
        assert "&#34;max_attempts&#34;: 3" in page
        assert "source" not in page.split("<textarea")[1].split("</textarea>")[0]


async def test_a_policy_is_saved_on_all_nodes_and_deleted() -> None:
    """What is no JSON, and what nodes refuse, is told beside what was typed."""
    async with pages(cluster()) as found:
        text = json.dumps({"topics": "x*", "max_age": "1h"})
        answer = await found.send("/do/policy", verb="save", name="new", text=text)
        assert answer.status_code == 303
        assert [(method, json.loads(body)) for method, _, body in found.nodes.sent] == [
            ("PUT", json.loads(text))
        ] * 2
        assert "Saved policy new on 2 nodes." in parsed(await found.page("/policies")).text
        answer = await found.send("/do/policy", verb="save", name="new", text="{nope")
        page = await answer.get_data(as_text=True)
        assert "not JSON" in page
        assert "{nope</textarea>" in page
        found.nodes.documents["/policy/new"] = 400
        answer = await found.send("/do/policy", verb="save", name="new", text=text)
        page = await answer.get_data(as_text=True)
        assert "status 400" in page
        assert "x*" in page
        answer = await found.send("/do/policy", verb="delete", name="poison")
        assert answer.status_code == 303
        assert {each[:2] for each in found.nodes.sent[-2:]} == {
            ("DELETE", f"http://{node}:4151/policy/poison") for node in ("one", "two")
        }
        actions = {entry.action for entry in found.dashboard.access.audit.entries()}
        assert {"save_policy", "delete_policy"} <= actions


async def test_a_node_is_drained_after_its_name_is_typed() -> None:
    """With a limit; the page says how far it is, and cancels it."""
    async with pages(cluster()) as found:
        await found.page("/topics")
        assert "does not drain" in parsed(await found.page("/drain?node=one:4151")).text
        fields = {"node": "one:4151", "verb": "begin", "limit": "10m"}
        answer = await found.send("/do/drain", **fields, typed="one")
        assert "does not match" in await answer.get_data(as_text=True)
        assert not found.nodes.sent
        answer = await found.send("/do/drain", **fields, typed="one:4151")
        assert answer.status_code == 303
        method, url, body = found.nodes.sent[-1]
        assert (method, url) == ("PUT", "http://one:4151/config/drain")
        assert json.loads(body) == {"limit": "10m", "exit": True}
        found.nodes.documents["/config/drain"] = {
            "state": "draining", "messages": 1, "seconds": 3.2, "limit_seconds": 600, "exit": True,
        }  # fmt: skip
        text = parsed(await found.page("/drain?node=one:4151")).text
        assert "1 message left after 3s of at most 10m0s" in text
        await found.send("/do/drain", node="one:4151", verb="cancel")
        assert json.loads(found.nodes.sent[-1][2]) is False
        assert (await found.get("/drain?node=evil:80")).status_code == 404


FORMS: list[tuple[str, dict[str, str], str]] = [
    ("/do/letters", {"verb": "replay", "topic": "t", "channel": "c"}, "operator"),
    ("/do/letters", {"verb": "discard", "topic": "t", "typed": "discard "}, "admin"),
    ("/do/policy", {"verb": "save", "name": "new", "text": "{}"}, "operator"),
    ("/do/policy", {"verb": "delete", "name": "poison"}, "operator"),
    ("/do/drain", {"verb": "cancel", "node": "one:4151"}, "admin"),
    ("/do/selected", {"verb": "pause", "on": "t"}, "operator"),
    ("/do/selected", {"verb": "delete", "on": "t", "typed": "t"}, "admin"),
    ("/do/message", {"verb": "requeue", "id": "a", "topic": "t", "channel": "c"}, "operator"),
    (
        "/do/message",
        {"verb": "cancel", "id": "a", "due": "1", "topic": "t", "channel": "c"},
        "admin",
    ),
    ("/do/message", {"verb": "finish", "id": "a", "topic": "t", "channel": "c"}, "admin"),
]
ROLES = ("viewer", "operator", "admin")


@pytest.mark.parametrize(("path", "fields", "least"), FORMS)
async def test_each_action_needs_its_role_and_the_token_and_is_audited(
    path: str, fields: dict[str, str], least: str
) -> None:
    """Whoever may less, or sends no token of a page, changes nothing at any node."""
    async with pages(cluster(), Mode.PROXY, proxy_role_header="X-Role") as found:
        await found.page("/topics", **{"X-Forwarded-User": "ann", "X-Role": "admin"})
        for role in ROLES:
            user = {"X-Forwarded-User": "ann", "X-Role": role}
            page = await found.page("/lookup", **{**user, "X-Role": "admin"})
            token = next(a["value"] for _, a in parsed(page).tags if a.get("name") == "csrf_token")
            for given in ("", "x", token):
                before = len(found.nodes.posted) + len(found.nodes.sent)
                form = {**fields, "csrf_token": given}
                answer = await found._request("POST", path, form=form, headers=user)
                may = given == token and ROLES.index(role) >= ROLES.index(least)
                assert (answer.status_code != 403) == may, (role, given)
                if not may:
                    assert len(found.nodes.posted) + len(found.nodes.sent) == before
        entries = found.dashboard.access.audit.entries()
        assert any(entry.refused for entry in entries)
        assert [entry for entry in entries if entry.path == path and entry.action]


READING = {
    "/deadletters": "operator", "/deadletters/replay?topic=t&channel=c": "operator",
    "/policies": "viewer", "/policies/edit": "operator", "/drain?node=one:4151": "viewer",
    "/clients": "viewer", "/search?q=": "viewer", "/peek?topic=t": "operator",
    "/message?topic=t&node=one:4151&id=a": "operator", "/deadletters/discard?topic=t": "admin",
}  # fmt: skip


@pytest.mark.parametrize(("path", "least"), READING.items())
async def test_each_page_needs_its_role(path: str, least: str) -> None:
    """Bodies are for operators."""
    async with pages(cluster(), Mode.PROXY, proxy_role_header="X-Role") as found:
        for role in ROLES:
            user = {"X-Forwarded-User": "ann", "X-Role": role}
            await found.get("/topics", **user)
            answer = await found.get(path, **user)
            may = ROLES.index(role) >= ROLES.index(least)
            assert (answer.status_code != 403) == may, role


def row(finished: int, *, in_flight: int = 5, ready: int = 5) -> ClientRow:
    """A client at a look."""
    stats = ClientStats(
        remote_address="a:1", finish_count=finished, in_flight_count=in_flight, ready_count=ready
    )
    return ClientRow(stats, "one:4151", "", 0.0, "t", "c")


def look(progress: ClientProgress, monkeypatch: pytest.MonkeyPatch, at_s: float, it: Any) -> Any:
    """A look at ``at_s``."""
    monkeypatch.setattr("admin.pages.clients.time.monotonic", lambda: at_s)
    progress.update([it])
    return it


def test_a_client_that_finishes_nothing_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it has all messages it is ready for; one that finishes, or has room, is not."""
    progress = ClientProgress()
    assert look(progress, monkeypatch, 0, row(10)).rate is None
    seen = look(progress, monkeypatch, 10, row(30))
    assert (seen.rate, seen.is_stuck) == (2.0, False)
    assert not look(progress, monkeypatch, 10 + STUCK_S - 1, row(30)).is_stuck
    seen = look(progress, monkeypatch, 10 + STUCK_S, row(30))
    assert (seen.rate, seen.is_stuck) == (0.0, True)
    assert not look(progress, monkeypatch, 60, row(30, in_flight=2)).is_stuck
    assert not look(progress, monkeypatch, 70, row(31)).is_stuck
    # Connected anew under the same address: counted from zero.
    assert look(progress, monkeypatch, 80, row(3)).rate is None


async def test_clients_of_all_nodes_with_what_they_lack() -> None:
    """A client that is connected to one of two nodes of its channel is marked."""
    both = {"client_id": "w", "hostname": "h", "remote_address": "a:1"}
    alone = {"client_id": "lonely", "hostname": "h2", "remote_address": "a:2"}
    nodes = Nodes(
        {
            "one:4151": [topic("t", channel("c", clients=[both, alone]))],
            "two:4151": [topic("t", channel("c", clients=[{**both, "remote_address": "a:3"}]))],
        }
    )
    async with pages(nodes) as found:
        page = await found.page("/clients?sort=client")
        rows = [parsed(part).text for part in page.split("<tbody>")[1].split("<tr>")[1:]]
        assert ["1 of 2" in text for text in rows] == [False, True, False]
        assert len(parsed(await found.page("/clients?q=lonely")).text.split("a:2")) == 2
        before = len(found.nodes.gets)
        for _ in range(5):
            await found.page("/clients")
        assert len(found.nodes.gets) - before <= 4
