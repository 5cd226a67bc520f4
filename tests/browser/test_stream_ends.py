"""A stream of ticks that ends is no error of the page: it is left in peace, or connects again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from admin.access.passwords import hash_password
from tests.browser.chromium import tab
from tests.browser.cluster import Cluster
from tests.soak import by_level, in_short_soak, more_in_soak

PASSWORD: Final = "correct horse"
TIMES: Final = by_level(test=1, short=3, full=50)
LATE_MS: Final = 1_500
ENDS_AT_ONCE: Final = "retry: 50\n\n"
"""A stream that the browser is to connect to again soon."""


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> Iterator[str]:
    """The address of a dashboard with one user."""
    users = cluster.path / "users"
    users.touch(mode=0o600)
    users.write_text(f"ann:viewer:{hash_password(PASSWORD)}\n")
    admin = cluster.start_nsqadmin(f"--users-file={users}")
    yield f"http://{admin.value.http_address}"
    admin.close()


def sign_in(page: Page) -> None:
    """Fill in the form, and wait for the page behind it."""
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    with page.expect_navigation():
        page.get_by_role("button", name="Sign in").click()


@more_in_soak
def test_a_stream_that_ends_while_the_page_is_left(base: str, browser: Browser) -> None:
    """Signing out ends the stream before the next page has come. Even if that takes long, the
    console has no complaint, time after time, and the page does not reload in between."""
    # What the page asked for just before is refused, and the browser itself says so.
    with tab(browser, base, allowed="status of 401") as at:
        page = at.page

        def answer_late(route: Route) -> None:
            answer = route.fetch(max_redirects=0)
            # nsqadmin ends the stream at its next poll, which comes each second.
            page.wait_for_timeout(LATE_MS)
            route.fulfill(response=answer)

        page.route("**/sign-out", answer_late)
        for _ in range(TIMES):
            page = at.go("/topics")
            sign_in(page)
            at.live()
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


@in_short_soak
def test_a_stream_that_ends_is_connected_again(base: str, browser: Browser) -> None:
    """A proxy or nsqadmin may end a stream at any time. The page connects again without a
    complaint and without a reload, and is live afterwards."""
    ended = 0

    def end_at_once(route: Route) -> None:
        nonlocal ended
        if ended == TIMES:
            route.fallback()
            return
        ended += 1
        route.fulfill(content_type="text/event-stream", body=ENDS_AT_ONCE)

    with tab(browser, base) as at:
        page = at.go("/nodes")
        sign_in(page)
        at.live()
        page.route("**/events", end_at_once)
        page = at.go("/nodes")
        page.evaluate("() => { window.stayed = true; }")
        with page.expect_response(lambda response: "hx-request" in response.request.headers):
            pass  # a tick came, so the page has fetched its live part
        expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
        assert ended == TIMES
        assert page.evaluate("() => window.stayed") is True


@in_short_soak
def test_a_stream_that_is_refused_is_tried_again(base: str, browser: Browser) -> None:
    """Too many streams are open, say. The page tries again by itself and is live then."""
    refusals = 3
    refused = 0

    def refuse(route: Route) -> None:
        nonlocal refused
        if refused == refusals:
            route.fallback()
            return
        refused += 1
        route.fulfill(status=503)

    with tab(browser, base, allowed="status of 503") as at:
        page = at.go("/nodes")
        sign_in(page)
        at.live()
        page.route("**/events", refuse)
        page.goto(f"{base}/nodes")
        expect(page.locator("#live-state")).to_have_attribute("data-state", "lost")
        expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
        assert refused == refusals


@in_short_soak
def test_a_page_that_was_not_left_connects_again(base: str, browser: Browser) -> None:
    """A link to a download ends the stream but not the page, which is live again soon."""
    with tab(browser, base) as at:
        at.page.clock.install()
        page = at.go("/nodes")
        sign_in(page)
        at.live()
        page.route("**/topics", lambda route: route.fulfill(status=204))
        page.locator("[data-place=topics]").click()
        with page.expect_request("**/events"):
            page.clock.fast_forward(10_000)
        expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
        assert page.url == f"{base}/nodes"
