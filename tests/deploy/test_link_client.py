"""The client library on a stalled link."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.deploy import netns
from tests.deploy.cluster import Cluster, cluster
from tests.deploy.link import wire
from tests.soak import in_short_soak
from trionsq.client import Config, Consumer, NotConnectedError

WHY_NOT = netns.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

NODES = ["nsqd-1", "nsqd-2"]
CONFIG = Config(tcp_user_timeout_s=2, max_in_flight=10)
LIMIT_S = 45.0  # less than nsqd may be silent for


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    """The cluster, not yet started."""
    with cluster(tmp_path) as ours:
        yield ours


async def test_a_publish_into_a_stalled_link_fails_and_goes_elsewhere(made: Cluster) -> None:
    """A publish fails after tcp_user_timeout, long before the read timeout."""
    with trio.fail_after(LIMIT_S):
        await made.start(*NODES)
        async with made.producer(*NODES, config=CONFIG) as producer:
            await producer.publish("t", b"before")
            async with wire(made.network, NODES[0]):
                with pytest.raises(NotConnectedError, match="timed out"):
                    await producer.publish("t", b"meanwhile")
                await producer.publish("t", b"elsewhere")


@in_short_soak
async def test_an_idle_consumer_notices_that_its_nsqd_is_gone(made: Cluster) -> None:
    """The kernel's probes end an idle connection, and the consumer reconnects."""
    with trio.fail_after(LIMIT_S):
        await made.start(NODES[0])
        address = made.address(NODES[0], 4150)
        consumer = Consumer(
            "t", "c", nsqd_tcp_addresses=[address], config=CONFIG, dial=made.network.dial
        )
        async with consumer:
            await connections(consumer, 1)
            async with wire(made.network, NODES[0]):
                await connections(consumer, 0)
            await connections(consumer, 1)


async def connections(consumer: Consumer, count: int) -> None:
    """Wait until it has so many."""
    while consumer.stats().connections != count:  # noqa: ASYNC110 - nothing tells
        await trio.sleep(0.02)
