"""Consumers that forward messages until a signal, under a mock clock; and response times."""

from __future__ import annotations

import logging
import os
import signal
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import publish
from tests.client.network import ADDRESS, Network
from trionsq.client import Batch, Config, ConnectError, Consumer
from trionsq.durations import SECOND_NS
from trionsq.testing.memory import nsqd_in_memory
from trionsq.tools.forwarding import (
    InProgress,
    RequestLog,
    RequestTimes,
    _UnansweredBatches,
    forward,
)
from trionsq.transports.transport import Transport

BODIES = [b"%d" % number for number in range(5)]


def consumer_of(network: Network) -> Consumer:
    """A consumer of topic t, channel c."""
    return Consumer(
        "t", "c", nsqd_tcp_addresses=[ADDRESS], config=Config(max_in_flight=5), dial=network.dial
    )


async def test_what_never_ends_is_not_waited_for(autojump_clock: MockClock) -> None:
    """20 s after the signal the tool ends, and returns unanswered messages."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", *BODIES)
        in_progress = InProgress()

        async def take(_: Consumer, batch: Batch) -> None:
            batch[0].finish()
            in_progress.add_one()
            os.kill(os.getpid(), signal.SIGTERM)

        begun_s = trio.current_time()
        await forward([consumer_of(Network.of(broker))], take, in_progress)
        assert 20 <= trio.current_time() - begun_s < 26
        core = broker.topic("t").channel("c").core
        assert (core.depth, core.in_flight_count) == (len(BODIES) - 1, 0)


async def test_the_last_that_is_under_way_ends_it(autojump_clock: MockClock) -> None:
    """After the signal it waits for all work in progress, and no longer."""
    async with nsqd_in_memory() as broker, trio.open_nursery() as nursery:
        publish(broker, "t", *BODIES)
        in_progress = InProgress()

        async def work(batch: Batch, index: int) -> None:
            await trio.sleep(index + 1)
            batch[index].finish()
            in_progress.remove_one()

        async def take(_: Consumer, batch: Batch) -> None:
            for index in range(len(batch)):
                in_progress.add_one()
                nursery.start_soon(work, batch, index)
            os.kill(os.getpid(), signal.SIGTERM)

        begun_s = trio.current_time()
        await forward([consumer_of(Network.of(broker))], take, in_progress)
        assert 5 <= trio.current_time() - begun_s < 7
        assert broker.topic("t").channel("c").core.held == 0


async def test_what_is_slow_is_not_delivered_again(autojump_clock: MockClock) -> None:
    """Slow messages are touched until they are answered, also after the signal."""
    async with nsqd_in_memory(msg_timeout_ns=3 * SECOND_NS) as broker, trio.open_nursery() as tasks:
        publish(broker, "t", *BODIES)
        in_progress = InProgress()
        taken = 0

        async def work(batch: Batch, index: int) -> None:
            await trio.sleep(5 * index)
            if index == 2 and taken == len(BODIES):
                os.kill(os.getpid(), signal.SIGTERM)
            batch[index].finish()
            in_progress.remove_one()

        async def take(_: Consumer, batch: Batch) -> None:
            nonlocal taken
            taken += len(batch)
            for index in range(len(batch)):
                in_progress.add_one()
                tasks.start_soon(work, batch, index)

        with trio.fail_after(60):
            await forward([consumer_of(Network.of(broker))], take, in_progress)
        core = broker.topic("t").channel("c").core
        assert (core.held, core.timeout_count) == (0, 0)


async def test_an_nsqd_that_joins_later_may_be_less_patient(autojump_clock: MockClock) -> None:
    """The shortest timeout counts from the moment its nsqd is connected."""
    async with nsqd_in_memory() as one, nsqd_in_memory(msg_timeout_ns=6 * SECOND_NS) as other:
        network = Network.of(one)
        network.hosts["b:1"] = other.connect
        consumer = consumer_of(network)
        publish(other, "t", b"slow")

        async def take(_: Consumer, batch: Batch) -> None:
            await trio.sleep(15)
            batch.finish()
            os.kill(os.getpid(), signal.SIGTERM)

        async def join() -> None:
            await trio.sleep(2)
            consumer.add_nsqd("b:1")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(join)
                await forward([consumer], take, InProgress())
        core = other.topic("t").channel("c").core
        assert (core.held, core.timeout_count) == (0, 0)


async def test_batches_that_are_answered_are_forgotten() -> None:
    """The list stays short, however many batches come between two touches."""
    touched: list[int] = []

    unanswered = _UnansweredBatches()
    slow = SimpleNamespace(open_count=1, is_answerable=True, touch=lambda: touched.append(1))
    gone = SimpleNamespace(open_count=1, is_answerable=False, touch=lambda: touched.append(2))
    done = SimpleNamespace(open_count=0, is_answerable=True, touch=lambda: touched.append(3))
    for batch in (slow, gone, *[done] * 1000):
        unanswered.add_batch(cast(Batch, batch))
        assert len(unanswered) < 100
    await unanswered.touch_all()
    assert touched == [1]
    assert len(unanswered) == 1


async def _never_taken(_consumer: Consumer, _batch: Batch) -> None:
    raise AssertionError("there is nothing to take")


async def test_a_signal_while_it_connects(autojump_clock: MockClock) -> None:
    """A signal while connecting ends it at once."""

    async def dial(_host: str, _port: int, _local: str) -> Transport:
        await trio.sleep_forever()
        raise AssertionError

    config = Config(dial_timeout_s=1000)
    consumer = Consumer("t", "c", nsqd_tcp_addresses=[ADDRESS], config=config, dial=dial)

    async def send_signal() -> None:
        await wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_signal)
        await forward([consumer], _never_taken, InProgress())
    assert trio.current_time() < 10


async def test_no_nsqd_at_all() -> None:
    """If the first connection cannot be made, it raises."""
    with pytest.RaisesGroup(ConnectError, flatten_subgroups=True):
        await forward([consumer_of(Network())], _never_taken, InProgress())


# Response times


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The tools' log from INFO on."""
    caplog.set_level(logging.INFO, "trionsq.tools")
    monkeypatch.setattr(logging.getLogger("trionsq"), "propagate", True)
    return caplog


def test_percentiles(log: pytest.LogCaptureFixture) -> None:
    """The line after each hundred requests is about the last hundred."""
    times = RequestTimes("x", 100)
    for ms in range(1, 101):
        assert _lines(log) == []
        times.add_requests(ms / 1000)
    assert _lines(log) == ["[x]: finished 100 - 99th: 100.00ms - 95th: 96.00ms - avg: 50.50ms"]
    times.add_requests(0.001, 99)
    assert _lines(log) == []
    times.add_requests(0.001)
    assert _lines(log) == ["[x]: finished 200 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms"]


def test_many_at_once(log: pytest.LogCaptureFixture) -> None:
    """Many requests added at once make one line."""
    times = RequestTimes("x", 10)
    times.add_requests(0.002, 35)
    times.add_requests(0.002, 4)
    times.add_requests(0.002, 1)
    assert [line.partition(" - ")[0] for line in _lines(log)] == [
        "[x]: finished 35",
        "[x]: finished 40",
    ]


def test_off(log: pytest.LogCaptureFixture) -> None:
    """With 0 no line is logged."""
    times = RequestLog(["a", "b"], 0)
    times.add_requests("a", 0.1, 1000)
    assert _lines(log) == []


@pytest.mark.parametrize(
    ("addresses", "names"), [(["a"], {"aggregate"}), (["a", "b", "a"], {"a", "b", "aggregate"})]
)
def test_each_address(log: pytest.LogCaptureFixture, addresses: list[str], names: set[str]) -> None:
    """A line about all addresses and, if there are several, one about each."""
    times = RequestLog(addresses, 2)
    for address in addresses:
        times.add_requests(address, 0.1, 2)
    assert {line.partition("]")[0].lstrip("[") for line in _lines(log)} == names
