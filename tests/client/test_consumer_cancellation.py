"""Each await of a consumer is cancelled once: no message is lost, nothing stays open."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
import trio

from tests.broker.support import publish
from tests.cancellation import BOTH_IN_SOAK, CancelAt, When, run_counted, sweep_awaits
from tests.client.accounts import bodies_left, check_closed, short_turns
from tests.client.network import ADDRESS, Network
from tests.soak import more_in_soak
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.client import Batch, Config, ConnectError, Consumer, Message
from trionsq.durations import SECOND_NS
from trionsq.testing.memory import nsqd_in_memory

BODIES = [b"%d" % number for number in range(12)]
POISON = BODIES[3]
FEW = 7
OTHER = "other.test:4150"
CONFIG = Config(
    max_in_flight=4,
    max_attempts=2,
    default_requeue_delay_s=0.1,
    backoff_multiplier_s=0.2,
    lookupd_poll_interval_s=20,
    low_rdy_idle_timeout_s=1,
    heartbeat_interval_s=1,
    read_timeout_s=3,
)
OPTIONS: dict[str, Any] = {"msg_timeout_ns": 2 * SECOND_NS}


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch)


class Life:
    """A consumer whose connection breaks once, and who stops amid its messages.

    Attributes:
        finished: bodies that it finished, or gave up.
        unsure: those of them whose FIN the broken connection may have lost.
        is_complete: whether it came to its end.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.finished = Counter[bytes]()
        self.unsure = set[bytes]()
        self.is_complete = False
        self.stop: Callable[[], None] = lambda: None

    def consumer(self, **rest: Any) -> Consumer:
        addresses = () if "lookupd_http_addresses" in rest else (ADDRESS,)
        return Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=addresses,
            **{"config": CONFIG, **rest},
            on_give_up=self.give_up,
            dial=self.network.dial,
            random=Random(1),
        )

    async def give_up(self, message: Message) -> None:
        await trio.sleep(0.01)
        self.finished[message.body] += 1
        self.stop()

    def finish(self, message: Message | Batch) -> None:
        bodies = [message.body] if isinstance(message, Message) else [m.body for m in message]
        if message.finish():
            self.finished.update(bodies)

    def lose_connection(self) -> None:
        """All that is on its way is lost, in both directions."""
        self.unsure |= self.finished.keys()
        link = self.network.links[-1]
        for pipe in (link.incoming, link.outgoing):
            pipe.break_with(ConnectionResetError(errno.ECONNRESET, "reset"))

    def silence_nsqd(self) -> None:
        """Nothing arrives from nsqd any more, and this consumer closes with unread input."""
        self.unsure.update(BODIES)
        self.network.links[-1].incoming.stall()

    async def messages(self) -> None:
        async with self.consumer() as consumer:
            count = 0
            async for message in consumer:
                count += 1
                await trio.sleep(0.02)
                self.finish(message)
                if count == 3:
                    self.lose_connection()
                if count == 7:
                    consumer.stop()
        self.is_complete = True

    async def batches(self) -> None:
        async with self.consumer() as consumer:
            count = 0
            async for batch in consumer.batches():
                count += 1
                await trio.sleep(0.02)
                self.finish(batch)
                if count == 2:
                    self.lose_connection()
                if count == 3:
                    # The end with messages that nobody has seen.
                    break
        self.is_complete = True

    async def handler(self) -> None:
        async with self.consumer() as consumer:

            async def handle(message: Message) -> None:
                if message.body == POISON:
                    if message.attempts == CONFIG.max_attempts:
                        consumer.stop()
                    raise ValueError("poison")
                await trio.sleep(0.01)
                self.finish(message)

            await consumer.run(handle, concurrency=2)
        self.is_complete = True

    async def given_up(self) -> None:
        async with self.consumer() as consumer:
            self.stop = consumer.stop
            async for message in consumer:
                if message.body == POISON:
                    message.requeue(0, backoff=False)
                else:
                    self.finish(message)
                if len(self.network.links) == 1 and len(self.finished) == 2:
                    self.silence_nsqd()
        self.is_complete = True


async def consume(cancel_at: CancelAt, style: str) -> None:
    async with nsqd_in_memory(**OPTIONS) as broker:
        publish(broker, "t", *BODIES)
        life = Life(Network.of(broker))
        await run_counted(cancel_at, getattr(life, style))
        assert life.is_complete or cancel_at.has_fired
        await check_closed(life.network, broker)
        await check_accounts(life, broker)


async def check_accounts(life: Life, *brokers: Broker, bodies: Sequence[bytes] = BODIES) -> None:
    """Each message was finished or is left; those of an unbroken connection are not both."""
    left = await bodies_left(brokers)
    assert set(left) | set(life.finished) == set(bodies)
    assert len(left) == len(set(left))
    assert set(left) & set(life.finished) <= life.unsure
    assert all(count == 1 or body in life.unsure for body, count in life.finished.items())


@more_in_soak
@pytest.mark.parametrize("style", ["messages", "batches", "handler", "given_up"])
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_consumer_cancelled_at_any_await(style: str, when: When) -> None:
    """Each message was finished or waits at nsqd, once, and each connection is closed."""
    sweep_awaits(lambda cancel_at: consume(cancel_at, style), when, least=50, one_in=10)


async def refuse(cancel_at: CancelAt) -> None:
    """No nsqd can be reached, so the beginning fails."""
    life = Life(Network())

    async def begin() -> None:
        with pytest.raises(ConnectError):
            await life.messages()
        life.is_complete = True

    await run_counted(cancel_at, begin)
    assert life.is_complete or cancel_at.has_fired


@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_consumer_that_cannot_begin_cancelled_at_any_await(when: When) -> None:
    """It leaves no task."""
    sweep_awaits(refuse, when, least=5)


async def cancel_handlers(cancel_at: CancelAt) -> None:
    """The handlers are cancelled; the consumer stays, and others go on."""
    async with nsqd_in_memory(**OPTIONS) as broker:
        publish(broker, "t", *BODIES)
        life = Life(Network.of(broker))
        async with life.consumer() as consumer:

            async def handle(message: Message) -> None:
                await trio.sleep(0.01)
                life.finish(message)
                if len(life.finished) == len(BODIES):
                    consumer.stop()

            async def run() -> None:
                await consumer.run(handle, concurrency=2)

            await run_counted(cancel_at, run)
            assert cancel_at.has_fired or len(life.finished) == len(BODIES)
            await run()
        await check_closed(life.network, broker)
        await check_accounts(life, broker)
        assert len(life.finished) == len(BODIES)
        # What the cancelled handlers had was returned at once, and not by a time-out.
        assert broker.topic("t").channel("c").core.timeout_count == 0


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_handlers_cancelled_at_any_await(when: When) -> None:
    """Their messages go back to nsqd at once, and other handlers of the consumer get them."""
    sweep_awaits(cancel_handlers, when, least=30)


class Lookupds:
    """Two nsqlookupds: the first one is down at first; both know what ``nsqds`` has."""

    def __init__(self) -> None:
        self.nsqds = [ADDRESS]
        self.polls = 0

    async def get(self, url: str, *_: object, **__: object) -> httpget.Answer:
        self.polls += 1
        is_down = self.polls == 1
        await trio.sleep(0.01)
        if is_down:
            raise httpget.GetConnectError("refused")
        producers = [
            {"broadcast_address": host, "tcp_port": int(port)}
            for host, _, port in (address.partition(":") for address in self.nsqds)
        ]
        headers: Mapping[str, str] = {"x-nsq-content-type": "nsq; version=1.0"}
        return httpget.Answer(200, headers, json.dumps({"producers": producers}).encode())


async def discover(cancel_at: CancelAt) -> None:
    """Two nsqds, of which one is found later; they share a single message in flight."""
    async with nsqd_in_memory(**OPTIONS) as first, nsqd_in_memory(**OPTIONS) as second:
        publish(first, "t", *BODIES[:4])
        publish(second, "t", *BODIES[4:FEW])
        network = Network.of(first)
        network.hosts[OTHER] = second.connect
        life = Life(network)
        lookupds = Lookupds()

        async def live() -> None:
            async with life.consumer(
                config=Config(max_in_flight=1, lookupd_poll_interval_s=2, low_rdy_idle_timeout_s=1),
                lookupd_http_addresses=["a:4161", "b:4161"],
                get=lookupds.get,
            ) as consumer:
                count = 0
                async for message in consumer:
                    count += 1
                    await trio.sleep(0.01)
                    life.finish(message)
                    if count == 2:
                        life.lose_connection()
                        lookupds.nsqds.append(OTHER)
                    if count == 3:
                        consumer.add_lookupd("c:4161")
                        consumer.remove_lookupd("a:4161")
                    if message.body in BODIES[5:] and ADDRESS in consumer._loops:
                        consumer.remove_nsqd(ADDRESS)
                    if len(life.finished) == FEW:
                        break
            life.is_complete = True

        await run_counted(cancel_at, live)
        assert life.is_complete or cancel_at.has_fired
        await check_closed(network, first, second)
        await check_accounts(life, first, second, bodies=BODIES[:FEW])


@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_a_consumer_with_nsqlookupds_cancelled_at_any_await(when: When) -> None:
    """The same with polls, with nsqds that come and go, and with less than RDY 1 for each."""
    sweep_awaits(discover, when, least=50, one_in=10)
