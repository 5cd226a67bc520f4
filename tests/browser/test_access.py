"""Signing in, and what each role sees and may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from admin.access.passwords import hash_password
from tests.browser.chromium import LOST, PHONE, Theme, check_accessible, screenshot, tab
from tests.browser.cluster import Cluster
from tests.soak import in_short_soak, in_soak, smoke

PASSWORD: Final = "correct horse"
MAY: Final = {
    "viewer": (),
    "operator": ("Publish a message", "Messages", "Pause topic"),
    "admin": ("Publish a message", "Messages", "Pause topic", "Empty queue", "Delete topic"),
}
EVERYTHING: Final = MAY["admin"]


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> Iterator[str]:
    """The address of a dashboard with a user of each role."""
    hashed = hash_password(PASSWORD)
    users = cluster.path / "users"
    users.touch(mode=0o600)
    users.write_text("".join(f"{role}-ann:{role}:{hashed}\n" for role in MAY))
    cluster.create("guarded", "c")
    admin = cluster.start_nsqadmin(f"--users-file={users}")
    yield f"http://{admin.value.http_address}"
    admin.close()


def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    """Fill in the form."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.parametrize("theme", smoke({"light": "light", "dark": "dark"}, "light", in_short=()))
def test_the_sign_in_page_is_accessible(theme: Theme, base: str, browser: Browser) -> None:
    """It is what a stranger gets of any page, in both themes; also after a wrong password."""
    with tab(browser, base, theme=theme) as at:
        page = at.go("/topics/guarded")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(page.get_by_label("Name")).to_be_focused()
        check_accessible(page)
        screenshot(page, f"sign-in-{theme}", whole=False)


def test_a_wrong_password_is_told_of_and_the_right_one_leads_on(
    base: str, browser: Browser
) -> None:
    """It does not say which of the two was wrong; after the right one the wanted page is shown.
    On a phone, without script."""
    with tab(browser, base, size=PHONE, script=False) as at:
        page = at.go("/topics/guarded?x=1")
        sign_in(page, "viewer-ann", "wrong")
        expect(page.get_by_role("alert")).to_be_visible()
        sign_in(page, "viewer-ann")
        expect(page).to_have_url(f"{base}/topics/guarded?x=1")
        expect(page.get_by_role("banner")).to_contain_text("viewer-ann · viewer")


@in_soak
def test_a_page_that_is_not_there_says_so(base: str, browser: Browser) -> None:
    """A mistyped address leads back to the overview; programs get JSON all the same."""
    with tab(browser, base, allowed="status of 404") as at:
        page = at.go("/")
        sign_in(page, "viewer-ann")
        at.live()
        answer = page.goto(f"{base}/nowhere")
        assert answer is not None
        assert answer.status == 404
        expect(page.get_by_role("heading", name="Not found")).to_be_visible()
        check_accessible(page)
        answer = page.goto(f"{base}/api/nowhere")
        assert answer is not None
        assert answer.json() == {"message": "NOT_FOUND"}
        page.goto(f"{base}/nowhere")
        page.get_by_role("link", name="Go to the overview", exact=True).click()
        expect(page).to_have_url(f"{base}/")


@pytest.mark.parametrize(
    "role", smoke({role: role for role in MAY}, "operator", in_short=("admin",))
)
def test_each_role_sees_what_it_may_do(role: str, base: str, browser: Browser) -> None:
    """Nobody is offered what would be refused; the audit is for admins; signing out ends it."""
    with tab(browser, base, allowed="status of 403") as at:
        page = at.go("/topics/guarded")
        sign_in(page, f"{role}-ann")
        expect(page.get_by_role("heading", name="guarded")).to_be_visible()
        at.live()
        actions = page.locator("main .head .actions")
        offered = [name for name in EVERYTHING if actions.get_by_text(name, exact=True).count()]
        assert offered == list(MAY[role])
        expect(page.locator("nav [data-place=audit]")).to_have_count(int(role == "admin"))
        screenshot(page, f"role-{role}")
        answer = page.goto(f"{base}/audit")
        assert answer is not None
        assert answer.status == (200 if role == "admin" else 403)
        if role != "admin":
            expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
            check_accessible(page)
        page = at.go("/topics/guarded")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.goto(f"{base}/topics")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


@in_short_soak
def test_an_operator_pauses_by_name_in_the_audit(
    base: str, browser: Browser, cluster: Cluster
) -> None:
    """What a signed-in user does is done, and an admin reads who it was."""
    cluster.create("named", "c")
    with tab(browser, base) as at:
        page = at.go("/topics/named")
        sign_in(page, "operator-ann")
        page.get_by_role("button", name="Pause topic").click()
        expect(page.locator("main > .note")).to_contain_text("Paused topic named.")
        assert (cluster.topic(0, "named") or {})["paused"] is True
    with tab(browser, base) as at:
        page = at.go("/audit")
        sign_in(page, "admin-ann")
        row = page.locator("main tbody tr", has_text="pause topic").first
        expect(row).to_contain_text("operator-ann")
        expect(row).to_contain_text("named")


@in_soak
def test_a_page_whose_session_has_ended_asks_to_sign_in(base: str, browser: Browser) -> None:
    """A live page of somebody who signed out elsewhere shows nothing more."""
    with tab(browser, base, allowed=LOST) as at:
        page = at.go("/topics/guarded")
        sign_in(page, "viewer-ann")
        at.live()
        other = page.context.new_page()
        other.goto(f"{base}/")
        other.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
