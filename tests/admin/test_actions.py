"""What users do: which calls it makes, in which order, what is told of it, and to whom."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from admin import posting
from admin.dashboard import Dashboard
from admin.notify import Notifier, notification
from admin.options import NsqadminOptions
from admin.user_action import UserAction
from tests.admin.nodes import Asked, FakeNode, ask, fake_node, nsqadmin, producer
from tests.processes import free_address

DONE = UserAction(
    action="pause_topic",
    topic="t",
    time_s=1700000000.9,
    user="",
    remote_ip="127.0.0.1:5",
    user_agent="",
    url="http://h/x",
)


# What the poller asks by itself.
POLLS = ("GET /nodes", "GET /stats format=json include_clients=false", "GET /metrics")


def told(node: FakeNode) -> list[str]:
    """What a node was asked and told, but for polls."""
    return [path for path in node.paths if not path.startswith(POLLS)]


class Small:
    """A cluster of one nsqlookupd and one nsqd that write down what they are told."""

    def __init__(self, lookupd: FakeNode, nsqd: FakeNode, dashboard: Dashboard) -> None:
        self.lookupd = lookupd
        self.nsqd = nsqd
        self.dashboard = dashboard

    async def do(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and message of a request to nsqadmin."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = await ask(self.dashboard, method, path, data)
        return answer.status, json.loads(answer.body)["message"]


@asynccontextmanager
async def small(**options: Any) -> AsyncIterator[Small]:
    """The cluster, and an nsqadmin in front of it."""

    def nsqd_says(asked: Asked) -> tuple[int, bytes]:
        return 200, b'{"version":"1.3.0"}'

    async with fake_node(nsqd_says) as nsqd:

        def lookupd_says(asked: Asked) -> tuple[int, bytes]:
            return 200, json.dumps({"producers": [producer(nsqd.address, "t")]}).encode()

        async with (
            fake_node(lookupd_says) as lookupd,
            nsqadmin(lookupd_http_address=(lookupd.address,), **options) as dashboard,
        ):
            yield Small(lookupd, nsqd, dashboard)


@pytest.mark.parametrize(
    ("method", "path", "body", "to_lookupd", "to_nsqd"),
    [
        ("POST", "/api/topics", {"topic": "t"}, ["POST /topic/create topic=t"], []),
        (
            "POST",
            "/api/topics",
            {"topic": "t", "channel": "c"},
            [
                "POST /topic/create topic=t",
                "POST /channel/create topic=t channel=c",
                "GET /lookup topic=t",
            ],
            ["POST /channel/create topic=t channel=c"],
        ),
        (
            "DELETE",
            "/api/topics/t",
            None,
            ["GET /lookup topic=t", "POST /topic/delete topic=t"],
            ["POST /topic/delete topic=t"],
        ),
        (
            "DELETE",
            "/api/topics/t/c%23ephemeral",
            None,
            ["GET /lookup topic=t", "POST /channel/delete topic=t channel=c#ephemeral"],
            ["POST /channel/delete topic=t channel=c#ephemeral"],
        ),
        (
            "POST",
            "/api/topics/t",
            {"action": "empty"},
            ["GET /lookup topic=t"],
            ["POST /topic/empty topic=t"],
        ),
        (
            "POST",
            "/api/topics/t/c",
            {"action": "unpause"},
            ["GET /lookup topic=t"],
            ["POST /channel/unpause topic=t channel=c"],
        ),
    ],
)
async def test_calls_of_an_action(
    method: str, path: str, body: object, to_lookupd: list[str], to_nsqd: list[str]
) -> None:
    """As the specification lists them, in that order."""
    async with small() as cluster:
        assert await cluster.do(method, path, body) == (200, "")
        assert told(cluster.lookupd) == to_lookupd
        assert told(cluster.nsqd) == to_nsqd


async def test_a_tombstone_hides_the_node_before_it_deletes() -> None:
    """At nsqlookupds first, then the node is asked who it is, then the topic goes there."""
    async with small() as cluster:
        node = cluster.nsqd.address
        assert await cluster.do("DELETE", f"/api/nodes/{node}", {"topic": "t"}) == (200, "")
        assert told(cluster.lookupd) == [f"POST /topic/tombstone topic=t node={node}"]
        assert told(cluster.nsqd) == ["GET /info", "POST /topic/delete topic=t"]
        cluster.nsqd.says = lambda asked: (500, b"no")
        assert (await cluster.do("DELETE", f"/api/nodes/{node}", {"topic": "u"}))[0] == 502
        assert told(cluster.lookupd)[1:] == [f"POST /topic/tombstone topic=u node={node}"]
        assert told(cluster.nsqd)[2:] == ["GET /info"]


async def test_a_call_that_fails_is_a_warning() -> None:
    """The others are made all the same."""
    async with small() as cluster:
        says = cluster.lookupd.says
        cluster.lookupd.says = lambda asked: (500, b"no") if asked.method == "POST" else says(asked)
        status, message = await cluster.do("DELETE", "/api/topics/t")
        assert (status, message) == (200, 'WARNING: got response 500 X "no"')
        assert told(cluster.nsqd) == ["POST /topic/delete topic=t"]


async def test_each_action_is_told_once() -> None:
    """To observers, with warnings; a pause that could not be is told too, with the reason."""
    async with small() as cluster:
        told: list[UserAction] = []
        cluster.dashboard.observers.append(told.append)
        await cluster.do("POST", "/api/topics", {"topic": "t", "channel": "c"})
        await cluster.do("POST", "/api/topics/t", {"action": "pause"})
        cluster.lookupd.says = lambda asked: (500, b"no")
        await cluster.do("POST", "/api/topics/t", {"action": "empty"})
        await cluster.do("DELETE", "/api/topics/t")
        await cluster.do("POST", "/api/topics/t", {"action": "nonsense"})
        assert [done.action for done in told] == [
            "create_topic",
            "create_channel",
            "pause_topic",
            "empty_topic",
        ]
        assert told[3].error.startswith("failed to query any nsqlookupd: ")
        assert [done.error for done in told[:3]] == ["", "", ""]


def test_a_notification_leaves_out_what_there_is_not() -> None:
    """Keys in the original's order; whole seconds."""
    assert list(json.loads(notification(DONE, "me"))) == [
        "action",
        "topic",
        "timestamp",
        "remote_ip",
        "user_agent",
        "url",
        "via",
    ]
    assert json.loads(notification(DONE, "me"))["timestamp"] == 1700000000


async def test_what_waits_at_the_end_is_still_told() -> None:
    """A receiver gets each action that was done just before nsqadmin stopped, in their order; only
    the one that it was being told may come twice."""
    async with fake_node(lambda asked: (200, b"")) as receiver:
        url = f"http://{receiver.address}/hook"
        async with small(notification_http_endpoint=url) as cluster:
            for action in ("pause", "unpause", "empty", "pause", "unpause"):
                await cluster.do("POST", "/api/topics/t", {"action": action})
        actions = [json.loads(asked.body)["action"] for asked in receiver.asked]
        expected = ["pause_topic", "unpause_topic", "empty_topic", "pause_topic", "unpause_topic"]
        once = [action for action, _ in itertools.groupby(actions)]
        assert once == expected
        assert len(actions) <= len(expected) + 1


async def test_a_receiver_that_hangs_holds_nobody_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actions are answered at once, the end comes within seconds, and the log tells of it."""
    monkeypatch.setattr(logging.getLogger("trionsq"), "propagate", True)
    async with fake_node(lambda asked: None) as receiver:
        url = f"http://user:secret@{receiver.address}/hook"
        with trio.fail_after(30):
            async with small(notification_http_endpoint=url) as cluster:
                for _ in range(3):
                    await cluster.do("POST", "/api/topics/t", {"action": "pause"})
    assert "NOTIFY: stopped with unsent notifications" in caplog.text
    assert "secret" not in caplog.text


async def test_a_receiver_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each, and nothing else happens."""
    monkeypatch.setattr(logging.getLogger("trionsq"), "propagate", True)
    url = f"http://user:secret@{free_address()}/?secret"
    notifier = Notifier(NsqadminOptions(notification_http_endpoint=url))
    notifier.queue_notification(DONE)
    with trio.move_on_after(0):
        await notifier.run()
    assert "NOTIFY: POST http://127.0.0.1:" in caplog.text
    assert "secret" not in caplog.text


async def test_what_waits_to_be_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much is dropped and counted."""
    monkeypatch.setattr(posting, "MAX_QUEUE", 2)
    notifier = Notifier(NsqadminOptions(notification_http_endpoint="http://x/"))
    for _ in range(5):
        notifier.queue_notification(DONE)
    assert notifier.dropped == 3
