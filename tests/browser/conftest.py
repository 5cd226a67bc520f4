"""One browser and one cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import chromium_path, running_chromium
from tests.browser.cluster import Cluster, running_cluster


# Of this folder rather than of the session: playwright leaves an event loop in the thread, which
# the tests of other folders must not find there.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, or a skip that says how to get it."""
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """nsqlookupd and two nsqd, started if there is a browser to look at them."""
    chromium_path()
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
