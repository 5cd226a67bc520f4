"""/policy, and what policies do in a broker (trionsq.http.policies, trionsq.broker.policies)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio

from trionsq.broker import policies
from trionsq.broker.broker import Broker
from trionsq.http.app import create_app
from trionsq.logtext import first_error
from trionsq.storage.metadata import MetadataError
from trionsq.storage.policies import POLICIES_FILE, load_policies
from trionsq.testing.broker import open_broker
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire.bodies import ListBodies

BOUND = {"topics": "orders*", "max_messages": 10, "when_full": "refuse"}


async def ask(app: QuartTrio, method: str, target: str, document: Any = None) -> tuple[int, Any]:
    """Status and document, or the code of a refusal."""
    send: Any = app.test_client().open
    data = None if document is None else json.dumps(document)
    response = await send(target, method=method, data=data)
    body: bytes = await response.get_data()
    if response.status_code != 200:
        return response.status_code, json.loads(body)["message"]
    is_json = response.headers["content-type"].startswith("application/json")
    return 200, json.loads(body) if is_json and body else body.decode()


async def test_a_policy_is_made_shown_and_deleted(broker: Broker) -> None:
    """PUT makes or replaces a policy, GET shows it, DELETE ends it."""
    app = create_app(broker)
    row = {"name": "p", "source": "http", "channels": "*", "priority": 0, **BOUND}
    assert await ask(app, "PUT", "/policy/p", BOUND) == (200, row)
    assert await ask(app, "GET", "/policy/p") == (200, row)
    assert await ask(app, "GET", "/policy") == (200, {"policies": [row], "file_error": ""})
    _, row = await ask(app, "PUT", "/policy/p", {"max_bytes": 5})
    assert row == {
        "name": "p", "source": "http", "topics": "*", "channels": "*", "priority": 0, "max_bytes": 5
    }  # fmt: skip
    assert await ask(app, "DELETE", "/policy/p") == (200, "")
    assert await ask(app, "GET", "/policy") == (200, {"policies": [], "file_error": ""})


@pytest.mark.parametrize(
    ("method", "target", "document", "refusal"),
    [
        ("GET", "/policy/x", None, (404, "POLICY_NOT_FOUND")),
        ("DELETE", "/policy/x", None, (404, "POLICY_NOT_FOUND")),
        ("PUT", "/policy/x", {"y": 1}, (400, "INVALID_POLICY: policy x: y is unknown")),
        ("PUT", "/policy/x", None, (400, "INVALID_POLICY: the body is not JSON")),
        ("PUT", "/policy/x", [], (400, "INVALID_POLICY: policy x: it is no table of settings")),
        ("PUT", "/policy/x", {"topics": "a" * 70_000}, (413, "BODY_TOO_BIG")),
        ("GET", "/channel/settings?topic=t&channel=c", None, (404, "TOPIC_NOT_FOUND")),
    ],
)
async def test_refusals(
    broker: Broker, method: str, target: str, document: Any, refusal: tuple[int, str]
) -> None:
    """Each refusal says what is wrong, and nothing has changed."""
    app = create_app(broker)
    assert await ask(app, method, target, document) == refusal
    assert await ask(app, "GET", "/policy") == (200, {"policies": [], "file_error": ""})


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_what_is_full_is_named(storage: str) -> None:
    """A publish to what is full is refused with 429, and the name of the topic or channel."""
    async with nsqd_in_memory(storage=storage) as broker:
        app = create_app(broker)
        assert (await ask(app, "PUT", "/policy/p", BOUND))[0] == 200
        for _ in range(10):
            assert await ask(app, "POST", "/pub?topic=orders", "x") == (200, "OK")
        full = (429, "PUB_FAILED: topic orders is full: max_messages")
        assert await ask(app, "POST", "/pub?topic=orders", "x") == full
        assert await ask(app, "POST", "/pub?topic=other", "x") == (200, "OK")
        broker.topics["orders"].channel("c")
        await trio.testing.wait_all_tasks_blocked()
        full = (429, "PUB_FAILED: channel orders:c is full: max_messages")
        assert await ask(app, "POST", "/pub?topic=orders", "x") == full
        assert (await ask(app, "DELETE", "/policy/p"))[0] == 200
        assert await ask(app, "POST", "/pub?topic=orders", "x") == (200, "OK")


async def test_settings_name_their_policy(broker: Broker) -> None:
    """What applies to a topic or channel shows with the policy that it is from."""
    app = create_app(broker)
    broker.topic("orders").channel("billing")
    await ask(app, "PUT", "/policy/a", {"max_messages": 5, "message_ttl": "1h"})
    await ask(app, "PUT", "/policy/b", {"channels": "bill*", "priority": 1, "max_messages": 7})
    _, found = await ask(app, "GET", "/topic/settings?topic=orders")
    ttl = {"value": "1h0m0s", "policy": "a"}
    assert found["settings"] == {"max_messages": {"value": 5, "policy": "a"}, "message_ttl": ttl}
    _, found = await ask(app, "GET", "/channel/settings?topic=orders&channel=billing")
    settings = {"max_messages": {"value": 7, "policy": "b"}, "message_ttl": ttl}
    assert found == {"topic": "orders", "channel": "billing", "settings": settings}


async def test_new_topics_and_channels_have_policies(broker: Broker) -> None:
    """A policy is of topics and channels that are made after it, too."""
    app = create_app(broker)
    await ask(app, "PUT", "/policy/p", {"channels": "c", "max_messages": 3, "when_full": "refuse"})
    topic = broker.topic("t")
    topic.channel("c")
    assert topic.core.settings is None
    for _ in range(3):
        topic.publish(ListBodies([b"x"]))
    assert (await ask(app, "POST", "/pub?topic=t", "x"))[0] == 429
    topic.delete_channel("c")
    assert (await ask(app, "POST", "/pub?topic=t", "x"))[0] == 200


async def test_policies_outlive_a_restart() -> None:
    """Policies that were answered are there after a crash, and count from the first message on."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk) as broker:
        app = create_app(broker)
        await ask(app, "PUT", "/policy/p", BOUND)
        await ask(app, "PUT", "/policy/gone", {"max_bytes": 1})
        await ask(app, "DELETE", "/policy/gone")
        broker.topic("orders").channel("c")
        await broker.save_metadata()
        [policy] = load_policies(disk)
        assert (policy.name, policy.values) == ("p", {"max_messages": 10, "when_full": "refuse"})
    async with nsqd_in_memory(disk=disk) as broker:
        assert list(broker.policies.applied.policies) == ["p"]
        assert broker.topics["orders"].channels["c"].core.governor is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"format":2}', b'{"format":1}', b'{"format":1,"policies":{"a":{"b":1}}}'],
)
async def test_damaged_policies_stop_the_start(content: bytes) -> None:
    """An nsqd whose policies cannot be read does not start without them."""
    disk = SimulatedDisk()
    file = disk.create(POLICIES_FILE)
    file.write(content, 0)
    file.close()
    with pytest.raises(MetadataError, match="failed to load policies"):
        load_policies(disk)


async def test_the_policy_file_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of the file takes the place of a stored one, and HTTP does not change it."""
    monkeypatch.setattr(policies, "_LOOK_S", 0.01)
    path = tmp_path / "policies.toml"
    path.write_text("[p]\nmax_messages = 5\n")
    async with open_broker(tmp_path, policy_file=str(path)) as opened:
        app = create_app(opened.broker)
        assert (await ask(app, "PUT", "/policy/p", {})) == (409, "POLICY_IS_OF_THE_FILE")
        assert (await ask(app, "DELETE", "/policy/p")) == (409, "POLICY_IS_OF_THE_FILE")
        assert (await ask(app, "PUT", "/policy/q", {"max_bytes": 5}))[0] == 200
        path.write_text("[q]\nmax_messages = 6\n")
        await until(lambda: "p" not in opened.broker.policies.applied.policies)
        _, row = await ask(app, "GET", "/policy/q")
        assert (row["source"], row["max_messages"]) == ("file", 6)
        path.write_text("[q]\nmax_mesages = 6\n")
        await until(lambda: opened.broker.policies.file_error != "")
        assert "policy q: max_mesages is unknown" in opened.broker.policies.file_error
        assert list(opened.broker.policies.applied.policies) == ["q"]
        path.unlink()
        await until(lambda: "o such file" in opened.broker.policies.file_error)
        path.write_text("")
        await until(lambda: opened.broker.policies.file_error == "")
        _, row = await ask(app, "GET", "/policy/q")
        assert (row["source"], row["max_bytes"]) == ("http", 5)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - a thread reads the file
        await trio.sleep(0.01)


async def test_a_wrong_policy_file_stops_the_start(tmp_path: Path) -> None:
    """An nsqd with a policy file that is not there, or wrong, does not start."""
    path = tmp_path / "policies.toml"
    for content in (None, b"[p]\nx = 1\n", b"\xff"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ExceptionGroup) as raised:
            async with open_broker(tmp_path, policy_file=str(path)):
                pass
        assert str(first_error(raised.value)).startswith("failed to load policies - ")


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_old_messages_go_by_themselves(storage: str, autojump_clock: Any) -> None:
    """Expired messages of topics and channels are dropped and counted though nobody reads."""
    async with nsqd_in_memory(storage=storage, mem_queue_size=2) as broker:
        app = create_app(broker)
        await ask(app, "PUT", "/policy/p", {"message_ttl": "10s"})
        alone, read = broker.topic("alone"), broker.topic("read")
        channel = read.channel("c")
        for _ in range(10):
            alone.publish(ListBodies([b"x"]))
            read.publish(ListBodies([b"x"]))
            await trio.sleep(1.0)
        await trio.sleep(5.5)
        assert (alone.core.depth, channel.core.depth) == (4, 4)
        await trio.sleep(10.0)
        assert (alone.core.depth, channel.core.depth) == (0, 0)
        assert alone.core.dropped == {"expired": 10}
        assert channel.core.dropped == {"expired": 10}
        assert not broker.checks.broken
