"""One topic or channel, on many nodes."""

from __future__ import annotations

import msgspec

from admin.cluster.shapes import NodeStats, Producer
from admin.pages.merging import channel_view, topic_view
from admin.upstream import UpstreamError
from tests.admin.pages.support import channel, topic


def stats(*topics: object) -> NodeStats:
    """As a node answers."""
    return msgspec.convert({"topics": list(topics)}, NodeStats)


def latency(count: int, value: int) -> dict[str, object]:
    """A latency of /stats."""
    return {"count": count, "percentiles": [{"quantile": 0.99, "value": value}]}


NODES = [Producer(broadcast_address=name, http_port=4151) for name in ("a", "b", "down")]
FIRST = stats(
    topic("other", channel("c", depth=100)),
    topic(
        "t",
        channel("c", depth=3, backend_depth=1, in_flight_count=2, client_count=1,
                clients=[{"client_id": "x"}], e2e_processing_latency=latency(1, 100)),
        depth=5,
        message_count=7,
    ),
)  # fmt: skip
SECOND = stats(
    topic("t", channel("c", depth=4, paused=True, e2e_processing_latency=latency(3, 500)),
          channel("d", deferred_count=9), depth=6)
)  # fmt: skip
ANSWERS: dict[str, NodeStats | UpstreamError] = {
    "a:4151": FIRST,
    "b:4151": SECOND,
    "down:4151": UpstreamError("down:4151", "refused"),
}


def test_a_topic_is_the_sum_of_its_nodes() -> None:
    """Its channels are joined by name; who does not answer has a row that says so."""
    view = topic_view("t", NODES, ANSWERS)
    assert (view.depth, view.messages, view.channels_depth) == (11, 7, 7)
    assert (view.in_flight, view.deferred) == (2, 9)
    assert [(each.name, each.depth, each.paused) for each in view.channels_list] == [
        ("c", 7, True),
        ("d", 0, False),
    ]
    assert [(each.node, each.error) for each in view.nodes] == [
        ("a:4151", ""),
        ("b:4151", ""),
        ("down:4151", "refused"),
    ]
    assert not view.paused
    assert view.channels_list[0].latencies == [400.0]  # by count


def test_a_channel_is_the_sum_of_its_nodes() -> None:
    """Nodes that lack it are left out, but not those that may have it."""
    view = channel_view("t", "d", NODES, ANSWERS)
    assert [each.node for each in view.nodes] == ["b:4151", "down:4151"]
    assert view.deferred == 9
    both = channel_view("t", "c", NODES, ANSWERS)
    assert (both.depth, both.memory_depth, both.clients, both.paused) == (7, 6, 1, True)
    assert both.latencies == [400.0]
    assert [(node.node, client.client_id) for node, client in both.clients_list] == [
        ("a:4151", "x")
    ]
