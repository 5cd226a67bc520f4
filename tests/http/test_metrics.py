"""/metrics of nsqd (trionsq.http.metrics, trionsq.web.metrics)."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from quart_trio import QuartTrio

from tests.broker.support import publish
from tests.engines import ON_LOG
from tests.http.conftest import StartBroker
from tests.http.meter import Meter, metered
from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.options import NsqdOptions
from trionsq.http import metrics
from trionsq.http.app import create_app
from trionsq.http.logstream import Readers
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.streams import memory_connection
from trionsq.web import metrics as web_metrics
from trionsq.web.gate import Gate
from trionsq.wire import commands

OPENMETRICS = "application/openmetrics-text"


class Scrape:
    """The samples of one page."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self._values = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
        self.names = {name for name, _ in self._values}

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of a sample, None if there is no such one."""
        return self._values.get((name, frozenset(labels.items())))


async def scrape(app: QuartTrio) -> Scrape:
    """What Prometheus' own parser makes of the page in the classic form."""
    response = await app.test_client().get("/metrics")
    assert response.status_code == 200
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
    text = await response.get_data(as_text=True)
    families = text_string_to_metric_families(text)
    return Scrape(sample for family in families for sample in family.samples)


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are not kept, so that each scrape sees what the test did."""
    monkeypatch.setattr(web_metrics, "_CACHED_S", 0.0)


async def test_a_message_is_seen_all_along_its_way(broker: Broker) -> None:
    """Published, waiting, in flight, requeued, finished: each shows at its topic and channel."""
    app = create_app(broker)
    broker.topic("t").channel("c")
    publish(broker, "t", b"abc", b"de")
    consumer = Conversation.begin(broker)
    await consumer.subscribe("t", "c", ready=0)
    await trio.testing.wait_all_tasks_blocked()
    of_channel = {"topic": "t", "channel": "c"}
    seen = await scrape(app)
    assert seen("nsqd_topic_messages_total", topic="t") == 2
    assert seen("nsqd_topic_message_bytes_total", topic="t") == 5
    assert seen("nsqd_topic_channels", topic="t") == 1
    assert seen("nsqd_channel_depth_messages", **of_channel) == 2
    assert seen("nsqd_channel_clients", **of_channel) == 1
    assert seen("nsqd_connections") == 1
    await consumer.say(commands.ready(1))
    (message,) = await consumer.messages(1)
    seen = await scrape(app)
    assert seen("nsqd_channel_in_flight_messages", **of_channel) == 1
    assert seen("nsqd_channel_depth_messages", **of_channel) == 1
    await consumer.say(commands.requeue(message.message_id, 0))
    (message,) = await consumer.messages(1)
    await consumer.say(commands.ready(0), commands.finish(message.message_id))
    await trio.testing.wait_all_tasks_blocked()
    seen = await scrape(app)
    assert seen("nsqd_channel_requeued_messages_total", **of_channel) == 1
    assert seen("nsqd_channel_finished_messages_total", **of_channel) == 1
    assert seen("nsqd_channel_timed_out_messages_total", **of_channel) == 0


async def test_latencies_if_asked_for(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From publishing to FIN, in seconds, for each quantile; none before something is finished."""
    options = NsqdOptions(e2e_processing_latency_percentile=(1.0, 0.5))
    broker = await start_broker(options)
    app = create_app(broker)
    now_ns = 1_700_000_000 * 10**9
    monkeypatch.setattr(broker.clock, "now_ns", lambda: now_ns)
    broker.topic("t").channel("c")
    name, of_channel = "nsqd_channel_e2e_latency_seconds", {"topic": "t", "channel": "c"}
    publish(broker, "t", b"x")
    consumer = Conversation.begin(broker)
    await consumer.subscribe("t", "c", ready=1)
    message = await consumer.message()
    assert name not in (await scrape(app)).names
    now_ns += 3 * 10**9
    await consumer.say(commands.finish(message.message_id))
    await trio.testing.wait_all_tasks_blocked()
    seen = await scrape(app)
    assert seen(name, quantile="0.5", **of_channel) == 3
    assert seen(name, quantile="1", **of_channel) == 3


async def test_paused_ones_and_drops_by_reason(broker: Broker) -> None:
    """A pause is 1; what was dropped on purpose tells why, at topics as at channels."""
    app = create_app(broker)
    topic = broker.topic("t")
    topic.pause()
    publish(broker, "t", b"x", b"y")
    topic.empty()
    noisy = broker.topic("e#ephemeral")
    noisy.channel("c#ephemeral").pause()
    publish(broker, "e#ephemeral", *[b"x"] * 7)
    await trio.testing.wait_all_tasks_blocked()
    publish(broker, "e#ephemeral", *[b"x"] * 7)
    await trio.testing.wait_all_tasks_blocked()
    seen = await scrape(app)
    assert seen("nsqd_topic_paused", topic="t") == 1
    assert seen("nsqd_topic_dropped_messages_total", topic="t", reason="emptied") == 2
    of_channel = {"topic": "e#ephemeral", "channel": "c#ephemeral"}
    assert seen("nsqd_channel_paused", **of_channel) == 1
    dropped = seen("nsqd_channel_dropped_messages_total", reason="ephemeral_overflow", **of_channel)
    assert dropped == 4


@pytest.mark.parametrize("mem_queue_size", [0, 1, 10])
async def test_the_age_of_the_oldest_message(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, mem_queue_size: int
) -> None:
    """Of those that wait, in memory or on disk; it goes back when the oldest is taken."""
    broker = await start_broker(NsqdOptions(mem_queue_size=mem_queue_size))
    app = create_app(broker)
    now_ns = 1_700_000_000 * 10**9
    monkeypatch.setattr(broker.clock, "now_ns", lambda: now_ns)
    name = "nsqd_topic_oldest_message_age_seconds"
    broker.topic("t")
    assert (await scrape(app))(name, topic="t") == 0
    publish(broker, "t", b"first")
    now_ns += 5 * 10**9
    publish(broker, "t", b"second")
    now_ns += 10 * 10**9
    assert (await scrape(app))(name, topic="t") == 15
    # The second look at the same place on disk is remembered.
    assert (await scrape(app))(name, topic="t") == 15
    broker.topic("t").channel("c")
    await trio.testing.wait_all_tasks_blocked()
    seen = await scrape(app)
    assert seen(name, topic="t") == 0
    of_channel = {"topic": "t", "channel": "c"}
    assert seen("nsqd_channel_oldest_message_age_seconds", **of_channel) == 15
    consumer = Conversation.begin(broker)
    await consumer.subscribe("t", "c", ready=1)
    (message,) = await consumer.messages(1)
    expected = {b"first": 10, b"second": 15}[message.body]
    assert (await scrape(app))("nsqd_channel_oldest_message_age_seconds", **of_channel) == expected


async def test_an_age_that_the_disk_does_not_tell_is_left_out(start_broker: StartBroker) -> None:
    """No age at all rather than a wrong one, and it is there when the disk is."""
    disk = SimulatedDisk()
    broker = await start_broker(NsqdOptions(mem_queue_size=0), disk)
    app = create_app(broker)
    publish(broker, "t", b"x")
    disk.fail(errno.EIO, only=("open", "read"), name="t.diskqueue.0*")
    name = "nsqd_topic_oldest_message_age_seconds"
    seen = await scrape(app)
    assert disk.faults.total() == 1
    assert seen("nsqd_topic_depth_messages", topic="t") == 1
    assert seen(name, topic="t") is None
    assert (await scrape(app))(name, topic="t") is not None


async def test_syncs_are_timed(start_broker: StartBroker) -> None:
    """Each fsync of a disk queue's file, or of a log, is one observation."""
    name = "nsqd_log_fsync_duration_seconds" if ON_LOG else "nsqd_fsync_duration_seconds"
    broker = await start_broker(NsqdOptions(mem_queue_size=0, sync_every=1))
    app = create_app(broker)
    assert (await scrape(app))(f"{name}_count") == 0
    publish(broker, "t", b"x")
    seen = await scrape(app)
    assert seen(f"{name}_count") == 1
    assert seen(f"{name}_bucket", le="+Inf") == 1


async def test_the_loop_s_lag_is_sampled(start_broker: StartBroker) -> None:
    """A task of the broker's adds to the histogram as long as it runs."""
    broker = await start_broker(NsqdOptions())
    app = create_app(broker)
    for _ in range(3):
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.5)
    assert (await scrape(app))("nsqd_event_loop_lag_seconds_count")


async def test_refusals_tell_the_limit(start_broker: StartBroker) -> None:
    """One series for each limit, there from the start so that a rate can be taken."""
    broker = await start_broker(NsqdOptions(max_connections=1))
    app = create_app(broker)
    name = "nsqd_connections_refused_total"
    seen = await scrape(app)
    assert seen(name, limit="max_connections") == seen(name, limit="max_connection_rate") == 0
    for _ in range(3):
        broker.accept(memory_connection()[1])
    assert (await scrape(app))(name, limit="max_connections") == 2


async def test_lookupds_and_the_disk_s_state(start_broker: StartBroker) -> None:
    """An nsqlookupd that does not answer is 0; a disk queue that fails is one fault."""
    disk = SimulatedDisk()
    address = "127.0.0.1:1"
    options = NsqdOptions(mem_queue_size=0, lookupd_tcp_address=(address,))
    broker = await start_broker(options, disk)
    app = create_app(broker)
    await trio.testing.wait_all_tasks_blocked()
    seen = await scrape(app)
    assert seen("nsqd_lookupd_connected", lookupd=address) == 0
    assert seen("nsqd_disk_faults") == 0
    disk.fail(errno.ENOSPC, forever=True, only=("create", "write"), name="t.*")
    response = await app.test_client().post("/pub?topic=t", data=b"x")
    assert response.status_code >= 500
    assert (await scrape(app))("nsqd_disk_faults") == 1


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        (f"{OPENMETRICS};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        (OPENMETRICS, True),
        (f"{OPENMETRICS};q=0,text/plain", False),
        (f"{OPENMETRICS};version=x.y\u00e9", True),
    ],
)
async def test_the_form_follows_the_accept_header(
    broker: Broker, accept: str, is_openmetrics: bool
) -> None:
    """OpenMetrics for whoever asks for it, complete and readable by its strict parser."""
    publish(broker, "t", b"x")
    app = create_app(broker)
    response = await app.test_client().get("/metrics", headers={"Accept": accept})
    text = await response.get_data(as_text=True)
    assert response.content_type.startswith(OPENMETRICS) == is_openmetrics
    assert text.endswith("# EOF\n") == is_openmetrics
    if is_openmetrics:
        names = {family.name for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]
        assert {"nsqd_topic_messages", "nsqd_build", "process_open_fds"} <= names


async def test_many_who_ask_at_once_cost_one_look(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a second everybody gets the same page, made once."""
    monkeypatch.setattr(web_metrics, "_CACHED_S", 3600.0)
    looks = []
    gather = metrics._gather

    async def counted(of: Broker, gate: Gate, readers: Readers) -> object:
        looks.append(of)
        return await gather(of, gate, readers)

    monkeypatch.setattr(metrics, "_gather", counted)
    app = create_app(broker)
    pages = []

    async def ask() -> None:
        response = await app.test_client().get("/metrics")
        pages.append(await response.get_data())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert len(looks) == 1
    assert len(pages) == 5
    assert len(set(pages)) == 1


async def test_other_tasks_get_their_turn_while_a_page_is_made(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many topics, or many channels of one, the event loop is given back many times."""
    for number in range(250):
        broker.topic(f"t{number}").channel("c")
        broker.topic("t").channel(f"c{number}")
    await trio.testing.wait_all_tasks_blocked()
    meter = Meter()
    show = metrics._channel

    def counted(channel: Channel, now_ns: int) -> list[float | None]:
        meter.did()
        return show(channel, now_ns)

    monkeypatch.setattr(metrics, "_channel", counted)
    async with metered(meter):
        gathered = await metrics._gather(broker, Gate(), Readers(lambda: False, broker.clock))
    assert meter.total == 500
    assert meter.most <= 100
    assert any(len(getattr(table, "rows", ())) == 500 for table in gathered)


async def test_the_documentation_names_each_figure(broker: Broker) -> None:
    """docs/metrics.md has all of nsqd's with their labels, and none that there is not."""
    told = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(nsqd_\w+)` \|([^|]*)\|", told, re.MULTILINE)
    broker.topic("t").channel("c")
    await broker.logs.ensure_node()
    broker.topic("l", "log")
    found = {}
    for figures in await metrics._gather(broker, Gate(), Readers(lambda: False, broker.clock)):
        for metric in figures.metrics():
            suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
            labels = {name for sample in metric.samples for name in sample.labels} - {"le"}
            found[metric.name + suffix] = labels
    assert {name for name, _ in rows} == found.keys()
    for name, labels in rows:
        if found[name]:  # it has a sample
            assert set(labels.replace(" ", "").split(",")) - {""} == found[name], name
