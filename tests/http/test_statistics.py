"""The documents of /info and /stats, from a broker without HTTP (trionsq.broker.statistics)."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.broker.statistics import document_of
from trionsq.broker.broker import Broker
from trionsq.broker.statistics import StatsFilter, info, statistics
from trionsq.core.subscription import Subscription
from trionsq.http.stats import StatsText
from trionsq.testing.memory import nsqd_in_memory
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.wire.bodies import ListBodies


@asynccontextmanager
async def connected(broker: Broker, commands: bytes) -> AsyncIterator[trio.SocketStream]:
    """A connection whose commands have been acted on."""
    ours, theirs = socket.socketpair()
    broker.connect(SocketTransport(theirs))
    async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream:
        await stream.send_all(b"  V2" + commands)
        await stream.receive_some(1000)
        await trio.testing.wait_all_tasks_blocked()
        yield stream


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + len(body).to_bytes(4, "big") + body


async def text_of(broker: Broker, asked: StatsFilter) -> str:
    """The text."""
    form = StatsText(broker.clock.now_ns())
    rows = [form.row(row) async for row in statistics(broker, asked)]
    return b"".join([*rows, form.end_document()]).decode()


def topic_names(document: Mapping[str, Any]) -> list[str] | None:
    topics = document["topics"]
    return None if topics is None else [topic["topic_name"] for topic in topics]


async def test_an_empty_broker(broker: Broker) -> None:
    """No topics is an empty list, no producers is null; memory has all its figures."""
    document = await document_of(broker, StatsFilter())
    assert list(document) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (document["topics"], document["producers"]) == ([], None)
    assert all(isinstance(figure, int) and figure >= 0 for figure in document["memory"].values())
    assert document["memory"]["heap_in_use_bytes"] > 1_000_000


async def test_names_are_sorted_and_filtered_exactly(broker: Broker) -> None:
    """Topics and channels in byte order; unknown topic null, unknown channel no topics."""
    for topic in ("b", "a.z", "B"):
        broker.topic(topic)
    for channel in ("y", "X"):
        broker.topic("b").channel(channel)
    document = await document_of(broker, StatsFilter())
    assert topic_names(document) == ["B", "a.z", "b"]
    assert document["topics"] is not None
    assert [channel["channel_name"] for channel in document["topics"][2]["channels"]] == ["X", "y"]
    assert topic_names(await document_of(broker, StatsFilter(topic="a"))) is None
    assert topic_names(await document_of(broker, StatsFilter(topic="b", channel="y"))) == ["b"]
    assert topic_names(await document_of(broker, StatsFilter(channel="nope"))) == []


async def test_a_connection_that_published_and_consumes(broker: Broker) -> None:
    """It is listed at its channel and among the producers, with at most one publish count."""
    commands = b"SUB t c\n" + pub("t", b"one") + pub("u", b"two") + b"RDY 5\n"
    async with connected(broker, commands):
        document = await document_of(broker, StatsFilter(memory=False))
        assert document["topics"] is not None
        (channel,) = document["topics"][0]["channels"]
        assert (channel["in_flight_count"], channel["depth"], channel["client_count"]) == (1, 0, 1)
        assert document["producers"] == channel["clients"]
        assert document["producers"] is not None
        (client,) = document["producers"]
        assert client["pub_counts"] == [{"topic": "t", "count": 1}]
        assert (client["state"], client["ready_count"], client["message_count"]) == (3, 5, 1)
        keys = list(client)
        assert keys[keys.index("user_agent") : keys.index("tls") + 1] == [
            "user_agent",
            "pub_counts",
            "tls",
        ]


async def test_a_producer_of_another_topic_has_no_count(broker: Broker) -> None:
    """With a topic filter it is listed all the same; an unknown topic lists nobody."""
    broker.topic("other")
    async with connected(broker, pub("t", b"x")):
        producers = (await document_of(broker, StatsFilter(topic="other")))["producers"]
        assert producers is not None
        (producer,) = producers
        assert "pub_counts" not in producer
        assert (await document_of(broker, StatsFilter(topic="nope")))["producers"] is None


async def test_clients_can_be_left_out(broker: Broker) -> None:
    """Their lists are null then, and they are counted still."""
    async with connected(broker, b"SUB t c\n" + pub("t", b"x")):
        document = await document_of(broker, StatsFilter(clients=False))
        assert document["topics"] is not None
        (channel,) = document["topics"][0]["channels"]
        assert (channel["clients"], channel["client_count"]) == (None, 1)
        assert document["producers"] is None


async def test_a_snapshot_does_not_touch_what_it_counts(broker: Broker) -> None:
    """Looking twice shows the same, also after a filter for a topic nobody published to."""
    broker.topic("other")
    async with connected(broker, pub("t", b"x")):
        before = await document_of(broker, StatsFilter(memory=False))
        await document_of(broker, StatsFilter(topic="other"))
        assert await document_of(broker, StatsFilter(memory=False)) == before


async def test_info_tells_ports_and_limits(broker: Broker) -> None:
    """In nsqd's order, durations in nanoseconds."""
    broker.ports.tcp, broker.ports.http = 4150, -1
    document = info(broker)
    assert list(document) == [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
    ]
    assert (document["http_port"], document["tcp_port"]) == (-1, 4150)
    assert document["max_heartbeat_interval"] == 60_000_000_000


@pytest.mark.parametrize("memory", [True, False])
async def test_text_has_a_line_for_each_thing(broker: Broker, memory: bool) -> None:
    """Topics, channels and clients, in the columns that people's scripts cut."""
    broker.topic("paused").pause()
    async with connected(broker, b"SUB t c\n" + pub("t", b"x")):
        broker.topic("t").channel("d").pause()
        text = await text_of(broker, StatsFilter(memory=memory))
    lines = text.split("\n")
    assert lines[0].startswith("nsqd v1.3.0 (built w/")
    assert ("Memory:" in lines) is memory
    at = lines.index("Topics:")
    label = f"[V2 {':@ ':<21}]"
    assert lines[at + 1] == (
        "*P [paused         ] depth: 0     be-depth: 0     msgs: 0        e2e%: "
    )
    assert lines[at + 2] == ""
    assert lines[at + 3] == (
        "   [t              ] depth: 0     be-depth: 0     msgs: 1        e2e%: "
    )
    assert lines[at + 4] == (
        "      [c                        ] depth: 1     be-depth: 0     inflt: 0    def: 0   "
        " re-q: 0     timeout: 0     msgs: 1        e2e%: "
    )
    assert lines[at + 5].startswith(
        f"        {label} state: 3 inflt: 0    rdy: 0    fin: 0        re-q: 0        msgs: 0   "
    )
    assert lines[at + 6].startswith("   *P [d                        ] depth: 0 ")
    assert lines[at + 8] == "Producers:"
    assert lines[at + 9].startswith(f"   {label} msgs: 1        topics: t=1 connected: ")
    assert lines[at + 10 :] == [""]


async def test_a_client_cannot_write_lines_of_its_own(broker: Broker) -> None:
    """Line breaks in what a client said of itself do not reach the text."""
    body = b'{"hostname":"h\\nTopics: None","client_id":"x"}'
    identify = b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body
    async with connected(broker, identify + pub("t", b"x")):
        text = await text_of(broker, StatsFilter())
    assert "\nTopics: None" not in text


async def test_latencies_from_publishing_to_fin(autojump_clock: MockClock) -> None:
    """In nanoseconds and in the order of the option; in text with a unit that suits."""
    percentiles = (1.0, 0.5)
    async with nsqd_in_memory(e2e_processing_latency_percentile=percentiles) as broker:
        for body in (b"a", b"b"):
            broker.topic("t").publish(ListBodies([body]))
            await trio.sleep(1.5)
        channel = broker.topic("t").channel("c")
        broker.topic("t").channel("d")
        consumer = Subscription(lambda delivery: True)
        channel.core.add_subscription(consumer)
        channel.core.set_ready(consumer, 10, broker.clock.now_s())
        await trio.testing.wait_all_tasks_blocked()
        channel.core.finish(consumer, list(consumer.in_flight), broker.clock.now_s())
        document = await document_of(broker, StatsFilter())
        text = await text_of(broker, StatsFilter())
    expected = [{"quantile": 1, "value": 3_000_000_000}, {"quantile": 0.5, "value": 1_500_000_000}]
    assert document["topics"] is not None
    [topic] = document["topics"]
    assert topic["e2e_processing_latency"] == {"count": 2, "percentiles": expected}
    finished, idle = (one["e2e_processing_latency"] for one in topic["channels"])
    assert finished == {"count": 2, "percentiles": expected}
    assert (idle["count"], [each["value"] for each in idle["percentiles"] or ()]) == (0, [0, 0])
    assert re.findall(r"e2e%: (.*)", text) == ["3.0s, 1.5s", "3.0s, 1.5s", "0.0ns, 0.0ns"]
    assert '{"quantile": 1, ' in json.dumps(topic)
