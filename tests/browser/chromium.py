"""Chromium, headless, and pages in it that tolerate no error of ours."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

VARIABLE: Final = "TRIONSQ_TEST_CHROMIUM"
SCREENSHOTS: Final = Path(__file__).parents[2] / "build" / "screenshots"
DESKTOP: Final = (1280, 800)
PHONE: Final = (390, 844)
LIMIT_MS: Final = 60_000

# What Chromium itself logs when nobody answers, or a session has ended.
LOST: Final = r"ERR_|status of 401|htmx:(afterRequest|sendError)"

Theme = Literal["light", "dark"]

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_AXE: Final = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
_RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_SERIOUS: Final = ("serious", "critical")
# Screenshots are the same at each run, and axe does not measure a color in transition.
_NO_MOTION: Final = "reduce"


def chromium_path() -> str:
    """The browser's executable; skips the test, or fails it where one could be installed."""
    named = os.environ.get(VARIABLE)
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if found:
        return found
    line = f"no Chromium: run 'apt-get install chromium' as root, or name one by {VARIABLE}"
    if os.environ.get("CI") or (os.geteuid() == 0 and Path("/etc/debian_version").exists()):
        pytest.fail(line)
    pytest.skip(line)


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A headless browser."""
    path = chromium_path()
    # Chromium's own sandbox does not work for root; it only ever sees our pages.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    flags += ["--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars"]
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page, and what its console said; ``base`` is the address of the dashboard."""

    page: Page
    base: str
    script: bool = True
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def go(self, path: str) -> Page:
        """Open a path of the dashboard; once it is live if it can be."""
        self.page.goto(self.base + path)
        self.live()
        return self.page

    def live(self) -> None:
        """Wait until the page is connected and has fetched its live part, if it has one."""
        if self.script and self.page.locator("body[data-events]").count():
            expect(self.page.locator("#live-state.quiet")).to_have_attribute("data-state", "live")


@contextmanager
def tab(
    browser: Browser,
    base: str,
    *,
    theme: Theme = "light",
    size: tuple[int, int] = DESKTOP,
    script: bool = True,
    allowed: str = "",
) -> Iterator[Tab]:
    """A page of its own cookies; fails if the console complains of what ``allowed`` can't match."""
    context = _context(browser, theme, size, script)
    try:
        made = Tab(context.new_page(), base, script)
        yield made
        bad = [line for line in made.complaints if not (allowed and re.search(allowed, line))]
        assert not bad, "\n".join(bad)
    finally:
        context.close()


def _context(browser: Browser, theme: Theme, size: tuple[int, int], script: bool) -> BrowserContext:
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        reduced_motion=_NO_MOTION,
        java_script_enabled=script,
        locale="en-US",
        timezone_id="UTC",
    )
    context.set_default_timeout(LIMIT_MS)
    return context


def screenshot(page: Page, name: str, *, whole: bool = True) -> None:
    """Keep what the page looks like, as build/screenshots/``name``.png."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)


def check_accessible(page: Page) -> None:
    """Nothing serious or critical is found by axe-core; less is printed."""
    # By the debugger's protocol, so that the page's Content-Security-Policy stays as it is.
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(f"() => {{ {_AXE} }}")
    found: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules},"
        " resultTypes: ['violations']})",
        _RULES,
    )
    assert found["testEngine"]["name"] == "axe-core"
    assert len(found["passes"]) > 5, "axe looked at nothing"
    texts = [_told(violation) for violation in found["violations"]]
    serious = [text for impact, text in texts if impact in _SERIOUS]
    for impact, text in texts:
        print(f"axe, {impact}: {text}")
    assert not serious, "\n".join(serious)


def _told(violation: dict[str, Any]) -> tuple[str, str]:
    places = "; ".join(
        f"{node['target']} {node['failureSummary']}" for node in violation["nodes"][:5]
    )
    return violation["impact"], f"{violation['id']}: {violation['help']} at {places}"
