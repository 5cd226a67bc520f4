"""The checks themselves: they find what they are there for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import check_accessible, tab
from tests.browser.cluster import Cluster
from tests.soak import in_short_soak


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> Iterator[str]:
    """The address of a dashboard where nobody has to sign in."""
    admin = cluster.start_nsqadmin()
    yield f"http://{admin.value.http_address}"
    admin.close()


@in_short_soak
def test_a_field_without_a_label_is_found(base: str, browser: Browser) -> None:
    """A page of ours that is spoiled fails the check of accessibility."""
    with tab(browser, base) as at:
        page = at.go("/lookup")
        check_accessible(page)
        page.evaluate(
            "() => document.querySelector('#create').append(document.createElement('input'))"
        )
        with pytest.raises(AssertionError, match="label"):
            check_accessible(page)


def test_an_inline_script_is_blocked_and_found(base: str, browser: Browser) -> None:
    """The Content-Security-Policy holds in the browser, and its complaint fails a test."""
    spoil = """() => {
        const made = document.createElement('script');
        made.textContent = 'window.ran = true';
        document.body.append(made);
        document.body.setAttribute('style', 'color: red');
    }"""

    def spoiled() -> None:
        with tab(browser, base) as at:
            page = at.go("/")
            page.evaluate(spoil)
            assert page.evaluate("() => window.ran") is None

    with pytest.raises(AssertionError, match="Content Security Policy"):
        spoiled()
