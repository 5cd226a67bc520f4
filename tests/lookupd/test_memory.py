"""What nsqlookupd keeps in memory is bounded, whatever its peers send."""

from __future__ import annotations

import logging
import tracemalloc
from random import Random

import pytest

from lookupd import registry as registry_module
from lookupd.api import lookupd_app
from lookupd.options import NsqlookupdOptions
from lookupd.registry import ALL, MAX_NAMES, Registry, RegistryFullError
from lookupd.session import MAGIC, MAX_BODY_BYTES, MAX_LINE_BYTES, Session
from tests.lookupd.support import IDENTITY, frames, identify, identify_with, producer

PEER = "127.0.0.1:50001"
READ_BYTES = 4096
FULL = b"E_REGISTER_FAILED REGISTER too many topics and channels"


@pytest.fixture
def registry() -> Registry:
    return Registry(10**18, 10**18)


@pytest.fixture
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_NAMES", 100)


@pytest.mark.usefixtures("few_names")
def test_names_without_end_are_refused(registry: Registry) -> None:
    """With a million topics and channels further ones are refused, and the connection goes on:
    what is registered can be registered again, pinged for, and given up. A deleted name makes
    room."""
    session = Session(registry, PEER, IDENTITY)
    session.receive(MAGIC + identify(), 0)
    answers = b""
    for number in range(60):
        answers += session.receive(b"REGISTER t%d c\n" % number, 0)
    assert frames(answers) == [b"OK"] * 50 + [FULL] * 10
    assert frames(session.receive(b"PING\nREGISTER t7 c\nREGISTER t7\n", 0)) == [b"OK"] * 3
    assert not session.ended
    assert (registry.names, len(registry.topics())) == (100, 50)
    registry.delete_channel("t7", "c")
    assert frames(session.receive(b"REGISTER t7 d\nREGISTER t8 d\n", 0)) == [b"OK", FULL]
    registry.delete_topic(ALL)
    assert frames(session.receive(b"REGISTER t8 d\n", 0)) == [b"OK"]
    assert MAX_NAMES == 1_000_000


@pytest.mark.usefixtures("few_names")
async def test_operators_are_told_of_too_many_names(registry: Registry) -> None:
    """Creating one more topic or channel is answered by 507 TOO_MANY_NAMES; deleting works."""
    client = lookupd_app(registry, NsqlookupdOptions(), lambda: 0).test_client()
    for number in range(100):
        assert (await client.post(f"/topic/create?topic=t{number}")).status_code == 200
    for path in ("/topic/create?topic=x", "/channel/create?topic=t1&channel=c"):
        response = await client.post(path)
        assert response.status_code == 507
        assert await response.get_data(as_text=True) == '{"message":"TOO_MANY_NAMES"}'
    assert (await client.post("/topic/create?topic=t1")).status_code == 200
    assert (await client.post("/topic/delete?topic=t1")).status_code == 200
    assert (await client.post("/topic/create?topic=x")).status_code == 200


def test_names_are_counted_right(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is registered, unregistered, created and deleted: the count of names is theirs."""
    monkeypatch.setattr(registry_module, "MAX_NAMES", 12)
    random, refused = Random(1), 0
    producers = [producer(number) for number in range(3)]
    for each in producers:
        registry.add_producer(each)
    topics, channels = ["a", "b", "c#ephemeral", "d"], ["x", "y", "z#ephemeral"]
    for _ in range(20_000):
        who, topic, channel = (
            random.choice(producers),
            random.choice(topics),
            random.choice(channels),
        )
        try:
            match random.randrange(9):
                case 0 | 1:
                    registry.register(who, topic, channel)
                case 2:
                    registry.register(who, topic)
                case 3:
                    registry.unregister_channel(who, topic, channel)
                case 4:
                    registry.unregister_topic(who, topic)
                case 5:
                    registry.create_channel(topic, channel)
                case 6:
                    registry.delete_channel(topic, channel)
                case 7 if random.random() < 0.3:
                    registry.delete_topic(random.choice([topic, topic, ALL]))
                case _:
                    registry.sweep(3)
        except RegistryFullError:
            refused += 1
        names = len(registry.topics()) + len(list(registry.channels(ALL)))
        assert registry.names == names <= 12
    assert refused > 10


def test_a_name_takes_little_memory(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """A topic with a channel, registered by one nsqd, takes at most 2 kB: full, with all names
    registered by one connection, nsqlookupd takes 1 GB."""
    caplog.set_level(logging.WARNING, "trionsq")  # pytest keeps what is logged
    session = Session(registry, PEER, IDENTITY)
    session.receive(MAGIC + identify(), 0)
    commands = [b"REGISTER topic_%d channel_%d\n" % (n, n) for n in range(5_000)]
    tracemalloc.start()
    try:
        for command in commands:
            session.receive(command, 0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert registry.names == 10_000
    assert taken / 5_000 < 2_000


@pytest.mark.parametrize(
    ("begin", "most"),
    [
        pytest.param(b"", len(MAGIC), id="no magic"),
        pytest.param(MAGIC, MAX_LINE_BYTES, id="a line without end"),
        pytest.param(
            MAGIC + identify_with(b"x" * MAX_BODY_BYTES)[:-MAX_BODY_BYTES],
            MAX_BODY_BYTES,
            id="an IDENTIFY without end",
        ),
        pytest.param(MAGIC + b"IDENTIFY\n\x7f\xff\xff\xff", 0, id="a body of 2 GiB"),
    ],
)
def test_a_connection_keeps_little_input(begin: bytes, most: int, registry: Registry) -> None:
    """A connection keeps the unfinished magic, line or IDENTIFY, and one read at most; then it is
    refused, and keeps nothing."""
    session = Session(registry, PEER, IDENTITY)
    session.receive(begin, 0)
    for _ in range(2 + MAX_BODY_BYTES // READ_BYTES):
        if session.ended:
            break
        session.receive(b"x" * READ_BYTES, 0)
        assert len(session._buffer) <= most + READ_BYTES
    assert session.ended
    assert len(session._buffer) == 0
