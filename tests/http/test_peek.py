"""/topic/peek and /channel/peek: what is shown, and that nothing is taken (trionsq.http.peek)."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from quart_trio import QuartTrio

from tests.broker.support import connect, full_disk, is_stuck, numbered, publish
from tests.http.conftest import StartBroker
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.core import peek as core_peek
from trionsq.durations import SECOND_NS
from trionsq.http import peek
from trionsq.http.app import create_app
from trionsq.storage import peek as storage_peek
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire import commands


@pytest.fixture
def app(broker: Broker) -> QuartTrio:
    return create_app(broker)


async def ask(app: QuartTrio, target: str, **parameters: object) -> tuple[int, dict[str, Any]]:
    """Status and document of ``GET target``."""
    query = urlencode({"topic": "t", **parameters})
    response = await app.test_client().get(f"{target}?{query}")
    document = json.loads(await response.get_data())
    assert isinstance(document, dict)
    return response.status_code, document


async def look(app: QuartTrio, **parameters: object) -> dict[str, Any]:
    """The document of /channel/peek for the channel c of the topic t."""
    status, document = await ask(app, "/channel/peek", channel="c", **parameters)
    assert status == 200, document
    return document


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


def shown(document: dict[str, Any], key: str = "body") -> list[Any]:
    return [message[key] for message in document["messages"]]


def text(bodies: list[bytes]) -> list[str]:
    return [body.decode() for body in bodies]


async def test_the_next_messages_are_shown_and_stay(app: QuartTrio, broker: Broker) -> None:
    """With all that is known of them; a consumer gets them still, as its first attempt."""
    broker.topic("t").channel("c")
    publish(broker, "t", *numbered(9))
    await settle()
    document = await look(app, limit=8)
    assert shown(document) == text(numbered(8))
    assert (document["more"], document["trouble"]) == (True, None)
    assert document["counts"]["queued"] == 9
    first = document["messages"][0]
    assert first["timestamp"] > 10**18
    known = {key: first[key] for key in ("attempts", "where", "body_size", "body_cut")}
    assert known == {"attempts": 0, "where": "memory", "body_size": 8, "body_cut": False}
    talk, _, _ = connect(broker)
    await talk.subscribe("t", "c", ready=20)
    got = await talk.messages(9)
    assert {message.attempts for message in got} == {1}
    assert shown(document, "id") == [message.message_id.decode() for message in got[:8]]


async def test_memory_comes_before_disk(app: QuartTrio, broker: Broker) -> None:
    """Offsets go through both, and each message says where it is; the page says how they go."""
    publish(broker, "t", *numbered(10))
    publish(broker, "t", *numbered(15))
    _, document = await ask(app, "/topic/peek")
    assert (len(document["messages"]), document["more"]) == (10, True)
    _, document = await ask(app, "/topic/peek", limit=30)
    assert shown(document) == text(numbered(10) + numbered(15))
    assert shown(document, "where") == ["memory"] * 10 + ["disk"] * 15
    assert document["counts"] == {"queued": 25, "memory": 10, "disk": 15}
    assert "in turn" in document["order"]
    assert document["more"] is False
    for offset, limit in ((0, 10), (8, 4), (10, 3), (22, 3), (25, 1), (24, 9)):
        _, page = await ask(app, "/topic/peek", limit=limit, offset=offset)
        assert page["messages"] == document["messages"][offset : offset + limit]
        assert page["more"] is (offset + limit < 25)
    assert broker.topics["t"].core.depth == 25


async def test_bodies_are_text_or_base64(app: QuartTrio, broker: Broker) -> None:
    """Marked which; text of any characters comes whole."""
    bodies = ["grün <&> \u2028 \x00".encode(), b"\xff\x00", b"\xed\xa0\x80"]
    publish(broker, "t", *bodies)
    _, document = await ask(app, "/topic/peek")
    assert shown(document, "body_encoding") == ["utf-8", "base64", "base64"]
    first, *others = shown(document)
    assert first.encode() == bodies[0]
    assert [base64.b64decode(body) for body in others] == bodies[1:]


async def test_bodies_are_bounded_and_cut(app: QuartTrio, broker: Broker) -> None:
    """A page ends before what does not fit; a body longer than all of it is cut, and marked."""
    publish(broker, "t", *["ü".encode() * 20] * 3)
    _, document = await ask(app, "/topic/peek", max_bytes=100)
    assert (len(document["messages"]), document["more"]) == (2, True)
    _, document = await ask(app, "/topic/peek", max_bytes=39)
    (message,) = document["messages"]
    assert message["body"] == "ü" * 19, "half a character does not make it binary"
    assert (message["body_cut"], message["body_size"], document["more"]) == (True, 40, True)
    assert message["body_encoding"] == "utf-8"


async def test_messages_in_flight_are_shown(app: QuartTrio, broker: Broker) -> None:
    """With the client that has each, and the time it has left; also after that client went."""
    broker.topic("t").channel("c")
    publish(broker, "t", *numbered(5))
    talk, client, _ = connect(broker)
    await talk.say(commands.identify({"client_id": "me", "hostname": "here"}))
    await talk.response()
    await talk.subscribe("t", "c", ready=3)
    got = await talk.messages(3)
    await settle()
    document = await look(app, state="in_flight", limit=2)
    assert shown(document, "id") == [message.message_id.decode() for message in got[:2]]
    assert shown(document, "attempts") == [1, 1]
    assert shown(document, "client")[0] == {
        "client_id": "me",
        "hostname": "here",
        "remote_address": client.peer,
    }
    assert all(50 < left_s <= 60 for left_s in shown(document, "deadline_in_seconds"))
    assert document["counts"]["in_flight"] == 3
    assert document["counts"]["queued"] == 2
    assert document["more"] is True
    talk.close()
    await settle()
    document = await look(app, state="in_flight", offset=1)
    assert shown(document, "body") == [message.body.decode() for message in got[1:]]
    assert shown(document, "client") == [None, None]
    assert document["more"] is False


async def test_deferred_messages_are_shown_by_due_time(app: QuartTrio, broker: Broker) -> None:
    """The next due first, each with its time."""
    broker.topic("t").channel("c")
    for minutes in (5, 1, 4, 2, 3):
        publish(broker, "t", b"%d" % minutes, defer_ms=minutes * 60_000)
    await settle()
    document = await look(app, state="deferred")
    assert shown(document) == list("12345")
    assert document["counts"]["deferred"] == 5
    left_s = shown(document, "due_in_seconds")
    assert [round(one / 60) for one in left_s] == [1, 2, 3, 4, 5]
    first = document["messages"][0]
    assert first["due"] - first["timestamp"] == pytest.approx(60 * SECOND_NS, rel=0.1)
    page = await look(app, state="deferred", offset=3, limit=1)
    assert (shown(page), page["more"]) == (["4"], True)


async def test_deferred_messages_on_disk_are_marked(app: QuartTrio, broker: Broker) -> None:
    """They wait in the queue, and have a due time there too."""
    publish(broker, "t", *numbered(10))
    publish(broker, "t", b"late", defer_ms=90_000)
    _, document = await ask(app, "/topic/peek", offset=9)
    early, late = document["messages"]
    assert "due" not in early
    assert (late["where"], late["body"], round(late["due_in_seconds"] / 10)) == ("disk", "late", 9)


async def test_what_a_topic_could_not_hand_over_is_shown(start_broker: StartBroker) -> None:
    """Messages that a full channel had no room for are still the topic's."""
    broker = await start_broker(NsqdOptions(mem_queue_size=5), full_disk("t:c"))
    app = create_app(broker)
    broker.topic("t").channel("c")
    publish(broker, "t", *numbered(5))
    await settle()
    publish(broker, "t", b"stuck")
    await settle()
    assert is_stuck(broker.topics["t"])
    publish(broker, "t", b"behind")
    _, document = await ask(app, "/topic/peek")
    assert shown(document) == ["stuck", "behind"]
    assert document["counts"]["queued"] == 2


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        ("/topic/peek", (400, "MISSING_ARG_TOPIC")),
        ("/topic/peek?topic=b$d", (400, "INVALID_TOPIC")),
        ("/topic/peek?topic=u", (404, "TOPIC_NOT_FOUND")),
        ("/topic/peek?topic=%ZZ", (400, "INVALID_REQUEST")),
        ("/topic/peek?topic=t&state=in_flight", (400, "INVALID_ARG_STATE")),
        ("/channel/peek?channel=c", (400, "MISSING_ARG_TOPIC")),
        ("/channel/peek?topic=b$d", (400, "INVALID_ARG_TOPIC")),
        ("/channel/peek?topic=t", (400, "MISSING_ARG_CHANNEL")),
        ("/channel/peek?topic=t&channel=b$d", (400, "INVALID_ARG_CHANNEL")),
        ("/channel/peek?topic=u&channel=c", (404, "TOPIC_NOT_FOUND")),
        ("/channel/peek?topic=t&channel=d", (404, "CHANNEL_NOT_FOUND")),
        ("/channel/peek?topic=t&channel=c&state=x", (400, "INVALID_ARG_STATE")),
        ("/channel/peek?topic=t&channel=c&limit=0", (400, "INVALID_ARG_LIMIT")),
        ("/channel/peek?topic=t&channel=c&limit=1001", (400, "INVALID_ARG_LIMIT")),
        ("/channel/peek?topic=t&channel=c&limit=", (400, "INVALID_ARG_LIMIT")),
        ("/channel/peek?topic=t&channel=c&offset=-1", (400, "INVALID_ARG_OFFSET")),
        ("/channel/peek?topic=t&channel=c&offset=" + "9" * 5000, (400, "INVALID_ARG_OFFSET")),
        ("/channel/peek?topic=t&channel=c&max_bytes=0", (400, "INVALID_ARG_MAX_BYTES")),
        ("/channel/peek?topic=t&channel=c&max_bytes=4194305", (400, "INVALID_ARG_MAX_BYTES")),
    ],
)
async def test_refusals(
    app: QuartTrio, broker: Broker, target: str, refusal: tuple[int, str]
) -> None:
    """As the other endpoints of topics and channels give them."""
    broker.topic("t").channel("c")
    response = await app.test_client().get(target)
    assert (response.status_code, json.loads(await response.get_data())["message"]) == refusal


async def test_only_get_looks(app: QuartTrio) -> None:
    """Nothing is changed, so POST is not for it."""
    response = await app.test_client().post("/topic/peek?topic=t")
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, OPTIONS")


async def test_far_offsets_are_refused(
    app: QuartTrio, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, on disk, in flight and deferred: rather than paid for."""
    monkeypatch.setattr(core_peek, "MAX_SEGMENTS", 5)
    monkeypatch.setattr(storage_peek, "MAX_SCANNED_BYTES", 1000)
    monkeypatch.setattr(storage_peek, "_BLOCK_BYTES", 500)
    monkeypatch.setattr(peek, "_MAX_SKIPPED", 5)
    monkeypatch.setattr(peek, "_MAX_SKIPPED_DEFERRED", 5)
    broker.topic("t")
    for body in numbered(10):
        publish(broker, "t", body)
    refused = (400, {"message": "OFFSET_TOO_FAR"})
    assert await ask(app, "/topic/peek", offset=8) == refused
    publish(broker, "t", *numbered(80))
    monkeypatch.setattr(core_peek, "MAX_SEGMENTS", 100)
    assert await ask(app, "/topic/peek", offset=85) == refused
    assert (await ask(app, "/topic/peek", offset=20))[0] == 200
    broker.topic("t").channel("c")
    for state in ("in_flight", "deferred"):
        assert await ask(app, "/channel/peek", channel="c", state=state, offset=6) == refused


async def test_damage_on_disk_is_told(start_broker: StartBroker) -> None:
    """What comes before it is shown; the queue is not touched."""
    disk = SimulatedDisk()
    broker = await start_broker(NsqdOptions(mem_queue_size=0), disk)
    app = create_app(broker)
    publish(broker, "t", *numbered(5, size=20))
    name = "t.diskqueue.000000.dat"
    whole = disk.files()[name]
    disk.write_file(name, whole[:100] + b"\xff" * 4 + whole[104:])
    _, document = await ask(app, "/topic/peek")
    assert shown(document) == text(numbered(2, size=20))
    assert document["trouble"] == f"{name}: no record begins at offset 100"
    disk.write_file(name, whole)
    assert (await ask(app, "/topic/peek"))[1]["trouble"] is None


async def test_a_missing_file_is_told(start_broker: StartBroker) -> None:
    """After looking again, in case that it was only read meanwhile."""
    disk = SimulatedDisk()
    broker = await start_broker(NsqdOptions(mem_queue_size=1), disk)
    app = create_app(broker)
    publish(broker, "t", *numbered(5))
    disk.unlink("t.diskqueue.000000.dat")
    _, document = await ask(app, "/topic/peek")
    assert shown(document) == text(numbered(1))
    assert document["trouble"] == "t.diskqueue.000000.dat: No such file or directory"


async def test_a_look_beside_consumers(start_broker: StartBroker) -> None:
    """Files vanish under it, and it begins anew: each answer is a run of messages in order."""
    broker = await start_broker(NsqdOptions(mem_queue_size=0, max_bytes_per_file=500))
    app = create_app(broker)
    broker.topic("t").channel("c")
    publish(broker, "t", *numbered(2000))
    await settle()
    talk, _, _ = connect(broker)
    await talk.subscribe("t", "c", ready=10)

    async def consume() -> None:
        for _ in range(100):
            message = await talk.message()
            await talk.say(commands.finish(message.message_id))

    looks = {True: 0, False: 0}
    for _ in range(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            document = await look(app, limit=50, offset=20)
        looks[document["trouble"] is None] += 1
        numbers = [int(body) for body in shown(document)]
        assert all(later - first == 1 for first, later in pairwise(numbers))
    await settle()
    # Files may vanish faster than they are looked at, which the answer tells.
    assert looks[True] >= 10
    assert broker.topics["t"].channels["c"].core.finish_count == 2000


async def test_a_topic_deleted_during_the_look(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is that it is not there."""
    broker = await start_broker(NsqdOptions(mem_queue_size=0))
    app = create_app(broker)
    publish(broker, "t", *numbered(5))
    read = storage_peek.QueueView.read

    def delete_and_read(self: storage_peek.QueueView, *arguments: Any, **more: Any) -> None:
        trio.from_thread.run_sync(broker.delete_topic, "t")
        read(self, *arguments, **more)

    monkeypatch.setattr(storage_peek.QueueView, "read", delete_and_read)
    assert await ask(app, "/topic/peek") == (404, {"message": "TOPIC_NOT_FOUND"})
