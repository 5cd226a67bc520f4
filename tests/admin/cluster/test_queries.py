"""The cluster asked: nodes that fail cost a warning, all of them the answer."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

import msgspec
import pytest
import trio
import trio.testing

from admin.cluster.queries import INACTIVE_S, SILENT_S, AllFailed, Cluster
from admin.cluster.shapes import Producer
from admin.options import NsqadminOptions
from admin.upstream import Upstream, UpstreamError
from tests.admin.nodes import Asked, FakeNode, fake_node, producer, stats_of
from tests.processes import free_address

T = TypeVar("T")
NOT_FOUND = (404, b'{"message":"TOPIC_NOT_FOUND"}')


def lookupd(producers: list[dict[str, Any]], **channels: list[str]) -> Any:
    """What an nsqlookupd with these nodes says; ``channels`` are those of its topics."""

    def says(asked: Asked) -> tuple[int, bytes]:
        topic = asked.query.get("topic", "")
        answers: dict[str, Any] = {
            "/topics": {"topics": sorted(channels)},
            "/channels": {"channels": channels.get(topic, [])},
            "/nodes": {"producers": producers},
            "/lookup": {"producers": [each for each in producers if topic in each["topics"]]},
        }
        if asked.path == "/lookup" and topic not in channels:
            return NOT_FOUND
        return 200, json.dumps(answers[asked.path]).encode()

    return says


class Fakes(AsyncExitStack):
    """Fake nodes and a `Cluster` that asks them."""

    async def node(self, says: Any) -> FakeNode:
        """One more."""
        return await self.enter_async_context(fake_node(says))

    async def cluster(self, **options: Any) -> Cluster:
        """To be asked."""
        given = NsqadminOptions(http_client_request_timeout_ns=2 * 10**9, **options)
        return Cluster(await self.enter_async_context(Upstream(given)), given)


async def test_silent_nodes_get_little_time(autojump_clock: trio.testing.MockClock) -> None:
    """Those that are known not to answer cost a page a second, others all that they may take."""

    class Hanging(Upstream):
        async def get_bytes(self, url: str, *, timeout_s: float | None = None) -> bytes:
            with trio.move_on_after(self._request_timeout_s if timeout_s is None else timeout_s):
                await trio.sleep_forever()
            raise UpstreamError(url, "no answer")

    options = NsqadminOptions(lookupd_http_address=("127.0.0.1:1",))
    cluster = Cluster(Hanging(options), options)
    nodes = [Producer(broadcast_address=f"10.0.0.{n}", http_port=4151) for n in (1, 2)]
    waits_s = []
    for silent in ((), ("10.0.0.1:4151",), ("10.0.0.1:4151", "10.0.0.2:4151")):
        began_s = trio.current_time()
        found = await cluster.each_stats(nodes, silent=silent)
        assert all(isinstance(each, UpstreamError) for each in found.values())
        waits_s.append(trio.current_time() - began_s)
    assert waits_s == [5.0, 5.0, SILENT_S]


async def test_nodes_are_the_union_of_what_nsqlookupds_know() -> None:
    """Each once, by name, with its address at each; the dead one is a warning, old nodes marked."""
    async with Fakes() as fakes:
        old = producer("10.0.0.9:4151", "t", version="1.2.0")
        first = await fakes.node(lookupd([old, producer("10.0.0.1:4151", "t")]))
        second = await fakes.node(lookupd([producer("10.0.0.1:4151", "t")]))
        dead = free_address()
        addresses = (first.address, dead, second.address)
        found = await (await fakes.cluster(lookupd_http_address=addresses)).nodes()
        [warning] = found.warnings
        assert dead in warning
        by_node = {node.node: node for node in found.value}
        assert list(by_node) == ["10.0.0.1:4151", "10.0.0.9:4151"]
        assert by_node["10.0.0.1:4151"].remote_addresses == [
            f"{first.address}/10.0.0.1:5000",
            f"{second.address}/10.0.0.1:5000",
        ]
        assert [node.out_of_date for node in found.value] == [False, True]


async def test_what_is_ours_is_not_taken_from_a_node() -> None:
    """An nsqlookupd that sends our own keys changes nothing by it."""
    async with Fakes() as fakes:
        lying = producer("10.0.0.1:4151", remote_addresses=["x"] * 9, out_of_date=True)
        node = await fakes.node(lookupd([lying]))
        [found] = (await (await fakes.cluster(lookupd_http_address=(node.address,))).nodes()).value
        assert found.remote_addresses == [f"{node.address}/10.0.0.1:5000"]
        assert not found.out_of_date


async def test_if_nobody_answers_all_errors_are_told() -> None:
    """In the original's words."""
    async with Fakes() as fakes:
        addresses = (free_address(), free_address())
        cluster = await fakes.cluster(lookupd_http_address=addresses)
        with pytest.raises(AllFailed) as caught:
            await cluster.topics()
        assert str(caught.value).startswith("failed to query any nsqlookupd: Get ")
        assert all(address in str(caught.value) for address in addresses)
        assert len(caught.value.errors) == 2


async def test_a_node_that_fails_costs_its_own_row_only() -> None:
    """Its error is in its place, and a warning; the others' statistics are there."""
    async with Fakes() as fakes:
        good = await fakes.node(lambda asked: (200, stats_of("t", 3, "c")))
        hanging = await fakes.node(lambda asked: None)
        lying = await fakes.node(lambda asked: (200, b'{"topics":"many"}'))
        nodes = [producer(each.address, "t") for each in (good, hanging, lying)]
        lookup = await fakes.node(lookupd(nodes, t=["c"]))
        cluster = await fakes.cluster(lookupd_http_address=(lookup.address,))
        producers = (await cluster.producers("t")).value
        found = await cluster.stats(producers, topic="t", channel="c", clients=True)
        assert len(found.warnings) == 2
        assert isinstance(found.value[hanging.address], UpstreamError)
        assert isinstance(found.value[lying.address], UpstreamError)
        stats = found.value[good.address]
        assert not isinstance(stats, UpstreamError)
        assert [topic.depth for topic in stats.topics or ()] == [3]
        assert good.asked[0].query == {
            "format": "json",
            "include_mem": "false",
            "include_clients": "true",
            "topic": "t",
            "channel": "c",
        }


async def test_a_topic_without_producers_has_no_statistics() -> None:
    """As nsqadmin 1.3 has it: that is an error without a reason."""
    async with Fakes() as fakes:
        lookup = await fakes.node(lookupd([], t=[]))
        cluster = await fakes.cluster(lookupd_http_address=(lookup.address,))
        with pytest.raises(AllFailed) as caught:
            await cluster.stats((await cluster.producers("t")).value)
        assert str(caught.value) == "failed to query any nsqd: "
        with pytest.raises(AllFailed, match="TOPIC_NOT_FOUND"):
            await cluster.producers("unknown")


async def test_inactive_topics_are_those_that_no_node_shows() -> None:
    """A topic that is tombstoned everywhere has no producer either."""
    async with Fakes() as fakes:
        hidden = producer("10.0.0.1:4151", "shown", "hidden", tombstones=[False, True])
        lookup = await fakes.node(lookupd([hidden], shown=["a"], hidden=["b"], gone=["c", "d"]))
        cluster = await fakes.cluster(lookupd_http_address=(lookup.address,))
        found = await cluster.inactive_topics()
        assert found.value == {"gone": ["c", "d"], "hidden": ["b"]}
        assert found.warnings == []


@pytest.mark.parametrize(
    ("tombstones", "inactive"),
    [([], []), (None, []), ([True], ["a"]), ([False, True], ["b"]), ([True] * 4, ["a", "b", "c"])],
)
async def test_tombstones_may_be_fewer_or_more_than_topics(
    tombstones: list[bool] | None, inactive: list[str]
) -> None:
    """An nsqlookupd that sends too few hides nothing by those that are missing."""
    async with Fakes() as fakes:
        node = producer("10.0.0.1:4151", "a", "b", "c") | {"tombstones": tombstones}
        lookup = await fakes.node(lookupd([node], a=[], b=[], c=[]))
        cluster = await fakes.cluster(lookupd_http_address=(lookup.address,))
        assert list((await cluster.inactive_topics()).value) == inactive


async def test_inactive_topics_are_shown_if_their_channels_can_not_be_asked_for() -> None:
    """A topic whose channels nobody tells has none, and the page has a warning."""
    says = lookupd([], a=["c"], b=["d"])

    def failing(asked: Asked) -> tuple[int, bytes]:
        if asked.path == "/channels" and asked.query["topic"] == "a":
            return 500, b'{"message":"INTERNAL_ERROR"}'
        return cast("tuple[int, bytes]", says(asked))

    async with Fakes() as fakes:
        node = await fakes.node(failing)
        cluster = await fakes.cluster(lookupd_http_address=(node.address,))
        found = await cluster.inactive_topics()
    assert found.value == {"a": [], "b": ["d"]}
    [warning] = found.warnings
    assert "INTERNAL_ERROR" in warning


async def test_inactive_topics_are_shown_without_channels_that_nobody_tells(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An nsqlookupd that answers one question of many in time delays the page for 15 s."""

    class Slow(Upstream):
        async def get_json(self, url: str, kind: type[T], *, timeout_s: float | None = None) -> T:
            content: dict[str, Any] = {"producers": []}
            if "/topics" in url:
                content = {"topics": ["a", "b"]}
            if "/channels" in url:
                content = {"channels": ["c"]}
                await trio.sleep(10 if url.endswith("=a") else 1000)
            return msgspec.convert(content, kind)

    options = NsqadminOptions(lookupd_http_address=("127.0.0.1:1",))
    found = await Cluster(Slow(options), options).inactive_topics()
    assert found.value == {"a": ["c"], "b": []}
    assert found.warnings == ["not all channels are known within 15 s"]
    assert trio.current_time() == INACTIVE_S == 15


async def test_nsqds_are_asked_without_an_nsqlookupd() -> None:
    """Topics, nodes and producers come from /info and /stats of those that the options name."""

    def nsqd(topic: str) -> Any:
        def says(asked: Asked) -> tuple[int, bytes]:
            if asked.path == "/info":
                return 200, json.dumps(producer("10.0.0.7:4151", hostname=topic)).encode()
            return 200, stats_of(topic, 1)

        return says

    async with Fakes() as fakes:
        nodes = [await fakes.node(nsqd(topic)) for topic in ("t", "u")]
        dead = free_address()
        addresses = (*(node.address for node in nodes), dead)
        cluster = await fakes.cluster(nsqd_http_address=addresses)
        topics = await cluster.topics()
        assert (topics.value, len(topics.warnings)) == (["t", "u"], 1)
        found = (await cluster.nodes()).value
        assert [(node.hostname, node.topics) for node in found] == [("t", ["t"]), ("u", ["u"])]
        assert [node.tombstones for node in found] == [[False], [False]]
        assert [node.remote_addresses for node in found] == [None, None]
        assert [node.hostname for node in (await cluster.producers("u")).value] == ["u"]
        assert (await cluster.producers("none")).value == []
        assert (await cluster.inactive_topics()).value == {}
