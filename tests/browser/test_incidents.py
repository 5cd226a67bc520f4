"""What an operator sees while daemons are dead, hang or have just been restarted."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import LOST, PHONE, Tab, check_accessible, screenshot, tab
from tests.browser.cluster import Cluster, Held, running_cluster
from tests.processes import DaemonProcess, NsqdProcess, free_address
from tests.soak import in_short_soak

WIDE = (1400, 900)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test breaks: orders on both nodes, legacy on the second one alone."""
    with running_cluster(tmp_path) as running:
        running.create("orders", "billing")
        running.publish(0, "orders", *[b"x"] * 30)
        running.publish(1, "orders", *[b"x"] * 40)
        running.post(1, "/topic/create", topic="legacy")
        running.publish(1, "legacy", *[b"x"] * 7)
        yield running


@contextmanager
def watched(
    cluster: Cluster, browser: Browser, *flags: str, size: tuple[int, int] = WIDE
) -> Iterator[Tab]:
    """A fresh nsqadmin that has seen both nodes, and a browser in front of it."""
    admin = cluster.start_nsqadmin(*flags)
    try:
        base = f"http://{admin.value.http_address}"
        cluster.until(lambda: f"{cluster.node(1)}" in cluster.http.get(base).text, "it polls")
        with tab(browser, base, size=size, allowed=LOST) as at:
            yield at
    finally:
        admin.close()


def send(daemon: Held[NsqdProcess] | Held[DaemonProcess], number: signal.Signals) -> None:
    """A signal to a daemon."""
    os.kill(daemon.value.process.pid, number)


def figure(page: Page, name: str) -> str:
    """Where the figure of a tile is."""
    return f'.tile:has(dt:text-is("{name}")) .figure'


def look(at: Tab, name: str) -> None:
    """What it looks like in both themes, and on a phone, where nothing scrolls sideways."""
    page = at.page
    screenshot(page, f"incident-{name}")
    page.emulate_media(color_scheme="dark")
    screenshot(page, f"incident-{name}-dark")
    page.emulate_media(color_scheme="light")
    for width, height in ((1280, 800), PHONE):
        page.set_viewport_size({"width": width, "height": height})
        wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (name, width)
    screenshot(page, f"incident-{name}-phone")
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})


def check_silent_node(at: Tab, cluster: Cluster, name: str) -> None:
    """The second node is missed on each page, and nothing of it is drawn as zero."""
    node = cluster.node(1)
    page = at.go("/")
    problem = page.locator(".problems li", has_text=node)
    expect(problem).to_contain_text("critical")
    expect(problem).to_contain_text("It held 47 messages")
    expect(page.locator("main")).not_to_contain_text("Every node answers")
    expect(page).to_have_title(re.compile(r"^\(\d+\) Overview"))
    assert "logo-bad" in (page.locator("#icon").get_attribute("href") or "")
    look(at, f"{name}-overview")
    page = at.go(f"/nodes/{node}")
    expect(page.locator(figure(page, "Depth"))).to_have_text("47")
    expect(page.locator(figure(page, "Depth")).locator(".old-figure")).to_be_visible()
    expect(page.locator("main")).to_contain_text("Topics when last seen")
    check_accessible(page)
    look(at, f"{name}-node")
    page = at.go("/nodes")
    expect(page.locator("tr", has_text=node)).to_contain_text("does not answer")
    check_accessible(page)
    look(at, f"{name}-nodes")
    page = at.go("/topics/orders")
    expect(page.locator(figure(page, "Depth of its channels"))).to_have_text("≥ 30")
    expect(page.locator("tr.down", has_text=node).locator("td.old-figure").first).to_be_visible()
    check_accessible(page)
    look(at, f"{name}-topic")
    page = at.go("/topics/legacy")
    expect(page.locator("main")).to_contain_text("with 7 messages")
    page = at.go("/topics?q=legacy")
    expect(page.locator("tbody")).to_contain_text("held 7")


@in_short_soak
def test_a_node_that_died_is_missed_by_the_next_nsqadmin_too(
    browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    """kill -9 while nobody looks: critical, with its last figures, over a restart of nsqadmin;
    until an admin has it forgotten."""
    state = f"--state-file={tmp_path / 'state'}"
    with watched(cluster, browser, state) as at:
        send(cluster.nsqds[1], signal.SIGKILL)
        check_silent_node(at, cluster, "killed")
    cluster.until(lambda: len(cluster.nodes()) == 1, "nsqlookupd has forgotten it")
    with watched(cluster, browser, state) as at:
        check_silent_node(at, cluster, "fresh")
        page = at.go("/nodes")
        page.get_by_role("button", name=f"Forget {cluster.node(1)}").click()
        expect(page.locator("main")).to_contain_text(f"Forgot {cluster.node(1)}")
        expect(page.locator("tr", has_text=cluster.node(1))).to_have_count(0)
        page = at.go("/")
        expect(page.locator("main")).to_contain_text("Every node answers")


@in_short_soak
def test_a_node_that_hangs_keeps_its_figures(browser: Browser, cluster: Cluster) -> None:
    """kill -STOP of an nsqd; after CONT it is there again."""
    with watched(cluster, browser) as at:
        send(cluster.nsqds[1], signal.SIGSTOP)
        try:
            check_silent_node(at, cluster, "hung")
        finally:
            send(cluster.nsqds[1], signal.SIGCONT)
        page = at.go("/")
        expect(page.locator("main")).to_contain_text("Every node answers")


@in_short_soak
def test_a_restart_that_lost_messages_is_told(browser: Browser, tmp_path: Path) -> None:
    """With their number and a mark in the chart; nothing of them counts as finished."""
    with running_cluster(tmp_path) as cluster:
        places = f"--tcp-address={free_address()}", f"--http-address={free_address()}"
        third = cluster.start_nsqd("three", *places, "--mem-queue-size=1000")
        node = third.value.http_address
        cluster.http.post(f"http://{node}/channel/create?topic=lossy&channel=c")
        cluster.http.post(f"http://{node}/topic/create?topic=lossy")
        cluster.http.post(f"http://{node}/channel/create?topic=lossy&channel=c")
        cluster.until(lambda: "c" in cluster.lookup("lossy")["channels"], "the channel is there")
        cluster.http.post(f"http://{node}/mpub?topic=lossy", content=b"\n".join([b"x"] * 123))
        with watched(cluster, browser) as at:
            page = at.go("/topics/lossy/c")
            expect(page.locator(figure(page, "Depth"))).to_have_text("123")
            send(third, signal.SIGKILL)
            third.close()
            cluster.start_nsqd("three", *places)
            page = at.go("/")
            problem = page.locator(".problems li", has_text=node)
            expect(problem).to_contain_text("Of 123 messages that it held before, 123 are gone.")
            look(at, "restarted-overview")
            page = at.go("/topics/lossy/c")
            expect(page.locator(".chart .mark").last).to_contain_text("123 lost")
            expect(page.locator(figure(page, "Finished"))).to_contain_text("0 /s")
            look(at, "restarted-channel")


@in_short_soak
def test_nsqlookupd_that_is_down_hangs_or_restarts_blanks_no_page(
    browser: Browser, tmp_path: Path
) -> None:
    """kill -STOP, kill -9 and a restart: each page shows what the polls know, all the time."""
    with running_cluster(tmp_path) as cluster:
        places = f"--tcp-address={free_address()}", f"--http-address={free_address()}"
        lookupd = cluster.start_lookupd(*places)
        cluster.lookupd = lookupd.value
        for name in ("three", "four"):
            cluster.nsqds.append(cluster.start_nsqd(name))
        del cluster.nsqds[:2]
        cluster.until(lambda: len(cluster.nodes()) == 2, "both are registered")
        cluster.create("orders", "billing")
        cluster.publish(0, "orders", *[b"x"] * 30)
        cluster.publish(1, "orders", *[b"x"] * 40)
        with watched(cluster, browser) as at:
            check_whole(at, cluster)
            send(lookupd, signal.SIGSTOP)
            check_whole(at, cluster)
            check_lookupd_missed(at, "hung-lookupd")
            send(lookupd, signal.SIGCONT)
            check_whole(at, cluster)
            send(lookupd, signal.SIGKILL)
            lookupd.close()
            check_lookupd_missed(at, "dead-lookupd")
            check_whole(at, cluster)
            cluster.start_lookupd(*places)
            for _ in range(5):
                check_whole(at, cluster)
            page = at.go("/")
            expect(page.locator("main")).to_contain_text("Every node answers")


def check_whole(at: Tab, cluster: Cluster) -> None:
    """All figures and nodes of the topic are on its page, and no sentence that it has none."""
    page = at.go("/topics/orders")
    expect(page.locator(figure(page, "Depth of its channels"))).to_have_text("70")
    for which in range(2):
        expect(page.locator("main")).to_contain_text(cluster.node(which))
    expect(page.locator("main")).not_to_contain_text("No node has")
    page = at.go("/nodes")
    expect(page.locator("tbody tr")).to_have_count(2)


def check_lookupd_missed(at: Tab, name: str) -> None:
    """It is the first problem, and critical."""
    page = at.go("/")
    first = page.locator(".problems li").first
    expect(first).to_contain_text("critical")
    expect(first).to_contain_text("No nsqlookupd answers")
    look(at, f"{name}-overview")


@in_short_soak
def test_figures_of_an_nsqadmin_that_hangs_turn_red(browser: Browser, cluster: Cluster) -> None:
    """The age at the top of an open page counts on, and its color says that it is old."""
    admin = cluster.start_nsqadmin()
    try:
        base = f"http://{admin.value.http_address}"
        with tab(browser, base, allowed=LOST) as at:
            page = at.go("/topics/orders")
            expect(page.locator("#age")).to_have_text(re.compile(r"Updated \d s ago"))
            expect(page.locator("#age.late")).to_have_count(0)
            send(admin, signal.SIGSTOP)
            try:
                expect(page.locator("#age.late")).to_be_visible()
                screenshot(page, "incident-late")
            finally:
                send(admin, signal.SIGCONT)
            expect(page.locator("#age.late")).to_have_count(0)
    finally:
        admin.close()
