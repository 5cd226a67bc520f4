"""Each action as a user does it, and what the nodes say of it afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.chromium import Tab, check_accessible, screenshot, tab
from tests.browser.cluster import Cluster, Consumer
from tests.soak import in_short_soak, in_soak


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> Iterator[str]:
    """The address of a dashboard where nobody has to sign in."""
    admin = cluster.start_nsqadmin()
    yield f"http://{admin.value.http_address}"
    admin.close()


@pytest.fixture
def at(browser: Browser, base: str) -> Iterator[Tab]:
    """A page with script."""
    with tab(browser, base) as made:
        yield made


@pytest.fixture
def plain(browser: Browser, base: str) -> Iterator[Tab]:
    """A page without script."""
    with tab(browser, base, script=False) as made:
        yield made


def told(page: Page, text: str) -> None:
    """The line after an action."""
    expect(page.locator("main > .note")).to_contain_text(text)


def press(page: Page, name: str) -> None:
    """Press a button of the page."""
    page.locator("main").get_by_role("button", name=name, exact=True).click()


def ask(page: Page, name: str) -> Locator:
    """Follow a link that opens a form in a dialog; by script, so the page must be loaded."""
    page.wait_for_load_state()
    page.locator("main").get_by_role("link", name=name, exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    return dialog


def confirm(dialog: Locator, name: str, label: str) -> None:
    """Type the name; the button can be pressed only if it is right."""
    field = dialog.get_by_label(re.compile("To confirm, type"))
    expect(field).to_be_focused()
    button = dialog.get_by_role("button", name=label, exact=True)
    field.fill(name[:-1])
    expect(button).to_be_disabled()
    field.fill(name)
    expect(button).to_be_enabled()
    button.click()


def depth(cluster: Cluster, topic: str, channel: str) -> int:
    """What waits in a channel, over both nodes."""
    found = [cluster.channel(which, topic, channel) for which in (0, 1)]
    return sum(each["depth"] for each in found if each is not None)


@in_short_soak
def test_a_topic_and_a_channel_are_created(at: Tab, cluster: Cluster) -> None:
    """Lookup's form registers both with nsqlookupd; a name that is none is refused."""
    page = at.go("/lookup")
    page.get_by_label("Topic", exact=True).fill("made")
    page.get_by_label("Channel (optional)").fill("here")
    press(page, "Create")
    told(page, "Created channel here of made.")
    assert "here" in cluster.lookup("made")["channels"]
    page = at.go("/lookup")
    page.get_by_label("Topic", exact=True).fill("not a name")
    press(page, "Create")
    expect(page.locator("#create-topic:invalid")).to_be_focused()
    assert cluster.lookup("not a name")["producers"] == []


@in_short_soak
def test_a_topic_is_paused_and_unpaused(at: Tab, cluster: Cluster) -> None:
    """On every node, and the page says so."""
    cluster.create("to-pause", "c")
    page = at.go("/topics/to-pause")
    press(page, "Pause topic")
    told(page, "Paused topic to-pause.")
    expect(page.locator("#live .note")).to_contain_text("Paused.")
    assert [(cluster.topic(n, "to-pause") or {})["paused"] for n in (0, 1)] == [True, True]
    press(page, "Unpause topic")
    told(page, "Unpaused topic to-pause.")
    assert [(cluster.topic(n, "to-pause") or {})["paused"] for n in (0, 1)] == [False, False]


@in_soak
def test_a_channel_is_paused_and_unpaused(at: Tab, cluster: Cluster) -> None:
    """As a topic is; the topic itself goes on."""
    cluster.create("half", "c", "d")
    page = at.go("/topics/half/c")
    press(page, "Pause channel")
    told(page, "Paused channel c of half.")
    assert (cluster.channel(1, "half", "c") or {})["paused"] is True
    assert (cluster.channel(1, "half", "d") or {})["paused"] is False
    press(page, "Unpause channel")
    told(page, "Unpaused channel c of half.")
    assert (cluster.channel(1, "half", "c") or {})["paused"] is False


def test_a_message_is_published(at: Tab, cluster: Cluster) -> None:
    """As text and as hex, to the chosen node; what is no hex is refused, and still there."""
    cluster.create("post", "c")
    page = at.go("/topics/post")
    dialog = ask(page, "Publish a message")
    check_accessible(page)
    dialog.get_by_label("Message").fill('{"hello": "world"}')
    dialog.get_by_label("Node").select_option(cluster.node(1))
    dialog.get_by_role("button", name="Publish").click()
    told(page, f"Published 18 bytes to {cluster.node(1)}.")
    assert (cluster.topic(1, "post") or {})["message_count"] == 1
    dialog = ask(page, "Publish a message")
    dialog.get_by_label("Message").fill("00 ff xx")
    dialog.get_by_label("Format").select_option("hex")
    dialog.get_by_role("button", name="Publish").click()
    expect(page.locator("main .note.bad")).to_be_visible()
    field = page.locator("main").get_by_label("Message")
    expect(field).to_have_value("00 ff xx")
    field.fill("00 ff")
    press(page, "Publish")
    told(page, "Published 2 bytes to")


@in_short_soak
def test_messages_are_peeked_at_and_stay(at: Tab, cluster: Cluster) -> None:
    """JSON with indents, bytes as hex, markup as text; queued and in flight; none is consumed."""
    cluster.create("glass", "c")
    bodies = [b'{"a":{"b":[1,2]}}', b"\x00\x01\xfe", b"<script>alert(1)</script>"]
    cluster.publish(0, "glass", *bodies)
    page = at.go("/topics/glass/c")
    with page.expect_navigation():
        page.get_by_role("link", name="Messages", exact=True).click()
    with page.expect_navigation():
        page.get_by_label("Node", exact=True).select_option(cluster.node(0))
    messages = page.locator("article.message")
    expect(messages).to_have_count(3)
    expect(messages.nth(0).locator("pre")).to_contain_text('"b": [')
    expect(messages.nth(1).locator("pre.hex")).to_contain_text("00 01 fe")
    expect(messages.nth(2).locator("pre")).to_have_text("<script>alert(1)</script>")
    held = cluster.channel(0, "glass", "c") or {}
    assert (held["depth"], held["in_flight_count"]) == (3, 0)
    with closing(Consumer(cluster.nsqds[0].value, "glass", "c")):
        cluster.until(
            lambda: (cluster.channel(0, "glass", "c") or {})["in_flight_count"] == 1, "in flight"
        )
        page.get_by_label("State", exact=True).select_option("in_flight")
        expect(messages).to_have_count(1)
        expect(messages.first).to_contain_text("times out in")


def test_a_channel_is_emptied_after_its_name_is_typed(at: Tab, cluster: Cluster) -> None:
    """The dialog says how many messages are at stake over all nodes, and is accessible."""
    cluster.create("full", "c", "d")
    cluster.publish(0, "full", *[b"x"] * 4)
    cluster.publish(1, "full", b"y")
    page = at.go("/topics/full/c")
    dialog = ask(page, "Empty queue")
    expect(dialog.locator(".stake")).to_have_text("5")
    check_accessible(page)
    screenshot(page, "dialog-empty", whole=False)
    confirm(dialog, "c", "Empty queue")
    told(page, "Emptied channel c of full.")
    depths = [(cluster.channel(n, "full", c) or {})["depth"] for c in "cd" for n in (0, 1)]
    assert depths == [0, 0, 4, 1]


@in_soak
def test_a_topic_is_emptied(at: Tab, cluster: Cluster) -> None:
    """What waits at the topic is gone; a dialog that is left does nothing."""
    cluster.create("waiting")
    cluster.publish(0, "waiting", b"x", b"y")
    page = at.go("/topics/waiting")
    dialog = ask(page, "Empty queue")
    dialog.get_by_role("link", name="Cancel").click()
    expect(dialog).to_be_hidden()
    ask(page, "Empty queue")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert (cluster.topic(0, "waiting") or {})["depth"] == 2
    confirm(ask(page, "Empty queue"), "waiting", "Empty queue")
    told(page, "Emptied topic waiting.")
    assert (cluster.topic(0, "waiting") or {})["depth"] == 0


@in_soak
def test_a_channel_is_deleted(at: Tab, cluster: Cluster) -> None:
    """From every node and nsqlookupd; the topic's page follows."""
    cluster.create("prune", "keep", "drop")
    page = at.go("/topics/prune/drop")
    confirm(ask(page, "Delete channel"), "drop", "Delete channel")
    told(page, "Deleted channel drop of prune.")
    expect(page).to_have_url(at.base + "/topics/prune")
    assert [cluster.channel(n, "prune", "drop") for n in (0, 1)] == [None, None]
    assert cluster.lookup("prune")["channels"] == ["keep"]


@in_short_soak
def test_a_topic_is_deleted(at: Tab, cluster: Cluster) -> None:
    """From every node and nsqlookupd."""
    cluster.create("doomed", "c")
    page = at.go("/topics/doomed")
    confirm(ask(page, "Delete topic"), "doomed", "Delete topic")
    told(page, "Deleted topic doomed.")
    expect(page).to_have_url(at.base + "/topics")
    assert [cluster.topic(n, "doomed") for n in (0, 1)] == [None, None]
    assert cluster.lookup("doomed")["producers"] == []


@in_short_soak
def test_a_topic_is_tombstoned_on_one_node(at: Tab, cluster: Cluster) -> None:
    """Consumers are not told of that node any more, and it has the topic no more."""
    cluster.create("buried", "c")
    page = at.go("/topics/buried")
    node = cluster.node(0)
    confirm(ask(page, f"Tombstone buried on {node}"), "buried", "Tombstone")
    told(page, f"Tombstoned buried on {node}.")
    left = cluster.lookup("buried")["producers"]
    assert [f"{each['broadcast_address']}:{each['http_port']}" for each in left] == [
        cluster.node(1)
    ]
    assert cluster.topic(0, "buried") is None


@in_short_soak
def test_everything_is_done_without_script(plain: Tab, cluster: Cluster) -> None:
    """Create, pause, publish, empty and delete by plain forms; a wrong name does nothing."""
    page = plain.go("/lookup")
    page.get_by_label("Topic", exact=True).fill("plain")
    page.get_by_label("Channel (optional)").fill("c")
    press(page, "Create")
    told(page, "Created channel c of plain.")
    plain.go("/topics/plain")
    page.get_by_role("link", name="Publish a message").click()
    page.get_by_label("Message").fill("by hand")
    press(page, "Publish")
    told(page, "Published 7 bytes to")
    cluster.until(lambda: depth(cluster, "plain", "c") == 1, "the message is in the channel")
    plain.go("/topics/plain/c")
    press(page, "Pause channel")
    told(page, "Paused channel c of plain.")
    for typed, text in (("x", "Nothing was done"), ("c", "Emptied channel c of plain.")):
        page.get_by_role("link", name="Empty queue").click()
        expect(page.locator(".stake")).to_have_text("1")
        page.get_by_label("To confirm, type").fill(typed)
        press(page, "Empty queue")
        told(page, text)
    assert depth(cluster, "plain", "c") == 0
    plain.go("/topics/plain")
    page.get_by_role("link", name="Delete topic").click()
    page.get_by_label("To confirm, type").fill("plain")
    press(page, "Delete topic")
    told(page, "Deleted topic plain.")
    assert [cluster.topic(n, "plain") for n in (0, 1)] == [None, None]


@in_soak
def test_actions_are_in_the_audit(at: Tab, cluster: Cluster) -> None:
    """The newest is first: what, on what, and with which result."""
    cluster.create("noted", "c")
    page = at.go("/topics/noted/c")
    press(page, "Pause channel")
    told(page, "Paused channel c of noted.")
    page = at.go("/audit")
    row = page.locator("main tbody tr").first
    expect(row).to_contain_text("pause channel")
    expect(row).to_contain_text("noted / c")
