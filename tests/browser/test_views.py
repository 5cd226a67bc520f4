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
    "overview": ("/", "Greatest depth"),
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
    "in-flight": ("/peek?topic=orders&channel=billing&state=in_flight", "Requeue now"),
    "search-messages": ("/peek?topic=payloads&channel=archive&json=items[0].count=2", "1 match."),
    "prefixes": ("/topics?group=yes", "Prefix"),
    "clients": ("/clients", "worker.example"),
    "search": ("/search?q=/o/", "Topics"),
    "dead-letters": ("/deadletters?topic=orders&channel=billing", "no customer"),
    "replay": ("/deadletters/replay?topic=orders&channel=billing", "begin with 1 again"),
    "policies": ("/policies", "max_attempts 5"),
    "policy": ("/policies/edit?name=poison", "Save on all nodes"),
    "drain": ("/drain?node=NODE", "does not drain"),
    "publish": ("/publish?topic=orders", "Consumers will receive this message."),
    "confirm": ("/confirm/delete?topic=orders", "will be lost"),
    "missing": ("/topics/ordders", "Did you mean"),
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
        give_up_one(cluster)
        yield address
    admin.close()


def give_up_one(cluster: Cluster) -> None:
    """A policy on both nodes, and a dead letter of a message in flight on the first."""
    policy = {"topics": "payloads*", "max_attempts": 5, "retry_delays": ["1s", "1m"]}
    for which in (0, 1):
        url = f"http://{cluster.node(which)}/policy/poison"
        assert cluster.http.put(url, json=policy).status_code == 200
    place = {"topic": "orders", "channel": "billing"}
    held: list[str] = []

    def in_flight() -> bool:
        url = f"http://{cluster.node(0)}/channel/peek"
        answer = cluster.http.get(url, params={**place, "state": "in_flight"})
        held[:] = [message["id"] for message in answer.json()["messages"]]
        return bool(held)

    cluster.until(in_flight, "a message is in flight")
    cluster.post(0, "/deadletter/add", b"", **place, id=held[0], reason="no customer")


def opened(cluster: Cluster, at: Tab, name: str) -> None:
    """Open a view and wait for what it shows."""
    path, text = (said.replace("NODE", cluster.node(0)) for said in VIEWS[name])
    page = at.go(path)
    expect(page.locator("main")).to_contain_text(text)
    expect(page.locator("h1").first).to_be_visible()


def allowed(name: str) -> str:
    """What Chromium itself logs of a page that is not there."""
    return "status of 404" if name == "missing" else ""


@pytest.mark.parametrize("name", smoke(NAMES, "overview", "channel", in_short=BY_ITSELF))
def test_each_view_is_accessible(name: str, base: str, browser: Browser, cluster: Cluster) -> None:
    """It shows what it is for in both themes and on a phone, where nothing makes it scroll
    sideways; axe-core has no serious finding in any of them; the browser's console has no
    complaint, so the Content-Security-Policy is kept."""
    with tab(browser, base, allowed=allowed(name)) as at:
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
    with tab(browser, base, script=False, allowed=allowed(name)) as at:
        opened(cluster, at, name)
        for only in at.page.locator(".only-scripted").all():
            expect(only).to_be_hidden()
