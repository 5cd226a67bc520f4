"""No request and no connection does more in one step than a constant amount (lookupd.turns)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import memory_stream_pair

import lookupd
from lookupd import daemon, turns
from lookupd.api import lookupd_app
from lookupd.options import NsqlookupdOptions
from lookupd.registry import Producer, Registry
from lookupd.session import MAGIC, Session
from tests.lookupd.support import IDENTITY, found, frames, identify, producer
from tests.soak import by_level, more_in_soak
from tests.work import longest_step
from trionsq.web import protocol

FOLDER = f"{Path(lookupd.__file__).parent}/"
FEW, MANY = 10, by_level(test=3_000, short=3_000, full=10_000)
# One step of 500 registrations has fewer lines than this, and MANY of them have far more.
LINES_MAX = 15_000


def populated(count: int) -> tuple[Registry, Producer]:
    """Two producers: one at ``count`` topics, one at a topic with as many channels."""
    registry = Registry(10**18, 10**18)
    wide, deep = producer(1), producer(2)
    registry.add_producer(wide)
    registry.add_producer(deep)
    for number in range(count):
        registry.register(wide, f"topic{number}", "channel")
        registry.register(deep, "deep", f"channel{number}")
    return registry, wide


def crowded(count: int) -> Registry:
    """As many producers at one topic and one channel."""
    registry = Registry(10**18, 10**18)
    for number in range(count):
        registry.add_producer(one := producer(number))
        registry.register(one, "topic", "channel")
    return registry


def abandoned(count: int) -> Registry:
    """As many topics that no producer has any more."""
    registry = Registry(10**18, 10**18)
    for number in range(count):
        registry.create_topic(f"topic{number}")
    return registry


REGISTRIES: dict[str, Callable[[int], Registry]] = {
    "populated": lambda count: populated(count)[0],
    "crowded": crowded,
    "abandoned": abandoned,
}
REQUESTS = [
    ("GET", "/topics"),
    ("GET", "/channels?topic=*"),
    ("GET", "/channels?topic=deep"),
    ("GET", "/lookup?topic=*"),
    ("GET", "/lookup?topic=deep"),
    ("GET", "/lookup?topic=topic"),
    ("GET", "/nodes"),
    ("GET", "/debug"),
    ("GET", "/metrics"),
    ("POST", "/topic/tombstone?topic=*&node=10.0.0.1:4151"),
    ("POST", "/channel/delete?topic=topic&channel=channel"),
    ("POST", "/topic/delete?topic=topic"),
    ("POST", "/topic/delete?topic=deep"),
    ("POST", "/topic/delete?topic=*"),
]


def app_of(registry: Registry) -> QuartTrio:
    """Its HTTP API."""
    return lookupd_app(registry, NsqlookupdOptions(), lambda: 1)


CASES = [
    (method, target, kind) for method, target in REQUESTS for kind in ("populated", "crowded")
] + [
    ("GET", target, "abandoned") for target in ("/topics", "/lookup?topic=*", "/debug", "/metrics")
]


@more_in_soak
@pytest.mark.parametrize(("method", "target", "kind"), CASES)
async def test_a_request_is_cut_into_turns(
    method: str, target: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is registered, no step runs more lines, or encodes more items, than a constant."""
    encoded = [0]

    def encode(items: list[object]) -> bytes:
        encoded.append(len(items))
        return plain_encode(items)

    plain_encode = protocol.json_bytes
    monkeypatch.setattr(turns, "json_bytes", encode)
    lines = list[int]()
    for count in (FEW, MANY):
        app = app_of(REGISTRIES[kind](count))

        async def ask(app: QuartTrio = app) -> None:
            client = app.test_client()
            await (client.get(target) if method == "GET" else client.post(target))

        lines.append(await longest_step(ask, FOLDER))
    assert lines[0] > 0
    assert lines[1] < LINES_MAX
    assert max(encoded) <= turns.MAX_TOUCHED


async def document(app: QuartTrio, target: str) -> Any:
    """What is answered."""
    return json.loads(await (await app.test_client().get(target)).get_data())


async def test_answers_in_pieces_are_whole() -> None:
    """What was cut into turns is one document, with each name in it once."""
    app = app_of(populated(MANY)[0])
    names = {f"topic{number}" for number in range(MANY)} | {"deep"}
    assert sorted((await document(app, "/topics"))["topics"]) == sorted(names)
    channels = (await document(app, "/channels?topic=deep"))["channels"]
    assert sorted(channels) == sorted(f"channel{number}" for number in range(MANY))
    one, other = (await document(app, "/nodes"))["producers"]
    assert sorted(one["topics"] + other["topics"]) == sorted(names)
    assert one["tombstones"] + other["tombstones"] == [False] * len(names)
    dump = await document(app, "/debug")
    assert len(dump) == 1 + len(names) + 2 * MANY
    assert len(dump["client::"]) == 2


@more_in_soak
async def test_a_lost_producer_is_gone_at_once_and_swept_in_turns() -> None:
    """However much it registered: no lookup finds it, no step is long, nothing of it is left."""
    registry, commands = Registry(10**18, 10**18), MAGIC + identify()
    commands += b"".join(b"REGISTER t%d c\n" % number for number in range(MANY))
    ours, theirs = memory_stream_pair()
    session = Session(registry, "127.0.0.1:1", IDENTITY)

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.serve_session, theirs, session, lambda: 0)
            await ours.send_all(commands)
            answers = b""
            while len(answers) < len(IDENTITY) + 4 + 6 * MANY:
                answers += await ours.receive_some()
            assert len(frames(answers)) == 1 + MANY
            assert len(found(registry.lookup("t1", 0))) == 1
            await ours.aclose()
        assert not found(registry.lookup("t1", 0))

    assert await longest_step(live, "/lookupd/registry", "/lookupd/turns") < LINES_MAX
    assert not registry.sweep(1)
    assert not list(filter(None, registry.everything()))


async def test_a_topic_may_change_while_it_is_told() -> None:
    """Answers begun before a deletion end, without what was deleted meanwhile."""
    registry, wide = populated(2_000)
    questions: list[Iterable[object]] = [
        registry.lookup("*", 1),
        registry.channels("*"),
        registry.active_producers(1),
        registry.topics_of(wide, 1),
        registry.everything(),
        registry.tombstone("*", wide.node, 1),
    ]
    begun = [iter(question) for question in questions]
    for question in begun:
        next(question)
    registry.delete_topic("*")
    registry.remove_producer(wide)
    while registry.sweep(7):
        pass
    for question in begun:
        list(question)
    assert registry.topics() == []


async def test_a_registration_made_during_a_sweep_stays() -> None:
    """The sweep of an old registration leaves the new one of the same name alone."""
    registry, wide = populated(3)
    registry.unregister_topic(wide, "topic1")
    registry.delete_topic("topic2")
    registry.delete_channel("topic0", "channel")
    for name in ("topic0", "topic1", "topic2"):
        registry.register(wide, name, "channel")
    while registry.sweep(1):
        pass
    places = dict(place for place in registry.topics_of(wide, 1) if place)
    assert places == dict.fromkeys(("topic0", "topic1", "topic2"), False)
    held = {each[0] for each in registry.everything() if each and each[1].producer is wide}
    assert {f"channel:topic{number}:channel" for number in range(3)} <= held
