"""``python -m tests.browser.pictures``: takes the pictures of docs/images anew.

It starts a cluster with traffic, waits until the charts have something to show, and kills a node
for the last picture.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio
from playwright.sync_api import Browser, Page

from tests.browser.chromium import PHONE, Tab, Theme, running_chromium, tab
from tests.browser.cluster import Cluster, TrioThread
from trionsq.client import ClientError, Config, Consumer, Producer, ProtocolError

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
WIDE: Final = (1280, 800)
TOPICS: Final = {
    # name: channels
    "orders": ("billing", "archive"),
    "payments": ("ledger", "fraud"),
    "clicks": ("sessions",),
    "emails": ("send",),
    "shipments": ("labels",),
}
# Channel: seconds for a message. The others are finished at once; archive has no consumer.
SLOW: Final = {"ledger": 0.4, "labels": 0.9}
NAMES: Final = ("Ann", "Ben", "Chloe", "Dmitri", "Eve")
_BETWEEN_S: Final = 0.25


async def _publish(address: str) -> None:
    async with Producer(address) as producer:
        number = 0
        while True:
            number += 1
            order = {"order": 4000 + number, "customer": NAMES[number % len(NAMES)]}
            order["items"] = [{"sku": "A-17", "count": number % 4 + 1}]  # type: ignore[assignment]
            for place, topic in enumerate(TOPICS):
                if number % (place + 1) == 0:
                    await producer.publish(topic, json.dumps(order).encode())
            await trio.sleep(_BETWEEN_S)


async def _consume(lookupd: str, topic: str, channel: str, number: int) -> None:
    name = f"{channel}-{number}"
    config = Config(
        client_id=name,
        hostname=f"{name}.eu.example",
        user_agent="shop/2.1",
        max_in_flight=4,
        max_attempts=0,
    )
    where = [lookupd]
    async with Consumer(topic, channel, lookupd_http_addresses=where, config=config) as consumer:
        async for batch in consumer.batches():
            await trio.sleep(SLOW.get(channel, 0.0) * len(batch))
            batch.finish()


@asynccontextmanager
async def traffic(cluster: Cluster) -> AsyncIterator[None]:
    """Producers and consumers; they end when the context does, or their node dies."""

    async def publish(address: str) -> None:
        with suppress(ClientError, ProtocolError):
            await _publish(address)

    async with trio.open_nursery() as nursery:
        for nsqd in cluster.nsqds:
            nursery.start_soon(publish, nsqd.value.tcp_address)
        for topic, channels in TOPICS.items():
            for channel in channels:
                for number in range(0 if channel == "archive" else 2):
                    lookupd = cluster.lookupd.http_address
                    nursery.start_soon(_consume, lookupd, topic, channel, number + 1)
        yield
        nursery.cancel_scope.cancel()


def _taken(at: Tab, path: str, name: str, *, height: int = 0) -> None:
    at.go(path)
    _shot(at.page, name, height)


def _shot(page: Page, name: str, height: int = 0) -> None:
    size = page.viewport_size or {"width": WIDE[0], "height": WIDE[1]}
    if height:
        page.set_viewport_size({"width": size["width"], "height": height})
        page.wait_for_timeout(200)
    page.screenshot(path=FOLDER / f"{name}.png")
    page.set_viewport_size(size)


def take_pictures(browser: Browser, cluster: Cluster, base: str) -> None:
    """The pictures of a cluster that has had its traffic for a while."""
    with tab(browser, base, size=WIDE) as at:
        _taken(at, "/", "overview", height=1000)
        _taken(at, "/peek?topic=orders&channel=archive&json=customer=Ann&limit=10", "peek")
        at.go("/topics/orders/archive")
        at.page.get_by_role("link", name="Empty queue").click()
        at.page.get_by_role("dialog").get_by_role("textbox").wait_for()
        _shot(at.page, "empty")
        _taken(at, "/deadletters?topic=shipments&channel=labels", "dead-letters")
    others: Sequence[tuple[str, str, tuple[int, int], Theme]] = (
        ("/topics/orders", "topic-dark", (WIDE[0], 1000), "dark"),
        ("/", "phone", PHONE, "light"),
    )
    for path, name, size, theme in others:
        with tab(browser, base, size=size, theme=theme) as at:
            _taken(at, path, name)
    os.kill(cluster.nsqds[1].value.process.pid, signal.SIGKILL)
    with tab(browser, base, size=WIDE) as at:
        at.go("/")
        at.page.locator(".problems", has_text="has not answered").wait_for()
        _shot(at.page, "incident", 900)


def _add_dead_letters(cluster: Cluster) -> None:
    place = {"topic": "shipments", "channel": "labels"}
    url = f"http://{cluster.node(0)}/channel/peek"
    wanted = ["weight is missing", "no such address", "no such address"]
    deadline_s = time.monotonic() + 60
    while wanted and time.monotonic() < deadline_s:
        answer = cluster.http.get(url, params={**place, "state": "in_flight"})
        for message in answer.json()["messages"][-1:]:
            with suppress(AssertionError):  # it was finished meanwhile
                query = {**place, "id": message["id"], "reason": wanted[-1]}
                cluster.post(0, "/deadletter/add", **query)
                wanted.pop()
        time.sleep(1)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of traffic before")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, TrioThread() as thread:
        cluster = Cluster(thread, Path(folder))
        for topic, channels in TOPICS.items():
            cluster.create(topic, *channels)
        admin = cluster.start_nsqadmin(f"--state-file={folder}/state")
        thread.hold(traffic(cluster))
        _add_dead_letters(cluster)
        time.sleep(seconds)
        with running_chromium() as browser:
            take_pictures(browser, cluster, f"http://{admin.value.http_address}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
