"""Pages follow the cluster by themselves, until the dashboard ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.chromium import LOST, Tab, check_accessible, screenshot, tab
from tests.browser.cluster import Cluster
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


def mark(page: Page) -> None:
    """Leave something in the page that a reload would lose."""
    page.evaluate("() => { window.stayed = true; }")


def stayed(page: Page) -> bool:
    """Whether the page has not been loaded again since `mark`."""
    return bool(page.evaluate("() => window.stayed === true"))


def figure(page: Page, name: str) -> str:
    """Where the figure of a tile is."""
    return f'.tile:has(dt:text-is("{name}")) .figure'


def test_figures_and_charts_follow_without_a_reload(at: Tab, cluster: Cluster) -> None:
    """Messages that are published while the page is open are in its figures and its chart."""
    cluster.create("flow", "c")
    page = at.go("/topics/flow")
    mark(page)
    waiting = page.locator(figure(page, "Depth of its channels"))
    expect(waiting).to_have_text("0")
    cluster.publish(0, "flow", *[b"x"] * 5)
    cluster.publish(1, "flow", b"y", b"z")
    expect(waiting).to_have_text("7")
    chart = page.get_by_role("region", name="Depth over time")
    expect(chart).to_contain_text("depth 7")
    plot = chart.get_by_role("img", name="depth now 7")
    expect(plot).to_be_visible()
    plot.hover()
    expect(chart.locator(".chart-at")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d UTC · depth \d"))
    cluster.publish(0, "flow", b"z")
    expect(chart).to_contain_text("depth 8")
    expect(chart.locator(".chart-at")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d UTC · depth \d"))
    page.mouse.move(0, 0)
    expect(chart.locator(".chart-at")).to_have_text("")
    assert stayed(page)
    screenshot(page, "live-topic")


@in_soak
def test_the_overview_tells_of_a_new_backlog(at: Tab, cluster: Cluster) -> None:
    """A channel where nobody consumes appears among what is wrong."""
    page = at.go("/")
    mark(page)
    cluster.create("stuck", "nobody")
    cluster.publish(0, "stuck", b"x")
    problem = page.locator(".problems li", has_text="stuck / nobody")
    expect(problem).to_contain_text("no consumers")
    assert stayed(page)
    problem.get_by_role("link", name="Show stuck").click()
    expect(page).to_have_url(at.base + "/topics/stuck/nobody")


@in_short_soak
def test_updates_are_paused_and_resumed_by_a_key(at: Tab, cluster: Cluster) -> None:
    """While paused nothing moves; what was missed is there at once afterwards."""
    cluster.create("calm", "c")
    page = at.go("/topics/calm")
    waiting = page.locator(figure(page, "Depth of its channels"))
    state = page.locator("#live-state")
    page.keyboard.press("p")
    expect(state).to_have_text("Paused")
    page.evaluate(
        "() => { window.ticks = 0;"
        " document.querySelector('#live').addEventListener('tick', () => { window.ticks += 1; }); }"
    )
    cluster.publish(0, "calm", b"x")
    page.wait_for_function("() => window.ticks >= 2")
    expect(waiting).to_have_text("0")
    page.keyboard.press("p")
    expect(state).to_have_text("Live")
    expect(waiting).to_have_text("1")


@in_short_soak
def test_an_update_that_is_on_its_way_does_not_come_to_a_paused_page(
    at: Tab, cluster: Cluster
) -> None:
    """It was asked for before the pause, and its answer would come after it."""
    cluster.create("late", "c")
    page = at.go("/topics/late")
    waiting = page.locator(figure(page, "Depth of its channels"))
    expect(waiting).to_have_text("0")
    held: list[Route] = []
    page.route("**/topics/late", lambda route: held.append(route))
    while not held:
        page.wait_for_timeout(50)
    cluster.publish(0, "late", b"x")
    page.keyboard.press("p")
    expect(page.locator("#live-state")).to_have_text("Paused")
    page.evaluate(
        "() => { window.answers = 0;"
        " document.addEventListener('htmx:afterOnLoad', () => { window.answers += 1; }); }"
    )
    other = page.context.new_page()
    other.goto(page.url)  # so the answer has the message
    expect(other.locator(figure(other, "Depth of its channels"))).to_have_text("1")
    for route in held:
        route.continue_()
    page.unroute("**/topics/late")
    page.wait_for_function("() => window.answers")
    expect(waiting).to_have_text("0")
    page.keyboard.press("p")
    expect(waiting).to_have_text("1")


def test_what_is_typed_survives_updates(at: Tab, cluster: Cluster) -> None:
    """A search that is being typed, and where the keyboard is, outlive what is fetched anew."""
    cluster.create("typed", "c")
    page = at.go("/topics/typed/c")
    field = page.get_by_role("searchbox", name="Search clients")
    field.press_sequentially("abc")
    cluster.publish(0, "typed", b"x")
    expect(page.locator(figure(page, "Depth"))).to_have_text("1")
    expect(field).to_have_value("abc")
    expect(field).to_be_focused()


@in_short_soak
def test_keys_lead_to_pages_and_search(at: Tab, cluster: Cluster) -> None:
    """g n, g t and /; ? lists them; the skip link is the first stop of the tab key."""
    page = at.go("/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text("Nodes")
    at.live()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    cluster.create("findme", "c")
    page.keyboard.type("findm")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("findme")


@in_soak
def test_the_theme_is_chosen_and_kept(at: Tab) -> None:
    """The button turns the page dark, and the next page is dark from the start."""
    page = at.go("/")
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.get_by_role("button", name="Dark theme")
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    dark = page.evaluate(background)
    assert dark != light
    page = at.go("/nodes")
    assert page.evaluate(background) == dark
    expect(page.get_by_role("button", name="Dark theme")).to_have_attribute("aria-pressed", "true")


@in_short_soak
def test_a_node_that_stops_costs_its_own_row_only(browser: Browser, cluster: Cluster) -> None:
    """Pages that are open say so without a reload; the other node's figures go on."""
    cluster.create("both", "c")
    cluster.publish(0, "both", b"x", b"y", b"z")
    admin = cluster.start_nsqadmin()
    third = cluster.start_nsqd("third")
    cluster.until(lambda: len(cluster.nodes()) == 3, "the third nsqd is registered")
    node = third.value.http_address
    with tab(browser, f"http://{admin.value.http_address}") as at:
        page = at.go("/nodes")
        row = page.locator("main tbody tr", has_text=node)
        expect(row).to_contain_text("answers")
        mark(page)
        third.close()
        expect(row).to_contain_text("does not answer")
        other = page.locator("main tbody tr", has_text=cluster.node(0))
        expect(other).not_to_contain_text("does not answer")
        assert stayed(page)
        page = at.go("/")
        expect(page.locator(".problems")).to_contain_text(node)
        screenshot(page, "node-down")
    admin.close()


@in_short_soak
def test_streams_end_at_shutdown_and_pages_come_back(browser: Browser, cluster: Cluster) -> None:
    """An nsqadmin that is told to stop does, though a page listens; the page says that it has lost
    it, and is live again when there is one at that address."""
    admin = cluster.start_nsqadmin()
    address = admin.value.http_address
    with tab(browser, f"http://{address}", allowed=LOST) as at:
        page = at.go("/")
        mark(page)
        admin.close()
        assert admin.value.process.returncode == 0
        state = page.locator("#live-state")
        expect(state).to_have_attribute("data-state", "lost")
        again = cluster.start_nsqadmin(f"--http-address={address}")
        expect(state).to_have_attribute("data-state", "live")
        assert stayed(page)
    again.close()


@in_short_soak
def test_one_nsqd_shows_itself_live(browser: Browser, cluster: Cluster) -> None:
    """`nsqd --admin` has the same pages below /admin, which follow, and end with it."""
    nsqd = cluster.start_nsqd("alone", "--admin")
    address = nsqd.value.http_address
    with tab(browser, f"http://{address}/admin", allowed=LOST) as at:
        url = f"http://{address}/topic/create"
        assert cluster.http.post(url, params={"topic": "inside"}).status_code == 200
        page = at.go("/topics/inside")
        mark(page)
        url = f"http://{address}/pub"
        assert cluster.http.post(url, params={"topic": "inside"}, content=b"x").status_code == 200
        waiting = page.locator(figure(page, "Depth of the topic"))
        expect(waiting).to_have_text("1")
        assert stayed(page)
        check_accessible(page)
        screenshot(page, "nsqd-admin")
        with page.expect_navigation():
            page.get_by_role("link", name="Overview", exact=True).click()
        at.live()
        expect(page.locator("h1")).to_be_visible()
        nsqd.close()
        assert nsqd.value.process.returncode == 0
        expect(page.locator("#live-state")).to_have_attribute("data-state", "lost")
