"""Endpoints and common rules, in this process (trionsq.http.app)."""

from __future__ import annotations

import errno
import json
import logging
import re
from struct import pack

import pytest
import trio
from quart import Response
from quart_trio import QuartTrio

from tests.http.conftest import StartBroker
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.http.app import create_app
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory


@pytest.fixture
def app(broker: Broker) -> QuartTrio:
    return create_app(broker)


async def send(app: QuartTrio, method: str, target: str, body: bytes = b"") -> Response:
    """The answer to a request."""
    return await app.test_client().open(target, method=method, data=body)  # type: ignore[call-arg]


async def ask(app: QuartTrio, method: str, target: str, body: bytes = b"") -> tuple[int, str]:
    """Status and body of the answer; of a refusal the code alone."""
    response = await send(app, method, target, body)
    text = await response.get_data(as_text=True)
    return response.status_code, json.loads(text)[
        "message"
    ] if response.status_code >= 400 else text


async def settle() -> None:
    """Let the tasks of topics and channels do what is there to do."""
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("path", ["/pub", "/put"])
async def test_pub_queues_the_body(app: QuartTrio, broker: Broker, path: str) -> None:
    """One message, under either name; the topic is made."""
    assert await ask(app, "POST", f"{path}?topic=t", b"a\nb") == (200, "OK")
    assert broker.topics["t"].core.message_bytes == 3
    assert broker.topics["t"].core.depth == 1


@pytest.mark.parametrize("path", ["/mpub", "/mput"])
async def test_mpub_queues_lines_or_counted_messages(
    app: QuartTrio, broker: Broker, path: str
) -> None:
    """Under either name, in text and in binary."""
    counted = pack(">i", 2) + pack(">i", 1) + b"c" + pack(">i", 2) + b"d\n"
    assert await ask(app, "POST", f"{path}?topic=t", b"a\n\nb") == (200, "OK")
    assert await ask(app, "POST", f"{path}?topic=t&binary=", counted) == (200, "OK")
    assert broker.topics["t"].core.depth == 4


@pytest.mark.parametrize(
    ("target", "body", "answer"),
    [
        ("/pub", b"", (400, "MSG_EMPTY")),
        ("/pub", b"x" * 101, (413, "MSG_TOO_BIG")),
        ("/pub?%ZZ", b"x", (400, "INVALID_REQUEST")),
        ("/pub?topic=t&defer=", b"x", (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=" + "9" * 5000, b"x", (400, "INVALID_DEFER")),
        ("/mpub?topic=t", b"x\n" * 501, (413, "BODY_TOO_BIG")),
        ("/mpub?topic=t", b"a\n" + b"x" * 101, (413, "MSG_TOO_BIG")),
        ("/mpub?topic=t&binary=1", pack(">iib", 2, 1, 0), (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=1", b"", (413, "BAD_BODY")),
    ],
)
async def test_a_refused_publish_queues_nothing(
    app: QuartTrio, broker: Broker, target: str, body: bytes, answer: tuple[int, str]
) -> None:
    """Each refusal by its code, and nothing of the body is kept."""
    assert await ask(app, "POST", target, body) == answer
    assert sum(topic.core.message_count for topic in broker.topics.values()) == 0


async def test_what_memory_has_no_room_for_goes_to_disk(app: QuartTrio, broker: Broker) -> None:
    """/pub and /mpub beyond --mem-queue-size are taken all the same."""
    assert await ask(app, "POST", "/mpub?topic=t", b"x\n" * 12) == (200, "OK")
    assert await ask(app, "POST", "/pub?topic=t", b"x") == (200, "OK")
    assert await ask(app, "POST", "/pub?topic=t&defer=1000", b"x") == (200, "OK")
    store = broker.topics["t"].core.store
    assert (store.memory.depth, store.backend.depth) == (10, 4)


async def test_a_publish_that_the_disk_refuses(start_broker: StartBroker) -> None:
    """503 with the disk's reason, and nothing queued; /ping is red until the disk takes data."""
    disk = SimulatedDisk()
    broker = await start_broker(NsqdOptions(mem_queue_size=10), disk)
    app = create_app(broker)
    assert await ask(app, "POST", "/mpub?topic=t", b"x\n" * 8) == (200, "OK")
    disk.fail(errno.ENOSPC, forever=True)

    def full(command: str, answer: tuple[int, object]) -> bool:
        status, text = answer
        return status == 503 and bool(re.fullmatch(f"{command}_FAILED: .*No space.*", str(text)))

    assert full("MPUB", await ask(app, "POST", "/mpub?topic=t", b"x\n" * 3))
    assert await ask(app, "POST", "/pub?topic=t", b"x") == (200, "OK")
    assert await ask(app, "POST", "/pub?topic=t&defer=9", b"x") == (200, "OK")
    for target in ("/pub?topic=t", "/pub?topic=t&defer=9"):
        assert full("PUB", await ask(app, "POST", target, b"x"))
    assert broker.topics["t"].core.depth == 10
    ping = await send(app, "GET", "/ping")
    assert ping.status_code == 500
    assert (await ping.get_data(as_text=True)).startswith("NOK - /simulated/t.diskqueue.")
    assert disk.faults
    disk.heal()
    assert await ask(app, "POST", "/mpub?topic=t", b"x\n" * 3) == (200, "OK")
    broker.folder.retry()
    assert await ask(app, "GET", "/ping") == (200, "OK")
    assert broker.topics["t"].core.depth == 13


@pytest.mark.parametrize("target", ["/topic/pause?topic=t", "/channel/pause?topic=t&channel=c"])
async def test_a_pause_is_answered_when_it_is_on_disk(
    target: str, start_broker: StartBroker
) -> None:
    """Whoever has the answer finds the pause again after any crash."""
    disk = SimulatedDisk()
    broker = await start_broker(NsqdOptions(), disk)
    app = create_app(broker)
    broker.topic("t").channel("c")
    await settle()
    assert await ask(app, "POST", target) == (200, "")
    document = json.loads(disk.after_power_loss().files()["nsqd.dat"])
    [topic] = document["topics"]
    assert topic["paused"] == target.startswith("/topic/pause")
    assert topic["channels"][0]["paused"] == target.startswith("/channel/pause")


async def test_a_publisher_waits_for_room_that_is_being_made(
    app: QuartTrio, broker: Broker
) -> None:
    """A topic that is about to hand its messages to a channel is not called full."""
    broker.topic("t").channel("c")
    await settle()
    broker.topic("t").pause()
    assert await ask(app, "POST", "/mpub?topic=t", b"x\n" * 10) == (200, "OK")
    broker.topic("t").unpause()
    assert await ask(app, "POST", "/pub?topic=t&defer=1000", b"x") == (200, "OK")
    await settle()
    channel = broker.topics["t"].channels["c"].core
    assert (channel.depth, channel.deferred_count) == (10, 1)


async def test_a_stopping_broker_changes_nothing(app: QuartTrio, broker: Broker) -> None:
    """What a client asks for during the way down is refused, while /ping still answers."""
    broker.stop()
    assert await ask(app, "POST", "/pub?topic=t", b"x") == (503, "EXITING")
    assert await ask(app, "POST", "/topic/create?topic=t") == (503, "EXITING")
    assert await ask(app, "GET", "/ping") == (200, "OK")
    assert broker.topics == {}


async def test_topics_and_channels_are_administered(app: QuartTrio, broker: Broker) -> None:
    """Create, pause, unpause, empty, delete, each with an empty answer."""

    async def do(action: str) -> None:
        assert await ask(app, "POST", action) == (200, "")

    await do("/topic/create?topic=t%23ephemeral")
    await do("/topic/create?topic=t")
    await do("/topic/pause?topic=t")
    await ask(app, "POST", "/pub?topic=t", b"x")
    await do("/topic/empty?topic=t")
    assert broker.topics["t"].core.paused
    assert broker.topics["t"].core.depth == 0
    await do("/topic/unpause?topic=t")
    await do("/channel/create?topic=t&channel=c")
    await ask(app, "POST", "/pub?topic=t", b"x")
    await settle()
    channel = broker.topics["t"].channels["c"].core
    await do("/channel/pause?topic=t&channel=c")
    assert (channel.paused, channel.depth) == (True, 1)
    await do("/channel/unpause?topic=t&channel=c")
    await do("/channel/empty?topic=t&channel=c")
    assert (channel.paused, channel.depth) == (False, 0)
    await do("/channel/delete?topic=t&channel=c")
    assert broker.topics["t"].channels == {}
    await do("/topic/delete?topic=t")
    assert list(broker.topics) == ["t#ephemeral"]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("topic=t&storage=log", (200, "")),
        ("topic=l&storage=log", (409, "TOPIC_HAS_LOG")),
        ("topic=e%23ephemeral&storage=log", (400, "EPHEMERAL_TOPIC_HAS_NO_LOG")),
        ("topic=gone&storage=log", (404, "TOPIC_NOT_FOUND")),
        ("topic=t&storage=default", (400, "INVALID_STORAGE")),
        ("topic=t", (400, "INVALID_STORAGE")),
        ("storage=log", (400, "MISSING_ARG_TOPIC")),
    ],
)
async def test_a_topic_is_moved_to_a_log(
    arguments: str, answer: tuple[int, str], app: QuartTrio, broker: Broker
) -> None:
    """By a route of ours, which says why it does not."""
    broker.topic("t", "default")
    await broker.logs.ensure_node()
    broker.topic("l", "log")
    broker.topic("e#ephemeral")
    assert await ask(app, "POST", f"/topic/move?{arguments}") == answer
    assert broker.topics["t"].storage == ("log" if answer[0] == 200 else "default")


async def test_a_channel_is_not_made_without_its_topic(app: QuartTrio, broker: Broker) -> None:
    """And an unknown name is told from an invalid one."""
    assert await ask(app, "POST", "/channel/create?topic=t&channel=c") == (404, "TOPIC_NOT_FOUND")
    assert await ask(app, "POST", "/channel/create?topic=t") == (400, "MISSING_ARG_CHANNEL")
    assert await ask(app, "POST", "/topic/delete?topic=%ff") == (404, "TOPIC_NOT_FOUND")
    assert broker.topics == {}


async def test_ill_health_is_shown(
    app: QuartTrio, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/ping answers 500 with the reason, so that a load balancer sees it."""
    monkeypatch.setattr(Broker, "health", "NOK - disk on fire")
    response: Response = await app.test_client().get("/ping")
    assert response.status_code == 500
    assert await response.get_data(as_text=True) == "NOK - disk on fire"


@pytest.mark.parametrize(
    ("method", "target", "location"),
    [
        ("GET", "/PING/?a=1&b", "/ping?a=1&b"),
        ("GET", "//stats", "/stats"),
        ("GET", "/topic/../ping", "/ping"),
        ("POST", "/Topic/Create/?topic=T", "/topic/create?topic=T"),
        ("PUT", "/Config/Nope%3F/", "/config/Nope%3F"),
        ("POST", "/ping/", None),
        ("HEAD", "/ping/", None),
        ("GET", "/", None),
    ],
)
async def test_a_path_is_put_right(
    app: QuartTrio, method: str, target: str, location: str | None
) -> None:
    """Case, slashes and dots, if the method has such a path; the query stays as it was."""
    response = await send(app, method, target)
    assert response.headers.get("Location") == location
    assert response.status_code == (404 if location is None else 301 if method == "GET" else 307)


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_are_told_the_right_ones(app: QuartTrio, method: str) -> None:
    """405, HEAD included; OPTIONS is 200."""
    response = await send(app, method, "/info")
    assert response.headers["Allow"] == "GET, OPTIONS"
    assert response.status_code == (200 if method == "OPTIONS" else 405)


async def test_a_crash_costs_one_request(
    app: QuartTrio,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It answers 500 and leaves a traceback in the log."""
    monkeypatch.setattr(Broker, "topic", None)
    with caplog.at_level(logging.ERROR, "trionsq"):
        assert await ask(app, "POST", "/topic/create?topic=t") == (500, "INTERNAL_ERROR")
    assert caplog.records[0].exc_info is not None
    assert await ask(app, "GET", "/ping") == (200, "OK")


async def test_no_options_but_our_own_limit_a_body(start_broker: StartBroker) -> None:
    """A message as large as --max-msg-size allows is taken, whatever the framework thinks."""
    size = 20_000_000
    broker = await start_broker(NsqdOptions(max_msg_size=size, max_body_size=1000))
    app = create_app(broker)
    assert await ask(app, "POST", "/pub?topic=t", bytes(size)) == (200, "OK")
    assert await ask(app, "POST", "/pub?topic=t", bytes(size + 1)) == (413, "MSG_TOO_BIG")


async def test_a_topic_is_made_with_the_storage_that_is_asked_for(
    start_broker: StartBroker,
) -> None:
    """A contrary wish for an existing topic is a conflict, an impossible or unknown one is bad."""
    broker = await start_broker(NsqdOptions(storage="default"))
    app = create_app(broker)

    async def create(query: str) -> tuple[int, object]:
        return await ask(app, "POST", f"/topic/create?topic={query}")

    assert (await create("l&storage=log"))[0] == 200
    assert (await create("d"))[0] == 200
    assert {name: topic.storage for name, topic in broker.topics.items()} == {
        "l": "log",
        "d": "default",
    }
    for query, status in (
        ("l&storage=log", 200),
        ("l", 200),
        ("l&storage=default", 409),
        ("d&storage=default", 200),
        ("d&storage=log", 409),
        ("e%23ephemeral&storage=log", 400),
        ("n&storage=tape", 400),
    ):
        assert (await create(query))[0] == status, query
    assert set(broker.topics) == {"l", "d"}


async def test_a_pause_of_what_has_a_log_survives_a_kill_after_its_answer() -> None:
    """The state of the logs leads at the start: it has each pause, and its end, before the 200."""
    disk = SimulatedDisk()
    paused: set[str] = set()
    for action in ("pause", "unpause"):
        async with nsqd_in_memory(disk=disk, storage="log") as broker:
            app = create_app(broker)
            for name in ("t", "u"):
                broker.topic(name).channel("c")
                await settle()
            assert found_paused(broker) == paused
            for target in ("/topic/{}?topic=t", "/channel/{}?topic=u&channel=c"):
                assert await ask(app, "POST", target.format(action)) == (200, "")
            disk = disk.after_kill()
        paused = {"t", "u:c"} if action == "pause" else set()
    async with nsqd_in_memory(disk=disk, storage="log") as broker:
        assert found_paused(broker) == set()


def found_paused(broker: Broker) -> set[str]:
    """The topics and channels that are paused."""
    topics = list(broker.topics.values())
    channels = [channel for topic in topics for channel in topic.channels.values()]
    return {topic.name for topic in topics if topic.core.paused} | {
        f"{channel.topic.name}:{channel.name}" for channel in channels if channel.core.paused
    }
