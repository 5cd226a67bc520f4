"""Each view as it looks: in both themes, on a phone, for keyboard and screen readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import PHONE, Tab, check_accessible, screenshot, tab
from tests.browser.cluster import Cluster, Consumer, running_cluster
from tests.soak import smoke

VIEWS: Final = {
    # name: path, and a text that only it has
    "overview": ("/", "Messages waiting"),
    "topics": ("/topics", "orders"),
    "channels": ("/topics?show=channels", "billing"),
    "inactive": ("/topics?show=inactive", "retired"),
    "topic": ("/topics/orders", "Depth of its channels"),
    "channel": ("/topics/orders/billing", "worker.example"),
    "nodes": ("/nodes", "NODE"),
    "node": ("/nodes/NODE", "orders"),
    "node-channels": ("/nodes/NODE?show=channels", "billing"),
    "node-clients": ("/nodes/NODE?show=clients", "worker"),
    "counter": ("/counter", "Messages received by all channels"),
    "lookup": ("/lookup", "Create a topic or a channel"),
    "audit": ("/audit", "create topic"),
    "peek": ("/peek?topic=payloads&channel=archive&node=NODE", '"customer": "Ann"'),
    "publish": ("/publish?topic=orders", "Consumers will receive this message."),
    "confirm": ("/confirm/delete?topic=orders", "will be lost"),
    "missing": ("/topics/nowhere", "nowhere"),
}
"""Of a dashboard where nobody has to sign in; NODE is the first nsqd."""
NAMES: Final = {name: name for name in VIEWS}
BY_ITSELF: Final = ("topics", "node", "peek", "publish", "confirm")
"""Of these, and of those of `make test`, each has parts that no other view has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: screenshots show nothing of other tests."""
    with running_cluster(tmp_path_factory.mktemp("views")) as running:
        yield running


@pytest.fixture(scope="module")
def base(browser: Browser, cluster: Cluster) -> Iterator[str]:
    """The address of a dashboard in front of a cluster where something goes on."""
    cluster.create("orders", "billing", "archive", "metrics")
    cluster.create("clicks", "sessions")
    cluster.create("payloads", "archive")
    cluster.publish(0, "orders", *[f"order {n}".encode() for n in range(120)])
    cluster.publish(1, "orders", *[f"order {n}".encode() for n in range(30)])
    cluster.publish(0, "orders", b"later", defer="3000000")
    cluster.publish(0, "clicks", *[b"click"] * 20)
    order = {"customer": "Ann", "items": [{"sku": "A-17", "count": 2}], "paid": True}
    cluster.publish(0, "payloads", json.dumps(order).encode(), bytes(range(40)), b"<b>plain</b>")
    cluster.post(0, "/channel/pause", topic="orders", channel="metrics")
    url = f"http://{cluster.lookupd.http_address}"
    cluster.http.post(f"{url}/topic/create", params={"topic": "retired"})
    cluster.http.post(f"{url}/channel/create", params={"topic": "retired", "channel": "old"})
    admin = cluster.start_nsqadmin()
    address = f"http://{admin.value.http_address}"
    # Something for the audit.
    made = cluster.http.post(f"{address}/api/topics", json={"topic": "empty-one"})
    assert made.status_code == 200
    with (
        closing(Consumer(cluster.nsqds[0].value, "orders", "billing", ready=5)),
        closing(Consumer(cluster.nsqds[1].value, "orders", "billing", ready=2, name="other")),
    ):
        yield address
    admin.close()


def opened(cluster: Cluster, at: Tab, name: str) -> None:
    """Open a view and wait for what it shows."""
    path, text = (said.replace("NODE", cluster.node(0)) for said in VIEWS[name])
    page = at.go(path)
    expect(page.locator("main")).to_contain_text(text)
    expect(page.locator("h1").first).to_be_visible()


@pytest.mark.parametrize("name", smoke(NAMES, "overview", "channel", in_short=BY_ITSELF))
def test_each_view_is_accessible(name: str, base: str, browser: Browser, cluster: Cluster) -> None:
    """It shows what it is for in both themes and on a phone, where nothing makes it scroll
    sideways; axe-core has no serious finding in any of them; the browser's console has no
    complaint, so the Content-Security-Policy is kept."""
    with tab(browser, base) as at:
        page = at.page
        opened(cluster, at, name)
        screenshot(page, f"{name}-light")
        check_accessible(page)
        page.emulate_media(color_scheme="dark")
        screenshot(page, f"{name}-dark")
        check_accessible(page)
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        screenshot(page, f"{name}-phone")
        wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        check_accessible(page)


@pytest.mark.parametrize("name", smoke(NAMES, "channel", in_short=("overview", "peek", "publish")))
def test_each_view_works_without_script(
    name: str, base: str, browser: Browser, cluster: Cluster
) -> None:
    """The same content, from the server alone; nothing is shown that needs script."""
    with tab(browser, base, script=False) as at:
        opened(cluster, at, name)
        for only in at.page.locator(".only-scripted").all():
            expect(only).to_be_hidden()
