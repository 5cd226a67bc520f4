"""The pushes to statsd: when, where to, and what becomes of failures.

Spec: nsqd-internals, section 8.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import publish
from tests.processes import running_nsqd
from trionsq.broker.broker import Broker
from trionsq.broker.statsd import connect_udp
from trionsq.testing.memory import nsqd_in_memory

INTERVAL_S = 10


class Network:
    """Takes datagrams, each with the time since the start.

    Attributes:
        seen: the lines of each datagram that came.
        dialed: the addresses that a socket was made for.
        unreachable: no socket can be made.
        refuses: datagrams are refused.
        hangs: making a socket takes for ever.
        faults: how often one of these happened.
        open: sockets that were not closed.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[str]]] = []
        self.dialed: list[str] = []
        self.unreachable = self.refuses = self.hangs = False
        self.faults = 0
        self.open = 0
        self._start_s = trio.current_time()

    async def connect(self, address: str) -> Network:
        self.dialed.append(address)
        await trio.lowlevel.checkpoint()
        if self.hangs:
            self.faults += 1
            await trio.sleep_forever()
        if self.unreachable:
            self.faults += 1
            raise socket.gaierror(-2, "Name or service not known")
        self.open += 1
        return self

    async def send(self, data: bytes, /) -> int:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            self.faults += 1
            raise ConnectionRefusedError("refused")
        self.seen.append((trio.current_time() - self._start_s, data.decode().splitlines()))
        return len(data)

    def close(self) -> None:
        self.open -= 1

    def take(self) -> list[str]:
        """All lines since the last call."""
        text = [line for _, datagram in self.seen for line in datagram]
        self.seen.clear()
        return text


@asynccontextmanager
async def pushing(**options: Any) -> AsyncIterator[tuple[Broker, Network]]:
    """A broker that pushes into a network of ours, every 10 s."""
    options = {
        "statsd_address": "stats:8125",
        "statsd_interval_ns": INTERVAL_S * 10**9,
        "statsd_mem_stats": False,
        "statsd_udp_packet_size": 60_000,
        "broadcast_address": "10.0.0.1",
        **options,
    }
    async with nsqd_in_memory(**options) as broker:
        broker.ports.http = 4151
        network = Network()
        broker.statsd.connect = network.connect
        yield broker, network
    assert not network.open


async def pushed(network: Network) -> dict[str, str]:
    """What the next push tells, by name less the prefix of the host."""
    await trio.sleep(INTERVAL_S)
    await wait_all_tasks_blocked()
    told = dict(line.split(":") for line in network.take())
    assert all(name.startswith("nsq.10_0_0_1_4151.topic.") for name in told)
    return {name.removeprefix("nsq.10_0_0_1_4151.topic."): value for name, value in told.items()}


async def test_counters_tell_what_came_since_the_last_push(autojump_clock: MockClock) -> None:
    """The first push all since the start; the address is looked up for each."""
    async with pushing() as (broker, network):
        publish(broker, "t", b"one", b"two")
        broker.topic("t").channel("c")
        told = await pushed(network)
        assert told["t.message_count"] == told["t.channel.c.message_count"] == "2|c"
        assert told["t.message_bytes"] == "6|c"
        assert told["t.channel.c.depth"] == "2|g"
        publish(broker, "t", b"three")
        told = await pushed(network)
        assert (told["t.message_count"], told["t.channel.c.depth"]) == ("1|c", "3|g")
        assert (await pushed(network))["t.message_count"] == "0|c"
        assert network.dialed == ["stats:8125"] * 3


async def test_a_push_is_spread_over_the_interval_less_a_second(
    autojump_clock: MockClock,
) -> None:
    """Datagrams at equal distances, none larger than it may be, the first at once."""
    async with pushing(statsd_udp_packet_size=100) as (broker, network):
        publish(broker, "t", b"x")
        broker.topic("t").channel("c")
        await trio.sleep(2 * INTERVAL_S - 0.5)
        datagrams = network.seen
        assert len(datagrams) > 3
        for place, (at_s, text) in enumerate(datagrams):
            assert at_s == pytest.approx(INTERVAL_S + place * (INTERVAL_S - 1) / len(datagrams))
            assert sum(len(line) + 1 for line in text) <= 100


async def test_a_topic_made_again_begins_at_0(autojump_clock: MockClock) -> None:
    """Whether it has got fewer messages than the one before it, or more."""
    async with pushing() as (broker, network):
        publish(broker, "few", b"a", b"b", b"c")
        publish(broker, "many", b"a")
        broker.topic("many").channel("c")
        await pushed(network)
        for name in ("few", "many"):
            broker.delete_topic(name)
        publish(broker, "few", b"a")
        publish(broker, "many", b"a", b"b")
        broker.topic("many").channel("c")
        told = await pushed(network)
        assert (told["few.message_count"], told["many.message_count"]) == ("1|c", "2|c")
        assert told["many.channel.c.message_count"] == "2|c"
        broker.topic("many").delete_channel("c")
        broker.topic("many").channel("c")
        publish(broker, "many", b"a", b"b", b"c")
        told = await pushed(network)
        assert told["many.channel.c.message_count"] == told["many.message_count"] == "3|c"
        broker.delete_topic("few")
        assert not any(name.startswith("few.") for name in await pushed(network))


async def test_what_could_not_be_told_is_told_later(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A statsd without address takes nothing away, and is said at most once a minute."""
    async with pushing() as (broker, network):
        publish(broker, "t", b"one")
        network.unreachable = True
        with caplog.at_level(logging.ERROR, "trionsq"):
            await trio.sleep(12.5 * INTERVAL_S)
        assert network.faults == broker.statsd.errors == 12
        # Earlier tests of this process may have left the log open for more than errors.
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        said = [record.getMessage() for record in errors]
        assert len(said) == 2
        assert "STATSD(stats:8125): " in said[0]
        assert "Name or service not known; 6 errors" in said[1]
        network.unreachable = False
        assert (await pushed(network))["t.message_count"] == "1|c"


async def test_refused_datagrams_do_not_end_a_push(autojump_clock: MockClock) -> None:
    """Each is tried, and the next push too."""
    async with pushing(statsd_udp_packet_size=1) as (broker, network):
        publish(broker, "t", b"one")
        network.refuses = True
        assert await pushed(network) == {}
        await trio.sleep(INTERVAL_S - 1)
        assert network.faults == broker.statsd.errors == 4
        network.refuses = False
        await trio.sleep(INTERVAL_S)
        assert len(network.seen) == 4


async def test_a_name_server_that_hangs_holds_up_one_push(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After an interval it is given up, and the next push begins."""
    async with pushing() as (broker, network):
        publish(broker, "t", b"one")
        network.hangs = True
        await trio.sleep(INTERVAL_S + 1)
        assert network.faults == 1
        network.hangs = False
        assert (await pushed(network))["t.message_count"] == "1|c"
        assert broker.statsd.errors == 1
        assert "longer than the interval" in caplog.text


async def test_a_defect_of_ours_costs_one_push(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and counted, and the broker goes on."""
    async with pushing() as (broker, network):
        publish(broker, "t", b"one")
        del broker.ports.http
        await trio.sleep(INTERVAL_S + 1)
        assert broker.defects.counts["statsd"] == 1
        assert "STATSD: a push - failed" in caplog.text
        broker.ports.http = 4151
        assert (await pushed(network))["t.depth"] == "1|g"


async def test_latencies_memory_and_ephemeral_ones(autojump_clock: MockClock) -> None:
    """As the options ask for."""
    options: dict[str, Any] = {
        "statsd_mem_stats": True,
        "statsd_exclude_ephemeral": True,
        "statsd_prefix": "",
        "e2e_processing_latency_percentile": (0.99, 0.5),
    }
    async with pushing(**options) as (broker, network):
        publish(broker, "t", b"one")
        publish(broker, "e#ephemeral", b"one")
        await trio.sleep(INTERVAL_S + 1)
        await wait_all_tasks_blocked()
        names = [line.partition(":")[0] for line in network.take()]
    assert names[:6] == [
        "topic.t.message_count",
        "topic.t.message_bytes",
        "topic.t.depth",
        "topic.t.backend_depth",
        "topic.t.e2e_processing_latency_99",
        "topic.t.e2e_processing_latency_50",
    ]
    assert (names[6], names[-1], len(names)) == ("mem.heap_objects", "mem.gc_runs", 15)


async def test_without_an_address_there_are_no_pushes(autojump_clock: MockClock) -> None:
    """Nothing is looked up, nothing is sent."""
    async with pushing(statsd_address="") as (_, network):
        await trio.sleep(10 * INTERVAL_S)
        assert network.dialed == []


@pytest.mark.parametrize("address", ["8125", "/run/statsd", "127.0.0.1:http", "a..b:1", "h:70000"])
async def test_an_odd_address_is_an_error_like_others(address: str) -> None:
    """OSError, whatever is odd about it."""
    with pytest.raises(OSError):  # noqa: PT011
        await connect_udp(address)


async def test_a_real_statsd_gets_real_datagrams(tmp_path: Path) -> None:
    """By UDP from a process; none is larger than the default allows, all are of whole lines."""
    receiver = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, trio.fail_after(60):
        await receiver.bind(("127.0.0.1", 0))
        port = receiver.getsockname()[1]
        flags = [f"--statsd-address=127.0.0.1:{port}", "--statsd-interval=1001ms"]
        async with running_nsqd(tmp_path, [*flags, "--broadcast-address=me"]) as nsqd:
            prefix = f"nsq.me_{nsqd.http_address.rpartition(':')[2]}.mem."
            names: list[str] = []
            while f"{prefix}gc_runs" not in names:
                datagram = await receiver.recv(65536)
                assert len(datagram) <= 508
                assert datagram.endswith(b"\n")
                names += [line.partition(":")[0] for line in datagram.decode().splitlines()]
    assert names == [
        prefix + key
        for key in (
            "heap_objects",
            "heap_idle_bytes",
            "heap_in_use_bytes",
            "heap_released_bytes",
            "gc_pause_usec_100",
            "gc_pause_usec_99",
            "gc_pause_usec_95",
            "next_gc_bytes",
            "gc_runs",
        )
    ]
