"""Lists, clients and messages as somebody works with them: hostile names, choices, favourites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import DESKTOP, PHONE, Tab, Theme, check_accessible, screenshot, tab
from tests.browser.cluster import Cluster, Consumer
from tests.soak import in_short_soak, in_soak, smoke

SIZES: Final = {"wide": (1400, 900), "desktop": DESKTOP, "phone": PHONE}
LOOKS: Final = {f"{size}-{theme}": (size, theme) for size in SIZES for theme in ("light", "dark")}
LONG: Final = "agent/" + "x" * 900
MARKED: Final = "0.1\u202eevil"


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> Iterator[str]:
    """The address of a dashboard where nobody has to sign in."""
    for number in range(30):
        cluster.post(0, "/topic/create", topic=f"svc.t{number:02}")
    cluster.create("odd", "c")
    cluster.publish(0, "odd", *[f"m{n}\u202elive".encode() for n in range(8)])
    admin = cluster.start_nsqadmin()
    hostile = Consumer(cluster.nsqds[0].value, "odd", "c", ready=2, name=LONG, agent=LONG + MARKED)
    with closing(hostile):
        yield f"http://{admin.value.http_address}"
    admin.close()


@pytest.fixture
def at(browser: Browser, base: str) -> Iterator[Tab]:
    """A page with script."""
    with tab(browser, base) as made:
        yield made


def told(page: Page, text: str) -> None:
    """The line after an action."""
    expect(page.locator("main > .note")).to_contain_text(text)


@pytest.mark.parametrize("look", smoke(LOOKS, in_short=("phone-dark", "wide-light")))
def test_a_hostile_client_spoils_no_page(
    look: tuple[str, Theme], base: str, browser: Browser
) -> None:
    """A name of 900 characters is cut, a mark that reorders text is written out; nothing
    becomes wider than the window."""
    size, theme = look
    with tab(browser, base, size=SIZES[size], theme=theme) as at:
        for path in ("/topics/odd/c", "/clients", "/peek?topic=odd&channel=c"):
            page = at.go(path)
            wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, path
            check_accessible(page)
        expect(page.locator("pre").first).to_contain_text("\\u202elive")
        page = at.go("/clients?q=agent")
        cell = page.locator("main tbody tr").first
        expect(cell).to_be_visible()
        box = cell.bounding_box()
        assert box is not None
        assert box["height"] < (120 if size != "phone" else 500)
        screenshot(page, f"clients-{size}-{theme}")


@in_short_soak
def test_24_topics_fit_a_screen_of_900_pixels(base: str, browser: Browser) -> None:
    """As with the original."""
    with tab(browser, base, size=(1400, 900)) as at:
        page = at.go("/topics?q=svc")
        boxes = [row.bounding_box() for row in page.locator("main tbody tr").all()]
        fit = [box for box in boxes if box is not None and box["y"] + box["height"] <= 900]
        assert len(fit) >= 24


@in_short_soak
def test_choices_survive_updates_and_are_done_at_once(at: Tab, cluster: Cluster) -> None:
    """Boxes stay checked when the table is fetched again; what they name is paused."""
    page = at.go("/topics?q=svc.t0")
    for name in ("svc.t01", "svc.t02"):
        page.get_by_label(f"Select {name}", exact=True).check()
    with page.expect_response(lambda answer: "/topics" in answer.url):
        page.evaluate("() => htmx.trigger('#live', 'refresh')")
    expect(page.get_by_label("Select svc.t01", exact=True)).to_be_checked()
    page.get_by_role("button", name="Pause", exact=True).click()
    told(page, "Paused 2 topics.")
    expect(page).to_have_url(re.compile(r"/topics\?.*q=svc\.t0"))
    paused = [(cluster.topic(0, f"svc.t{n:02}") or {})["paused"] for n in range(4)]
    assert paused == [False, True, True, False]


@in_short_soak
def test_several_are_deleted_by_keyboard_and_without_script(
    base: str, browser: Browser, cluster: Cluster
) -> None:
    """Their number has to be typed."""
    cluster.create("gone.a")
    cluster.create("gone.b")
    with tab(browser, base, script=False) as at:
        page = at.page

        def is_listed() -> bool:
            at.go("/topics?q=gone")
            return page.get_by_label("Select gone.b", exact=True).count() == 1

        cluster.until(is_listed, "the poller has seen both")
        for name in ("gone.a", "gone.b"):
            page.get_by_label(f"Select {name}", exact=True).focus()
            page.keyboard.press("Space")
        page.get_by_role("button", name="Delete", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Delete 2 topics?")).to_be_visible()
        page.get_by_label("To confirm, type").fill("delete 2")
        page.keyboard.press("Enter")
        told(page, "Deleted 2 topics.")
    assert [cluster.topic(0, f"gone.{each}") for each in "ab"] == [None, None]


@in_short_soak
def test_a_page_that_stands_still_is_followed_by_one_that_does(at: Tab) -> None:
    """D21: who pauses updates need not do so on each page."""
    page = at.go("/topics")
    page.keyboard.press("p")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "paused")
    page.goto(f"{at.base}/topics/odd")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "paused")
    page.keyboard.press("p")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")


@in_soak
def test_what_is_opened_stays_open(at: Tab) -> None:
    """D10: an update does not close it."""
    page = at.go("/nodes")
    details = page.locator("main details").first
    details.locator("summary").click()
    with page.expect_response(lambda answer: "/nodes" in answer.url):
        page.evaluate("() => htmx.trigger('#live', 'refresh')")
    expect(details).to_have_attribute("open", "")


@in_short_soak
def test_a_message_in_flight_is_requeued_and_finished(at: Tab, cluster: Cluster) -> None:
    """By buttons of its own; finishing asks first."""
    page = at.go("/peek?topic=odd&channel=c&state=in_flight")
    count = page.locator("article.message").count()
    assert count == 2
    page.get_by_role("button", name="Requeue now").first.click()
    told(page, "Requeued message")
    page.locator("details.sure summary").first.click()
    check_accessible(page)
    page.get_by_role("button", name="Finish the message").first.click()
    told(page, "Finished message")
    held = cluster.channel(0, "odd", "c") or {}
    assert held["depth"] + held["in_flight_count"] == 7


@in_short_soak
def test_a_message_is_published_again_and_downloaded(at: Tab, cluster: Cluster) -> None:
    """The form has its body; the file is the body as it is."""
    cluster.create("again", "c")
    cluster.publish(0, "again", b"once\nmore")
    page = at.go("/peek?topic=again&channel=c")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").first.click()
    assert download.value.path().read_bytes() == b"once\nmore"
    page.get_by_role("link", name="Publish again").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Message")).to_have_value("once\nmore")
    dialog.get_by_label("Node").select_option(cluster.node(1))
    dialog.get_by_role("button", name="Publish").click()
    told(page, f"Published 9 bytes to {cluster.node(1)}.")
    assert (cluster.topic(1, "again") or {})["message_count"] == 1


@in_short_soak
def test_a_policy_makes_a_dead_letter_that_is_replayed(at: Tab, cluster: Cluster) -> None:
    """From the form for the policy to the replay of the message, all in the browser."""
    page = at.go("/policies/edit")
    page.get_by_label("Name").fill("bad")
    page.get_by_label("Settings (JSON)").fill('{"topics": "bad", "max_atempts": 2}')
    page.get_by_role("button", name="Save on all nodes").click()
    expect(page.get_by_role("alert")).to_contain_text("max_atempts")
    page.get_by_label("Settings (JSON)").fill('{"topics": "bad", "max_attempts": 2}')
    page.get_by_role("button", name="Save on all nodes").click()
    told(page, "Saved policy bad on 2 nodes.")
    page = at.go("/drain?node=" + cluster.node(1))
    page.get_by_label("Go on to run").check()
    page.get_by_label("To confirm, type").fill(cluster.node(1))
    page.get_by_role("button", name="Drain the node").click()
    told(page, f"{cluster.node(1)} drains.")
    page.get_by_role("button", name="Cancel the drain").click()
    told(page, f"{cluster.node(1)} does not drain any more.")
    cluster.create("bad", "c")
    cluster.publish(0, "bad", b"poison")
    place = {"topic": "bad", "channel": "c"}
    with closing(Consumer(cluster.nsqds[0].value, "bad", "c", ready=1)):
        held: list[str] = []

        def in_flight() -> bool:
            answer = cluster.http.get(
                f"http://{cluster.node(0)}/channel/peek", params={**place, "state": "in_flight"}
            )
            held[:] = [message["id"] for message in answer.json()["messages"]]
            return bool(held)

        cluster.until(in_flight, "the message is in flight")
        cluster.post(0, "/channel/requeue", b"", **place, id=held[0])
        cluster.until(in_flight, "it is in flight again")
        cluster.post(0, "/channel/requeue", b"", **place, id=held[0])

        def is_dead() -> bool:
            answer = cluster.http.get(f"http://{cluster.node(0)}/deadletter", params=place)
            return bool(answer.json()["count"])

        cluster.until(is_dead, "the channel has given it up")
        page = at.go("/deadletters?topic=bad&channel=c")
        expect(page.locator("article.message pre")).to_have_text("poison")
        page.get_by_role("link", name="Replay all 1").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Replay").click()
        told(page, "1 message on the way back to the channel")
        cluster.until(in_flight, "it is delivered once more")
