"""Statistics of several nodes made one: sums, sorting, latencies, and nothing that is not there."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from admin.cluster import merge
from admin.cluster.shapes import NodeStats, Producer, version_key

NODES = [
    Producer(hostname="b", broadcast_address="10.0.0.2", http_port=4151, version="1.3.0"),
    Producer(hostname="a", broadcast_address="10.0.0.1", http_port=4151, version="1.3.0"),
]
CHANNEL_KEYS = [
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
]


def stats(*topics: dict[str, Any]) -> NodeStats:
    """What a node says of these topics."""
    return msgspec.json.decode(json.dumps({"topics": topics}), type=NodeStats)


def channel(name: str, depth: int, **more: Any) -> dict[str, Any]:
    """A channel of which all figures are that depth."""
    return {"channel_name": name, **dict.fromkeys(CHANNEL_KEYS, depth), **more}


def topic(name: str, depth: int, *channels: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A topic of that depth."""
    figures = {"depth": depth, "backend_depth": 1, "message_count": depth}
    return {"topic_name": name, "channels": channels, **figures, **more}


def client(hostname: str, connect_ts: int = 0) -> dict[str, Any]:
    """A consumer."""
    return {"hostname": hostname, "connect_ts": connect_ts, "future": "key"}


def test_a_topic_is_the_sum_of_its_nodes() -> None:
    """Figures add up, nodes are sorted by host name, channels too, one paused node is enough."""
    said = [
        stats(topic("t", 5, channel("both", 2), channel("z_only_b", 3))),
        stats(topic("t", 7, channel("a_only_a", 1), channel("both", 40), paused=True)),
    ]
    entries = merge.topics_on_nodes(zip(NODES, said, strict=True))
    shown = merge.topic_object("t", entries)
    assert (shown["node"], shown["hostname"], shown["paused"]) == ("*", "", True)
    assert (shown["depth"], shown["memory_depth"], shown["backend_depth"]) == (12, 10, 2)
    assert [node["node"] for node in shown["nodes"]] == ["10.0.0.1:4151", "10.0.0.2:4151"]
    channels = {each["channel_name"]: each for each in shown["channels"]}
    assert list(channels) == ["a_only_a", "both", "z_only_b"]
    assert [each["node"] for each in channels.values()] == ["10.0.0.1:4151", "*", "10.0.0.2:4151"]
    assert [node["depth"] for node in channels["both"]["nodes"]] == [40, 2]
    assert channels["both"]["depth"] == 42


def test_no_node_is_changed_by_the_sum() -> None:
    """The original adds to a node's own channel; here a node's figures stay what it said."""
    said = [stats(topic("t", 1, channel("c", 1))), stats(topic("t", 1, channel("c", 1)))]
    entries = merge.topics_on_nodes(zip(NODES, said, strict=True))
    before = json.dumps(entries)
    merge.topic_object("t", entries)
    assert json.dumps(entries) == before


def test_a_channel_has_the_clients_of_all_nodes() -> None:
    """Sorted by host name; how long they are connected is in nanoseconds."""
    said = [
        stats(topic("t", 0, channel("c", 1, clients=[client("z", 10), client("k")]))),
        stats(topic("t", 0, channel("c", 2, clients=[client("m")]))),
    ]
    entries = merge.topics_on_nodes(zip(NODES, said, strict=True), now_ns=25 * 10**9)
    shown = merge.channel_object("t", "c", [entry["channels"][0] for entry in entries])
    assert [each["hostname"] for each in shown["clients"]] == ["k", "m", "z"]
    assert [each["node"] for each in shown["clients"]][1] == "10.0.0.1:4151"
    assert shown["clients"][2]["connected"] == 15 * 10**9
    assert all(shown[key] == 3 for key in CHANNEL_KEYS)
    assert shown["memory_depth"] == 0


def test_a_node_has_totals() -> None:
    """Messages of topics, clients of channels, by host name; without topics there is null."""
    said = stats(topic("t", 4, channel("c", 1, clients=[client("y"), client("x")])), topic("u", 5))
    shown = merge.node_object("n", merge.topics_on_nodes([(NODES[0], said)]))
    clients = shown["topics"][0]["channels"][0]["clients"]
    assert [each["hostname"] for each in clients] == ["x", "y"]
    assert (shown["total_messages"], shown["total_clients"], len(shown["topics"])) == (9, 2, 2)
    assert merge.node_object("n", [])["topics"] is None


def test_latencies_are_averaged_by_their_counts() -> None:
    """By quantile; a node without samples has no say, and keys are in the original's order."""

    def latency(count: int, value: int) -> dict[str, Any]:
        return {"count": count, "percentiles": [{"quantile": 0.99, "value": value}]}

    said = [
        stats(topic("t", 0, e2e_processing_latency=latency(3, 100))),
        stats(topic("t", 0, e2e_processing_latency=latency(1, 500))),
        stats(topic("t", 0, e2e_processing_latency=latency(0, 0))),
        stats(topic("t", 0, e2e_processing_latency=None)),
    ]
    entries = merge.topics_on_nodes(zip([*NODES, *NODES], said, strict=True))
    shown = merge.topic_object("t", entries)["e2e_processing_latency"]
    joined = {"average": 200, "count": 4, "max": 500, "min": 100, "quantile": 0.99}
    assert shown == {
        "count": 4,
        "percentiles": [joined],
        "topic": "t",
        "channel": "",
        "host": "*",
    }
    assert list(shown["percentiles"][0]) == list(joined)
    on_node = entries[1]["e2e_processing_latency"]["percentiles"]
    assert on_node is None or "value" in on_node[0]


def test_latencies_without_samples_are_0() -> None:
    """If no node has any."""
    latency = {"count": 0, "percentiles": [{"quantile": 0.5, "value": 7}]}
    said = [stats(topic("t", 0, e2e_processing_latency=latency))]
    entries = merge.topics_on_nodes(zip(NODES, said, strict=False))
    shown = merge.topic_object("t", entries)["e2e_processing_latency"]
    assert shown["percentiles"] == [{"average": 0, "count": 0, "max": 0, "min": 0, "quantile": 0.5}]


def test_the_counter_names_each_channel_of_each_node() -> None:
    """Sorted by topic, channel and node."""
    said = [stats(topic("t", 0, channel("c", 9))), stats(topic("s", 0, channel("c", 8)))]
    shown = merge.counter(zip(NODES, said, strict=True))
    assert list(shown) == ["s:c:10.0.0.1:4151", "t:c:10.0.0.2:4151"]
    assert shown["t:c:10.0.0.2:4151"]["message_count"] == 9


def test_tombstones_belong_to_topics() -> None:
    """Sorted by topic; a list of tombstones that is too short hides nothing."""
    node = Producer(topics=["z", "a", "m"], tombstones=[True, False])
    shown = merge.node_entry(node)["topics"]
    assert [(each["topic"], each["tombstoned"]) for each in shown] == [
        ("a", False),
        ("m", False),
        ("z", True),
    ]


def test_versions_are_in_their_order() -> None:
    """By number, not by letter; a release is later than what led to it; nonsense is oldest."""
    ordered = ["nonsense", "0.3.8", "1.2.1-alpha", "1.2.1", "1.3.0-rc.2", "1.3.0-rc.11", "1.3.0"]
    ordered += ["1.3.1-alpha", "v1.10.0"]
    keys = [version_key(version) for version in ordered]
    assert all(older < newer for older, newer in pairwise(keys))


@given(st.text())
def test_any_version_has_a_place(text: str) -> None:
    """What a node says of itself is never an error."""
    assert version_key(text) <= version_key("999999999.0.0") or text[:1].isdecimal()
