"""nsqd keeps its nsqlookupds informed. Spec: nsqd-internals, section 9."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.lookupds import TCP_PORT, Lookupd, cluster, sized
from tests.steps import counted_steps
from trionsq.broker.broker import Broker
from trionsq.broker.lookup_peer import LookupPeer, Registration

PING_S = 15.0


def peer_of(broker: Broker) -> LookupPeer:
    """The only one."""
    [peer] = broker.lookups.peers.values()
    return peer


async def seen_after(lookupd: Lookupd, seconds: float = 0.0) -> list[str]:
    """What came meanwhile, and until all is quiet."""
    await trio.sleep(seconds)
    await wait_all_tasks_blocked()
    return lookupd.take_seen()


async def test_nsqd_identifies_itself(autojump_clock: MockClock) -> None:
    """With its broadcast address and ports, which are those it listens on unless given."""
    async with cluster("a", broadcast_address="me") as (_, [lookupd]):
        assert lookupd.identity == {
            "broadcast_address": "me",
            "hostname": socket.gethostname(),
            "http_port": 4151,
            "tcp_port": 4150,
            "version": "1.3.0",
        }
    async with cluster("a", broadcast_tcp_port=1, broadcast_http_port=2) as (_, [lookupd]):
        assert (lookupd.identity["tcp_port"], lookupd.identity["http_port"]) == (1, 2)


async def test_a_connection_begins_with_all_there_is(autojump_clock: MockClock) -> None:
    """Each channel, and each topic without one, ephemeral ones included."""
    async with cluster("a", topics=["t", "u", "e#ephemeral"]) as (broker, [lookupd]):
        assert lookupd.take_seen()[2:] == ["REGISTER t", "REGISTER u", "REGISTER e#ephemeral"]
        for channel in ("c", "d", "f#ephemeral"):
            broker.topic("t").channel(channel)
        await seen_after(lookupd)
        lookupd.drop()
        assert await seen_after(lookupd, 2 * PING_S) == [
            "(eof)",
            "(magic)",
            "IDENTIFY",
            "REGISTER t c",
            "REGISTER t d",
            "REGISTER t f#ephemeral",
            "REGISTER u",
            "REGISTER e#ephemeral",
            "PING",
        ]


async def test_changes_are_announced_to_all_in_order(autojump_clock: MockClock) -> None:
    """Once for each; what is there already is not announced again."""
    async with cluster("a", "b") as (broker, lookupds):
        for lookupd in lookupds:
            assert lookupd.take_seen() == ["(magic)", "IDENTIFY"]
            lookupd.stalls.add("connect HTTP")
        topic = broker.topic("t")
        topic.channel("c")
        topic.channel("c")
        broker.topic("u")
        broker.topic("t")
        topic.channel("d#ephemeral")
        topic.delete_channel("c")
        for lookupd in lookupds:
            assert await seen_after(lookupd) == [
                "REGISTER t",
                "REGISTER u",
                "REGISTER t d#ephemeral",
            ]
        broker.delete_topic("t")
        for lookupd in lookupds:
            assert sorted(await seen_after(lookupd)) == [
                "UNREGISTER t",
                "UNREGISTER t d#ephemeral",
            ]


async def test_what_was_registered_through_its_channel_is_unregistered(
    autojump_clock: MockClock,
) -> None:
    """A topic that was never registered by itself goes too."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        broker.topic("t").channel("c")
        lookupd.drop()
        await seen_after(lookupd, 2 * PING_S)
        broker.delete_topic("t")
        assert sorted(await seen_after(lookupd)) == ["UNREGISTER t", "UNREGISTER t c"]


async def test_a_topic_that_is_made_again_at_once_is_registered_anew(
    autojump_clock: MockClock,
) -> None:
    """Both are said, the old one's end first: that forgets a tombstone and old channels."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        broker.topic("t").channel("c")
        broker.topic("t").channel("d")
        await seen_after(lookupd)
        broker.delete_topic("t")
        broker.topic("t").channel("c")
        said = await seen_after(lookupd)
        for earlier, later in (
            ("UNREGISTER t", "REGISTER t"),
            ("UNREGISTER t", "REGISTER t c"),
            ("UNREGISTER t c", "REGISTER t c"),
        ):
            assert said.index(earlier) < said.index(later)
        assert "REGISTER t d" not in said


async def test_a_stop_unregisters_nothing(autojump_clock: MockClock) -> None:
    """The end of the connection says it all, also where the stop deletes an ephemeral channel."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        broker.topic("t").channel("c")
        await seen_after(lookupd)
        broker.stop()
        broker.topics["t"].delete_channel("c")
        assert await seen_after(lookupd) == ["(eof)"]
    assert broker.lookups.peers == {}, "what comes later is kept for nobody"


async def test_addresses_are_used_once(autojump_clock: MockClock) -> None:
    """However often one is listed, and null is the same as none."""
    async with cluster("a") as (broker, [lookupd]):
        broker.live_options.change_lookupds(("a:4160", "a:4160"))
        assert lookupd.dialed[TCP_PORT] == 1
        assert len(broker.lookups.peers) == 1
        broker.live_options.change_lookupds(None)
        assert await seen_after(lookupd) == ["(magic)", "IDENTIFY", "(eof)"]


async def test_the_list_may_change_while_nsqd_runs(autojump_clock: MockClock) -> None:
    """Those no longer listed are closed, new ones connected, the others left alone."""
    async with cluster("a", "b", "c", topics=["t"]) as (broker, [a, b, c]):
        for lookupd in (a, b, c):
            lookupd.take_seen()
        broker.live_options.change_lookupds(("b:4160",))
        assert [await seen_after(lookupd) for lookupd in (a, b, c)] == [["(eof)"], [], ["(eof)"]]
        assert (a.open_connections, b.open_connections) == (0, 1)
        broker.live_options.change_lookupds(("b:4160", "a:4160"))
        assert await seen_after(a) == ["(magic)", "IDENTIFY", "REGISTER t"]
        assert await seen_after(b) == []
        # A change of something else is none of theirs.
        broker.live_options.change_log_level("info")
        assert await seen_after(a) == []


async def test_ping_every_15_seconds(autojump_clock: MockClock) -> None:
    """Whatever else is said meanwhile."""
    async with cluster("a") as (broker, [lookupd]):
        start_s = trio.current_time()
        await trio.sleep(20)
        broker.topic("t")
        await trio.sleep(30)
        pings = [
            at_s - start_s
            for line, at_s in zip(lookupd.seen, lookupd.seen_s, strict=True)
            if line == "PING"
        ]
        assert pings == pytest.approx([15, 30, 45])


async def test_a_lost_connection_is_made_again_by_the_command_after_the_next(
    autojump_clock: MockClock,
) -> None:
    """The first command finds it lost and is not repeated; the second one is said twice."""
    async with cluster("a") as (broker, [lookupd]):
        lookupd.stalls.add("connect HTTP")
        await trio.sleep(2)
        lookupd.drop()
        broker.topic("d")
        await seen_after(lookupd)
        broker.topic("f")
        assert await seen_after(lookupd) == [
            "(magic)",
            "IDENTIFY",
            "REGISTER d",
            "REGISTER f",
            "REGISTER f",
        ]


async def test_a_lookupd_that_comes_back_is_found_by_a_ping(autojump_clock: MockClock) -> None:
    """At most two intervals after it, and its name is looked up anew each time."""
    async with cluster("a", topics=["t"]) as (_, [lookupd]):
        lookupd.go_down()
        await trio.sleep(4 * PING_S + 1)
        attempts = lookupd.dialed[TCP_PORT]
        assert attempts == 4
        lookupd.is_up = True
        lookupd.take_seen()
        assert await seen_after(lookupd, PING_S) == ["(magic)", "IDENTIFY", "REGISTER t", "PING"]


@pytest.mark.parametrize("step", ["connect", "IDENTIFY", "REGISTER", "PING"])
async def test_a_stall_ends_after_a_second(autojump_clock: MockClock, step: str) -> None:
    """At any step; others are informed meanwhile, and it is tried again later."""
    async with cluster("a", "b", topics=["s"]) as (broker, [stalled, other]):
        broker.live_options.change_lookupds(("b:4160",))
        await seen_after(stalled)
        other.take_seen()
        stalled.stalls |= {step, "connect HTTP"}
        other.stalls.add("connect HTTP")
        broker.live_options.change_lookupds(("a:4160", "b:4160"))
        await trio.sleep(1.5)
        if step == "PING":
            await trio.sleep(PING_S)
            other.take_seen()
        assert stalled.faults[step] >= 1
        assert stalled.open_connections == 0
        broker.topic("t")
        assert await seen_after(other) == ["REGISTER t"]
        stalled.stalls.remove(step)
        await trio.sleep(2 * PING_S)
        assert stalled.open_connections == 1
        told = broker.lookups.peers["a:4160"]._registered
        assert told == {Registration("s"), Registration("t")}


async def test_a_reader_that_is_slow_ends_after_a_second(autojump_clock: MockClock) -> None:
    """A lookupd that takes no more bytes does not hold the task for ever."""
    async with cluster("a", topics=["s"]) as (broker, [lookupd]):
        [transport] = lookupd.transports
        transport.incoming.stall()
        transport.incoming.capacity_bytes = 3
        broker.topic("t")
        await trio.sleep(0.5)
        assert len(transport.incoming) == 3
        assert lookupd.open_connections == 1
        await trio.sleep(1)
        assert lookupd.open_connections == 0
        assert not peer_of(broker)._is_identified


@pytest.mark.parametrize(
    "lie",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        sized(b"E_INVALID"),
        sized(b"E_BAD_BODY IDENTIFY missing fields"),
        sized(b""),
        sized(b"{"),
        sized(b"[]"),
        sized(b"[" * 990),
        sized(b"\xff"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        sized(b"x" * 1001),
    ],
    ids=lambda lie: repr(lie[:12]),
)
async def test_a_lie_after_identify_ends_the_connection(
    autojump_clock: MockClock, lie: bytes
) -> None:
    """It registers nothing there, asks it for nothing, and tries again at the next PING."""
    async with cluster("a", topics=["s"], max_body_size=1000) as (broker, [lookupd]):
        broker.live_options.change_lookupds(())
        await seen_after(lookupd)
        lookupd.answers["IDENTIFY"] = lie
        broker.live_options.change_lookupds(("a:4160",))
        assert (await seen_after(lookupd, 1.5))[:2] == ["(magic)", "IDENTIFY"]
        assert lookupd.faults["IDENTIFY"] == 1
        assert lookupd.open_connections == 0
        assert broker.lookups.known == []
        lookupd.answers.clear()
        lookupd.take_seen()
        assert "REGISTER s" in await seen_after(lookupd, PING_S)
        assert len(broker.lookups.known) == 1


@pytest.mark.parametrize(
    "info",
    [
        b"{}",
        b'{"broadcast_address":"","http_port":4161}',
        b'{"broadcast_address":"a/b","http_port":4161}',
        b'{"broadcast_address":"a\\r\\nX: y","http_port":4161}',
        b'{"broadcast_address":7,"http_port":4161}',
        b'{"broadcast_address":"a"}',
        b'{"broadcast_address":"a","http_port":true}',
        b'{"broadcast_address":"a","http_port":0}',
        b'{"broadcast_address":"a","http_port":99999}',
    ],
)
async def test_a_lookupd_without_an_address_is_informed_but_not_asked(
    autojump_clock: MockClock, info: bytes
) -> None:
    """Nor is one whose address could not stand in a URL."""
    async with cluster("a") as (broker, [lookupd]):
        broker.live_options.change_lookupds(())
        await seen_after(lookupd)
        lookupd.answers["IDENTIFY"] = sized(info)
        broker.live_options.change_lookupds(("a:4160",))
        await seen_after(lookupd)
        topic = broker.topic("t")
        assert topic.claim_wait() is None
        assert lookupd.faults["IDENTIFY"] == 1
        assert await seen_after(lookupd) == ["REGISTER t"]


async def test_other_answers_are_read_and_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal costs nothing but a line; its text can't look like other lines."""
    async with cluster("a") as (broker, [lookupd]):
        lookupd.stalls.add("connect HTTP")
        lookupd.answers["REGISTER"] = sized(b"E_BAD_TOPIC\n" + b"x" * 1000)
        broker.topic("t")
        await seen_after(lookupd)
        assert lookupd.faults["REGISTER"] == 1
        [line] = [line for line in caplog.messages if "answered" in line]
        assert line.startswith(r"LOOKUPD(a:4160): answered E_BAD_TOPIC\nxxx")
        assert len(line) < 250
        broker.topic("u")
        assert await seen_after(lookupd) == ["REGISTER u"]


@pytest.mark.parametrize("command", ["IDENTIFY", "REGISTER", "UNREGISTER", "PING"])
async def test_a_lookupd_that_dies_in_a_command(autojump_clock: MockClock, command: str) -> None:
    """Once it is back it hears of everything."""
    async with cluster("a", topics=["s"]) as (broker, [lookupd]):
        lookupd.stalls.add("connect HTTP")
        lookupd.deadly.add(command)
        if command == "IDENTIFY":
            lookupd.drop()
        broker.topic("t")
        broker.delete_topic("s")
        await trio.sleep(3 * PING_S)
        assert lookupd.faults[command] >= 1
        lookupd.deadly.clear()
        await seen_after(lookupd, 2 * PING_S)
        lookupd.drop()
        assert "REGISTER t" in await seen_after(lookupd, 2 * PING_S)
        assert peer_of(broker)._registered == {Registration("t")}


@pytest.mark.parametrize("address", ["a", "a:b", "a:0", "a:99999", "unknown:4160", "", "/a/b"])
async def test_an_address_that_leads_nowhere(autojump_clock: MockClock, address: str) -> None:
    """It is tried at each PING, and harms nobody."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        broker.live_options.change_lookupds((address, "a:4160"))
        await trio.sleep(3 * PING_S)
        assert lookupd.take_seen()[:3] == ["(magic)", "IDENTIFY", "REGISTER t"]
        assert broker.defects.counts["lookup"] == 0


async def test_log_lines_show_an_address_tamely(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """/config takes any string; in the log it stays on its line."""
    async with cluster() as (broker, _):
        broker.live_options.change_lookupds(("a\nb:1",))
        await trio.sleep(1)
    shown = [line for line in caplog.messages if line.startswith("LOOKUPD")]
    assert shown
    assert all(line.startswith(r"LOOKUPD(a\nb:1)") for line in shown)
    assert all(line.isprintable() for line in shown)


async def test_a_defect_of_ours_costs_no_other_task(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and counted, and the task goes on after an interval."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        broker.live_options.change_lookupds(())
        await seen_after(lookupd)
        with monkeypatch.context() as patch:
            patch.setattr(broker.lookups, "identity", lambda: 1 / 0)
            broker.live_options.change_lookupds(("a:4160",))
            await trio.sleep(1)
        assert broker.defects.counts["lookup"] == 1
        assert "LOOKUPD(a:4160) - failed by a defect of nsqd" in caplog.messages
        lookupd.take_seen()
        assert await seen_after(lookupd, PING_S + 1) == [
            "(magic)",
            "IDENTIFY",
            "REGISTER t",
            "PING",
        ]


# Bounds


async def test_nothing_piles_up_while_a_lookupd_is_down(autojump_clock: MockClock) -> None:
    """Attempts to connect are a second apart, and hold nothing of what they would announce."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        lookupd.go_down()
        peer = peer_of(broker)
        before = lookupd.dialed[TCP_PORT]
        broker.topic("found_out_by")
        start_s = trio.current_time()
        for number in range(10_000):
            broker.lookups.announce(f"t{number}", "", gone=False)
            broker.lookups.announce(f"t{number}", "c", gone=number % 2 == 0)
            if number % 500 == 0:
                await trio.sleep(0.5)
                assert not peer._pending
                assert not peer._registered
        assert 1 <= lookupd.dialed[TCP_PORT] - before <= trio.current_time() - start_s + 1


async def test_what_is_to_be_said_is_bounded_by_what_there_is(autojump_clock: MockClock) -> None:
    """Names that come and go while a lookupd stalls leave nothing behind."""
    async with cluster("a", topics=["t"]) as (broker, [lookupd]):
        lookupd.stalls |= {"REGISTER", "connect HTTP"}
        peer = peer_of(broker)
        broker.topic("u")
        await wait_all_tasks_blocked()
        assert lookupd.faults["REGISTER"]
        for number in range(1000):
            broker.topics["t"].channel(f"c{number}")
            broker.topics["t"].delete_channel(f"c{number}")
        assert not peer._pending


async def test_many_topics_are_told_in_few_round_trips(autojump_clock: MockClock) -> None:
    """All of them, in order, though commands go out in batches."""
    names = [f"t{number}" for number in range(300)]
    async with cluster("a", topics=names) as (broker, [lookupd]):
        assert lookupd.take_seen()[2:] == [f"REGISTER {name}" for name in names]
        [transport] = lookupd.transports
        assert not transport.incoming
        assert peer_of(broker)._registered == {Registration(name) for name in names}


@pytest.mark.parametrize("topics", [10, 10_000])
async def test_what_there_is_is_told_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    """A step of the task looks at a batch of commands, however many topics there are."""
    async with cluster("a") as (broker, [lookupd]):
        broker.live_options.change_lookupds(())
        await seen_after(lookupd)
        looked_at = 0

        def registrations() -> Iterator[Registration]:
            nonlocal looked_at
            for number in range(topics):
                looked_at += 1
                # Each tenth is deleted before it is told.
                yield Registration(f"t{number}" if number % 10 else "gone")

        monkeypatch.setattr(broker.lookups, "registrations", registrations)
        monkeypatch.setattr(broker.lookups, "has", lambda what: what.topic != "gone")
        with counted_steps(lambda: looked_at) as steps:
            broker.live_options.change_lookupds(("a:4160",))
            seen = await seen_after(lookupd, 1)
        assert seen[2:] == [f"REGISTER t{number}" for number in range(topics) if number % 10]
        assert 0 < steps.most <= 64


async def test_topics_that_come_and_go_while_the_rest_is_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end the nsqlookupd knows what there is, whatever was deleted or made meanwhile."""
    names = [f"t{number}" for number in range(300)]
    async with cluster("a", topics=names) as (broker, [lookupd]):
        for name in names:
            broker.topics[name].channel("c")
        broker.live_options.change_lookupds(())
        await seen_after(lookupd)
        say, said = LookupPeer._send_commands, 0

        async def change_and_say(peer: LookupPeer, commands: list[bytes]) -> None:
            nonlocal said
            said += 1
            if said == 3:
                for name in names[::3]:
                    broker.delete_topic(name)
                for name in names[1::3]:
                    broker.topics[name].channel("d")
                    broker.topics[name].delete_channel("c")
                for name in names[::9]:
                    broker.topic(name)
            await say(peer, commands)

        monkeypatch.setattr(LookupPeer, "_send_commands", change_and_say)
        broker.live_options.change_lookupds(("a:4160",))
        known: set[str] = set()
        for line in await seen_after(lookupd, 1):
            command, _, told = line.partition(" ")
            if command == "REGISTER":
                known |= {told, told.split()[0]}
            elif command == "UNREGISTER":
                known = {one for one in known if one != told and not one.startswith(f"{told} ")}
        there = set(broker.topics)
        for topic in broker.topics.values():
            there |= {f"{topic.name} {name}" for name in topic.channels}
        assert said > 3
        assert known == there


async def test_an_answer_has_a_bound_of_its_own(autojump_clock: MockClock) -> None:
    """It is JSON that is decoded in one go; --max-body-size is made for messages."""
    async with cluster("a") as (broker, [lookupd]):
        broker.live_options.change_lookupds(())
        await seen_after(lookupd)
        lookupd.answers["IDENTIFY"] = sized(b'{"x":"' + b"x" * 65536 + b'"}')
        broker.live_options.change_lookupds(("a:4160",))
        await seen_after(lookupd, 0.5)
        assert lookupd.faults["IDENTIFY"] == 1
        assert not peer_of(broker).is_connected
