"""A new topic begins with the channels that it has elsewhere. Spec: nsqd-internals, section 1."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.lookupds import HTTP_PORT, Lookupd, cluster
from tests.broker.support import check_nobody_left, connect, publish
from tests.steps import counted_steps
from trionsq.broker.broker import Broker
from trionsq.durations import SECOND_NS
from trionsq.testing.conversation import Conversation
from trionsq.wire import commands
from trionsq.wire.names import is_valid_name

COMMANDS = {
    "PUB": commands.publish("t", b"x"),
    "MPUB": commands.publish_many("t", [b"x", b"y"]),
    "DPUB": commands.publish_deferred("t", 100, b"x"),
    "SUB": commands.subscribe("t", "mine"),
}
CONNECT_S, REQUEST_S = 2.0, 5.0


def http(body: object, status: int = 200) -> bytes:
    """An answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)


def channels_of(broker: Broker, topic: str = "t") -> set[str]:
    """Their names."""
    return set(broker.topics[topic].channels)


async def make(broker: Broker, topic: str = "t") -> float:
    """Publish to a new topic; how many seconds that took."""
    start_s = trio.current_time()
    talk = Conversation.begin(broker)
    await talk.say(commands.publish(topic, b"x"))
    await talk.response()
    took_s = trio.current_time() - start_s
    talk.close()
    return took_s


def asked(lookupd: Lookupd) -> list[str]:
    """The requests that came."""
    return [line for line in lookupd.seen if line.startswith("HTTP")]


async def test_the_first_message_reaches_the_channels_of_other_nsqds(
    autojump_clock: MockClock,
) -> None:
    """The union of what all say, without ephemeral ones; they are announced like any."""
    async with cluster("a", "b") as (broker, [a, b]):
        a.channels = ["c", "d", "gone#ephemeral"]
        b.channels = ["d", "e"]
        assert await make(broker) == 0
        assert channels_of(broker) == {"c", "d", "e"}
        await wait_all_tasks_blocked()
        assert {channel.core.depth for channel in broker.topics["t"].channels.values()} == {1}
        for lookupd in (a, b):
            assert asked(lookupd) == ["HTTP GET /channels?topic=t HTTP/1.1"]
            assert {"REGISTER t", "REGISTER t c", "REGISTER t d", "REGISTER t e"} <= set(
                lookupd.seen
            )


async def test_a_name_is_escaped_in_the_request(autojump_clock: MockClock) -> None:
    """The sign of an ephemeral topic would end the query."""
    async with cluster("a") as (broker, [a]):
        await make(broker, "t#ephemeral")
        assert asked(a) == ["HTTP GET /channels?topic=t%23ephemeral HTTP/1.1"]


@pytest.mark.parametrize("command", COMMANDS)
async def test_the_creating_command_waits_and_no_other(
    autojump_clock: MockClock, command: str
) -> None:
    """Others publish and subscribe to the new topic at once; nothing moves on before it is made."""
    async with cluster("a") as (broker, [a]):
        a.stalls.add("HTTP")
        start_s = trio.current_time()
        creator, other = Conversation.begin(broker), Conversation.begin(broker)
        await creator.say(COMMANDS[command], commands.publish("u", b"behind it"))
        await wait_all_tasks_blocked()
        await other.say(COMMANDS["PUB"])
        await other.response()
        await other.subscribe("t", "other", ready=10)
        assert trio.current_time() == start_s
        assert "u" not in broker.topics
        await creator.response()
        assert trio.current_time() - start_s == pytest.approx(REQUEST_S)
        await other.messages({"PUB": 2, "MPUB": 3, "DPUB": 2, "SUB": 1}[command])
        await creator.response()
        assert broker.topics["u"].core.message_count == 1


async def test_mpub_waits_at_its_head(autojump_clock: MockClock) -> None:
    """The topic is made before the messages have come; then they come in any pieces."""
    async with cluster("a") as (broker, [a]):
        a.channels = ["c"]
        talk = Conversation.begin(broker)
        data = commands.publish_many("t", [b"x" * 100, b"y" * 100])
        for first in range(0, len(data), 30):
            await talk.say(data[first : first + 30])
            await wait_all_tasks_blocked()
            assert channels_of(broker) == {"c"}
        await talk.response()
        assert broker.topics["t"].core.message_count == 2


async def test_without_a_lookupd_that_is_known_nothing_waits(autojump_clock: MockClock) -> None:
    """None configured, or none that has ever identified itself: creation stays as it is."""
    async with cluster() as (broker, _):
        assert broker.topic("t").claim_wait() is None
    async with cluster("a") as (broker, [a]):
        broker.live_options.change_lookupds(())
        await wait_all_tasks_blocked()
        a.stalls.add("IDENTIFY")
        broker.live_options.change_lookupds(("a:4160",))
        await trio.sleep(5)
        assert broker.topic("t").claim_wait() is None
        assert await make(broker, "u") == 0
        assert a.dialed[HTTP_PORT] == 0


async def test_an_existing_topic_asks_nobody(autojump_clock: MockClock) -> None:
    """It costs what it cost before."""
    async with cluster("a", topics=["t"]) as (broker, [a]):
        assert await make(broker) == 0
        assert not asked(a)


async def test_a_lookupd_that_was_lost_is_asked_still(autojump_clock: MockClock) -> None:
    """It may be the connection only; if not, that is an error like any other."""
    async with cluster("a") as (broker, [a]):
        a.channels = ["c"]
        a.drop()
        await make(broker)
        assert channels_of(broker) == {"c"}
        a.go_down()
        assert await make(broker, "u") == 0
        assert channels_of(broker, "u") == set()


@pytest.mark.parametrize(("stall", "wait_s"), [("connect HTTP", CONNECT_S), ("HTTP", REQUEST_S)])
async def test_a_lookupd_that_hangs_bounds_the_wait(
    autojump_clock: MockClock, stall: str, wait_s: float
) -> None:
    """It costs the creator one time-out; the channels of the others are made."""
    async with cluster("a", "b", "c") as (broker, [a, b, c]):
        a.channels, c.channels = ["x"], ["y"]
        b.stalls.add(stall)
        assert await make(broker) == pytest.approx(wait_s)
        assert b.faults[stall] == 1
        assert channels_of(broker) == {"x", "y"}


async def test_the_time_outs_are_options(autojump_clock: MockClock) -> None:
    """--http-client-connect-timeout and --http-client-request-timeout."""
    options: dict[str, Any] = {
        "http_client_connect_timeout_ns": 3 * SECOND_NS,
        "http_client_request_timeout_ns": 7 * SECOND_NS,
    }
    async with cluster("a", **options) as (broker, [a]):
        a.stalls.add("connect HTTP")
        assert await make(broker) == pytest.approx(3)
        a.stalls = {"HTTP"}
        assert await make(broker, "u") == pytest.approx(7)


@pytest.mark.parametrize(
    "answer",
    [
        http({"channels": ["c"]}, status=500),
        http({"channels": ["c"]}, status=302),
        http({"message": "TOPIC_NOT_FOUND"}),
        http({"channels": "c"}),
        http({"channels": None}),
        http(["c"]),
        http(b"{"),
        http(b"[" * 900),
        http(b"\xff"),
        http({"channels": ["good", "\ud800"]}),
        http({"channels": ["c" * 1000]}),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        b"\x00\x00\x00\x02OK",
        b"",
    ],
    ids=lambda answer: repr(answer[:60]),
)
async def test_a_bad_answer_is_only_logged(
    autojump_clock: MockClock, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What another lookupd says still counts."""
    async with cluster("a", "b", max_body_size=1000) as (broker, [a, b]):
        a.answers["HTTP"] = answer
        b.channels = ["d"]
        assert await make(broker) == 0
        assert a.faults["HTTP"] == 1
        assert channels_of(broker) == {"d"}
        assert [line for line in caplog.messages if "channels from a:4161" in line]


async def test_a_defect_of_ours_costs_the_channels_only(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is made, and the broker lives on."""

    async def fail(*_: object) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr("trionsq.broker.lookup.ask_for_channels", fail)
    async with cluster("a") as (broker, _):
        assert await make(broker) == 0
        assert broker.defects.counts["lookup"] == 1
        assert channels_of(broker) == set()


async def test_bad_names_are_left_out(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each by itself."""
    async with cluster("a") as (broker, [a]):
        a.answers["HTTP"] = http({"channels": ["good", "b d", 7, None, "", 1.5, True, "x" * 65]})
        await make(broker)
        assert channels_of(broker) == {"good"}
        assert len([line for line in caplog.messages if "ignoring" in line]) == 7


@pytest.mark.parametrize(
    "answer",
    [
        http({"channels": [f"c{number}" for number in range(10_001)]}),
        http({"channels": ["c"], "padding": "x" * (1 << 20)}),
        http(b'{"channels":[' + b"[]," * 300_000 + b"[]]}"),
    ],
    ids=["channels", "bytes", "nested"],
)
async def test_an_answer_is_bounded(
    autojump_clock: MockClock, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An nsqlookupd that lies makes no more channels than any topic has, and holds nobody up."""
    async with cluster("a") as (broker, [a]):
        a.answers["HTTP"] = answer
        await make(broker)
        assert channels_of(broker) == set()
        assert [line for line in caplog.messages if "channels from a:4161" in line]


@pytest.mark.parametrize("count", [10, 2000])
async def test_channels_are_made_in_turns(
    autojump_clock: MockClock, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has a task, and each bad name would be a line of the log."""
    async with cluster("a") as (broker, [a]):
        names = [f"c{number}" for number in range(count)]
        a.answers["HTTP"] = http({"channels": [*names, *[""] * count]})
        broker.topic("t")
        with counted_steps(lambda: len(broker.topics["t"].channels)) as steps:
            await wait_all_tasks_blocked()
        assert channels_of(broker) == set(names)
        assert 0 < steps.most <= 16
        assert len([line for line in caplog.messages if "ignoring" in line]) <= 11


async def test_names_that_make_no_channel_are_read_in_turns(autojump_clock: MockClock) -> None:
    """A long answer leaves turns to other tasks, whatever its names are."""
    async with cluster("a") as (broker, [a]):
        a.answers["HTTP"] = http({"channels": [f"c{n}#ephemeral" for n in range(10_000)]})
        seen: Counter[str] = Counter()

        def counted(name: bytes) -> bool:
            seen["names"] += 1
            return is_valid_name(name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trionsq.broker.lookup.is_valid_name", counted)
            with counted_steps(lambda: seen["names"]) as steps:
                await make(broker)
        assert seen["names"] >= 10_000
        assert steps.most <= 2_000


# What may happen during the wait


@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB", "SUB"])
async def test_a_topic_that_is_deleted_meanwhile(autojump_clock: MockClock, command: str) -> None:
    """The creator is refused at once, nobody is asked any more, and the name is free again."""
    async with cluster("a") as (broker, [a]):
        a.stalls.add("HTTP")
        start_s = trio.current_time()
        talk = Conversation.begin(broker)
        await talk.say(COMMANDS[command])
        await wait_all_tasks_blocked()
        broker.delete_topic("t")
        assert await talk.error() == f"E_{command}_FAILED {command} failed exiting"
        assert trio.current_time() == start_s
        assert not broker.topics
        a.stalls.clear()
        a.channels = ["c"]
        await make(broker)
        assert channels_of(broker) == {"c"}


async def test_a_creator_that_goes_takes_nothing_along(autojump_clock: MockClock) -> None:
    """The topic is made for the others."""
    async with cluster("a", "b") as (broker, [a, b]):
        a.stalls.add("HTTP")
        b.channels = ["c"]
        talk, client, _ = connect(broker)
        await talk.say(COMMANDS["PUB"])
        await wait_all_tasks_blocked()
        publish(broker, "t", b"other")
        client.close()
        await trio.sleep(REQUEST_S + 1)
        check_nobody_left(broker)
        assert channels_of(broker) == {"c"}
        assert broker.topics["t"].channels["c"].core.depth == 1


async def test_waiting_is_no_silence(autojump_clock: MockClock) -> None:
    """A client with short heartbeats is not taken for dead while its command waits."""
    async with cluster("a") as (broker, [a]):
        a.stalls.add("HTTP")
        talk = Conversation.begin(broker)
        await talk.say(commands.identify({"heartbeat_interval": 1000}))
        await talk.frame()
        await talk.say(COMMANDS["PUB"])
        await talk.response()
        assert talk.heartbeats >= 3
        assert a.faults["HTTP"] == 1


async def test_publishers_do_not_spin_while_a_topic_is_made(autojump_clock: MockClock) -> None:
    """Memory is full, and a channel is there, but nothing moves: the disk takes the rest."""
    async with cluster("a", mem_queue_size=2) as (broker, [a]):
        a.stalls.add("HTTP")
        topic = broker.topic("t")
        topic.channel("c")
        publish(broker, "t", b"1", b"2")
        assert not topic.should_wait(1)
        publish(broker, "t", b"3")
        assert topic.core.store.backend.depth == 1
        await trio.sleep(REQUEST_S + 1)
        assert topic.channels["c"].core.depth == 3


async def test_a_stop_does_not_wait_for_lookupds(autojump_clock: MockClock) -> None:
    """What was published to the unfinished topic is saved."""
    async with cluster("a") as (broker, [a]):
        a.stalls.add("HTTP")
        talk = Conversation.begin(broker)
        await talk.say(COMMANDS["PUB"])
        await wait_all_tasks_blocked()
        publish(broker, "t", b"other")
        start_s = trio.current_time()
    assert trio.current_time() == start_s
    assert a.faults["HTTP"] == 1
    assert not broker.unsaved
    assert broker.topics["t"].core.store.backend.depth == 1
