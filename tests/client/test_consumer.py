"""The consumer, with peers and brokers in memory. Spec: client, sections 3 to 7."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import publish
from tests.client.network import ADDRESS, Network, Peer
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.client import (
    AlreadyConnectedError,
    ClientError,
    Config,
    ConnectError,
    Consumer,
    Message,
    Phase,
    ProtocolError,
    StoppedError,
)
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import frames

BODIES = [b"%d" % number for number in range(20)]


def consumer_of(
    network: Network, *addresses: str, config: Config | None = None, **rest: Any
) -> Consumer:
    """A consumer of t:c that connects to these addresses."""
    return Consumer(
        "t",
        "c",
        nsqd_tcp_addresses=addresses or (() if "lookupd_http_addresses" in rest else (ADDRESS,)),
        config=config or Config(max_in_flight=5),
        dial=network.dial,
        random=Random(1),
        **rest,
    )


def left(broker: Broker) -> int:
    """The channel's messages, in whatever state."""
    core = broker.topic("t").channel("c").core
    return core.depth + core.in_flight_count + core.deferred_count


async def subscribed(network: Network, address: str = ADDRESS) -> Peer:
    """The peer of the next connection, after SUB."""
    return await (await network.peer(address)).subscribe()


# The three ways to consume


async def test_messages_one_by_one() -> None:
    """Each message is received once, and is gone when finished."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", *BODIES)
        found = []
        async with consumer_of(Network.of(broker)) as consumer:
            async for message in consumer:
                assert (message.attempts, message.nsqd_address) == (1, ADDRESS)
                found.append(message.body)
                assert message.finish()
                if len(found) == len(BODIES):
                    break
            stats = consumer.stats()
        assert sorted(found) == sorted(BODIES)
        assert (stats.received, stats.finished, stats.in_flight) == (20, 20, 0)
        assert left(broker) == 0


async def test_batches() -> None:
    """A batch has all messages of a read; one answer is enough, also an automatic one."""
    for automatic in (True, False):
        async with nsqd_in_memory() as broker:
            publish(broker, "t", *BODIES)
            found: list[bytes] = []
            async with consumer_of(Network.of(broker)) as consumer:
                async for batch in consumer.batches(finish=automatic):
                    assert len(batch) <= 5
                    assert len(batch.ids) == len(batch.timestamps_ns) == len(batch.bodies)
                    found += batch.bodies
                    if not automatic or len(found) == len(BODIES):
                        assert batch.finish()
                    if len(found) == len(BODIES):
                        break
            assert sorted(found) == sorted(BODIES)
            assert left(broker) == 0


async def test_a_handler() -> None:
    """At most ``concurrency`` handlers run at once; `stop` ends `run` when all messages are
    handled.
    """
    async with nsqd_in_memory() as broker:
        publish(broker, "t", *BODIES)
        busy, most, done = 0, 0, 0
        all_busy = trio.Event()

        async def handle(message: Message) -> None:
            nonlocal busy, most, done
            busy += 1
            most = max(most, busy)
            if busy == 4:
                all_busy.set()
            await all_busy.wait()
            busy -= 1
            done += 1
            if done == len(BODIES):
                consumer.stop()

        async with consumer_of(Network.of(broker)) as consumer:
            await consumer.run(handle, concurrency=4)
        assert (done, most, left(broker)) == (20, 4, 0)


async def test_a_handler_that_raises_requeues_and_backs_off(autojump_clock: MockClock) -> None:
    """The delay grows with the attempts; a success ends the backoff."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"x")
        times = []

        async def handle(message: Message) -> None:
            times.append((message.attempts, trio.current_time()))
            if message.attempts < 3:
                raise KeyError("defect of a handler")
            consumer.stop()

        config = Config(default_requeue_delay_s=10)
        async with consumer_of(Network.of(broker), config=config) as consumer:
            await consumer.run(handle)
        assert [attempts for attempts, _ in times] == [1, 2, 3]
        # A clock that jumps adds floats up: ten seconds may be 9.99999999999998.
        assert 10 <= round(times[1][1] - times[0][1], 6) < 11
        assert 20 <= round(times[2][1] - times[1][1], 6) < 21
        assert left(broker) == 0


async def test_a_handler_may_answer_itself() -> None:
    """A handler may answer itself, or leave the answer to other code."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"a", b"b")
        kept = []

        async def handle(message: Message) -> None:
            message.auto_response = False
            kept.append(message)
            if len(kept) == 2:
                for other in kept:
                    other.finish()
                consumer.stop()

        async with consumer_of(Network.of(broker)) as consumer:
            await consumer.run(handle)
        assert left(broker) == 0


# Answers


async def test_the_first_answer_counts() -> None:
    """Later answers are not sent, nor is a touch after the answer."""
    network = Network().held()
    async with trio.open_nursery() as nursery:
        peers: list[Peer] = []

        async def hold() -> None:
            peers.append(await subscribed(network))

        nursery.start_soon(hold)
        async with consumer_of(network) as consumer:
            peer = peers[0]
            assert await peer.line() == b"RDY 5"
            (first, second, third) = await peer.deliver(b"a", b"b", b"c")
            message = await anext(consumer.__aiter__())
            assert message.touch()
            assert message.finish()
            assert not message.finish()
            assert not message.requeue(0)
            assert not message.touch()
            other = await anext(consumer.__aiter__())
            assert other.requeue(1.5, backoff=False)
            assert not other.finish()
            expected = [b"TOUCH " + first, b"FIN " + first, b"REQ " + second + b" 1500"]
            assert [await peer.line() for _ in range(3)] == expected
            nursery.start_soon(_say_goodbye, peer, third)
        assert not message.is_open


async def _say_goodbye(peer: Peer, *given_back: bytes) -> None:
    """nsqd's side of the end."""
    said = []
    while (line := await peer.line()) != b"CLS":
        if line != b"RDY 0":
            said.append(line)
    assert said == [b"REQ " + message_id + b" 0" for message_id in given_back]
    await peer.say(frames.CLOSE_WAIT)
    with suppress(EOFError):
        await peer.line()
    peer.stream.close()


async def test_messages_of_a_batch_can_be_answered_one_by_one() -> None:
    """An answer to the batch is for the remaining messages."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"a", b"b", b"c")
        async with consumer_of(Network.of(broker)) as consumer:
            batch = await consumer.next_batch()
            assert batch[1].finish()
            assert [message.is_open for message in batch] == [True, False, True]
            assert batch.open_count == 2
            assert batch.finish()
            assert batch.open_count == 0
            assert batch.requeue()
            assert batch.touch()
            assert consumer.stats().finished == 3
        assert left(broker) == 0


async def test_more_than_max_attempts_is_given_up() -> None:
    """on_give_up sees the message first; the others of its batch are delivered."""
    network = Network().held()
    seen = []

    async def give_up(message: Message) -> None:
        seen.append((message.timestamp_ns, message.attempts, message.id, message.body))

    async with trio.open_nursery() as nursery:
        peers: list[Peer] = []

        async def hold() -> None:
            peers.append(await subscribed(network))

        nursery.start_soon(hold)
        config = Config(max_in_flight=5, max_attempts=3)
        async with consumer_of(network, config=config, on_give_up=give_up) as consumer:
            peer = peers[0]
            await peer.line()
            await peer.say(
                frames.message_frame(1001, 4, b"%016x" % 1, b"bad"),
                frames.message_frame(1002, 3, b"%016x" % 2, b"good"),
            )
            batch = await consumer.next_batch()
            assert (batch.timestamps_ns, batch.attempts) == ([1002], [3])
            assert (batch.ids, batch.bodies) == ([b"%016x" % 2], [b"good"])
            assert await peer.line() == b"FIN %016x" % 1
            stats = consumer.stats()
            assert (stats.received, stats.given_up, stats.finished) == (2, 1, 1)
            batch.finish()
            assert await peer.line() == b"FIN %016x" % 2
            nursery.start_soon(_say_goodbye, peer)
    assert seen == [(1001, 4, b"%016x" % 1, b"bad")]


async def test_what_nobody_gave_up_goes_back() -> None:
    """A message that had too many attempts is nsqd's again if the program ends before
    on_give_up had it."""
    network = Network().held()
    async with trio.open_nursery() as nursery:
        peers: list[Peer] = []

        async def hold() -> None:
            peers.append(await subscribed(network))

        nursery.start_soon(hold)
        config = Config(max_in_flight=5, max_attempts=3)
        async with consumer_of(network, config=config) as consumer:
            peer = peers[0]
            await peer.line()
            await peer.say(frames.message_frame(1001, 4, b"%016x" % 1, b"bad"))
            await wait_all_tasks_blocked()
            assert consumer.stats().received == 1
            nursery.start_soon(_say_goodbye, peer, b"%016x" % 1)


# The end


async def test_all_that_is_unanswered_is_given_back() -> None:
    """At the end of the body all messages go back: received, queued and still arriving ones."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", *BODIES)
        async with consumer_of(Network.of(broker)) as consumer:
            (await anext(consumer.__aiter__())).finish()
            await anext(consumer.__aiter__())
        core = broker.topic("t").channel("c").core
        assert left(broker) == 19
        assert core.in_flight_count == 0
        assert core.depth == 19


async def test_messages_after_close_wait_are_given_back(autojump_clock: MockClock) -> None:
    """nsqd may have had messages in hand when it wrote CLOSE_WAIT; all go back."""
    network = Network().held()
    said = []

    async def serve() -> None:
        peer = await subscribed(network)
        while await peer.line() != b"CLS":
            pass
        await peer.say(frames.CLOSE_WAIT)
        for number in range(5):
            await trio.sleep(0.015)
            await peer.say(frames.message_frame(1, 1, b"%016x" % number, b"late"))
        with suppress(EOFError):
            while True:
                said.append(await peer.line())
        peer.stream.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with consumer_of(network):
            pass
    assert said == [b"REQ %016x 0" % number for number in range(5)]


async def test_a_stalled_nsqd_does_not_hold_the_end(autojump_clock: MockClock) -> None:
    """The end takes drain_timeout_s at most."""
    network = Network().held()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscribed, network)
        async with consumer_of(network, drain_timeout_s=2):
            began_s = trio.current_time()
    assert trio.current_time() - began_s == 2
    assert network.links[0].is_closed


async def test_exceptions_of_the_body_come_out_as_they_are() -> None:
    """An exception of the body is not wrapped in a group."""
    async with nsqd_in_memory() as broker:
        with pytest.raises(KeyError, match="mine"):
            async with consumer_of(Network.of(broker)):
                raise KeyError("mine")


async def test_stop_hands_out_what_was_received() -> None:
    """After `stop` received messages are handed out, then the loop ends."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", *BODIES)
        found = 0
        async with consumer_of(Network.of(broker)) as consumer:
            async for message in consumer:
                found += 1
                consumer.stop()
                message.finish()
            with pytest.raises(StoppedError):
                await consumer.next_batch()
            with pytest.raises(StoppedError):
                consumer.add_nsqd("other:4150")
        assert 1 <= found <= 10
        assert left(broker) == 20 - found


async def test_stop_waits_for_answers_but_not_forever(autojump_clock: MockClock) -> None:
    """An unanswered message delays the end by 30 s; then nsqd redelivers it."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"x")
        async with consumer_of(Network.of(broker)) as consumer:
            held = await anext(consumer.__aiter__())
            began_s = trio.current_time()
            consumer.stop()
            with pytest.raises(StopAsyncIteration):
                await anext(consumer.__aiter__())
            assert 30 <= trio.current_time() - began_s < 32
            assert not held.finish()
        assert left(broker) == 1


@pytest.mark.parametrize("how", ["answered", "lost"])
async def test_stop_ends_with_the_last_answer(how: str, autojump_clock: MockClock) -> None:
    """Not only after 30 s; and a connection that breaks meanwhile leaves nothing to wait for."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"x")
        network = Network.of(broker)
        async with consumer_of(network) as consumer:
            held = await anext(consumer.__aiter__())
            consumer.stop()
            await trio.sleep(5)
            stopped_s = trio.current_time()
            if how == "answered":
                assert held.finish()
            else:
                network.links[0].incoming.break_with(ConnectionResetError("reset"))
            with pytest.raises(StopAsyncIteration):
                await anext(consumer.__aiter__())
            assert trio.current_time() - stopped_s < 2
        assert left(broker) == (0 if how == "answered" else 1)


async def test_stop_may_come_at_any_time_and_again() -> None:
    """Before the consumer has begun it does nothing; the second one changes nothing."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"x")
        consumer = consumer_of(Network.of(broker))
        consumer.stop()
        async with consumer:
            (await anext(consumer.__aiter__())).finish()
            consumer.stop()
            consumer.stop()
            with pytest.raises(StopAsyncIteration):
                await anext(consumer.__aiter__())
        consumer.stop()
        assert left(broker) == 0


async def test_stop_wakes_every_task_that_waits_for_a_batch() -> None:
    """Without messages and without connections, each waiting task gets StoppedError."""
    stopped = 0

    async def wait(consumer: Consumer) -> None:
        nonlocal stopped
        with pytest.raises(StoppedError):
            await consumer.next_batch()
        stopped += 1

    consumer = consumer_of(Network(), lookupd_http_addresses=["lookupd.test:4161"], get=_no_nsqds)
    async with consumer, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait, consumer)
        await wait_all_tasks_blocked()
        assert stopped == 0
        consumer.stop()
    assert stopped == 3


async def _no_nsqds(*_: object, **__: object) -> httpget.Answer:
    return httpget.Answer(200, {"x-nsq-content-type": "nsq; version=1.0"}, b'{"producers":[]}')


# Connections


async def test_no_nsqd_can_be_reached() -> None:
    """With given addresses entering the consumer raises at once."""
    with pytest.raises(ConnectError, match="a:1"):
        async with consumer_of(Network(), "a:1"):
            pass
    with pytest.raises(ClientError):
        async with Consumer("t", "c"):
            pass
    for names in (("no good", "c"), ("t", "")):
        with pytest.raises(ValueError, match="name"):
            Consumer(*names)


async def test_nsqd_refuses_sub() -> None:
    """Entering the consumer raises nsqd's error."""
    network = Network().held()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            peer = await network.peer()
            await peer.identify()
            await peer.line()
            await peer.refuse("E_BAD_CHANNEL", "no")
            peer.stream.close()

        nursery.start_soon(serve)
        with pytest.raises(ProtocolError, match="E_BAD_CHANNEL no"):
            async with consumer_of(network):
                pass


async def test_a_lost_connection_is_made_again(autojump_clock: MockClock) -> None:
    """Pauses between attempts grow up to lookupd_poll_interval."""
    async with nsqd_in_memory() as broker:
        network = Network.of(broker)
        config = Config(lookupd_poll_interval_s=8, max_in_flight=5)
        async with consumer_of(network, config=config) as consumer:
            serve = network.hosts.pop(ADDRESS)
            network.links[0].incoming.break_with(ConnectionResetError("reset"))
            await trio.sleep(60)
            assert consumer.stats().connections == 0
            times = [time for _, time in network.dialled]
            pauses = [later - earlier for earlier, later in pairwise(times[1:])]
            assert len(pauses) > 5
            assert all(0.5 <= pause <= 8 for pause in pauses)
            assert max(pauses) > 4
            network.hosts[ADDRESS] = serve
            publish(broker, "t", b"x")
            (await anext(consumer.__aiter__())).finish()


async def test_answers_that_nsqd_refused_are_counted(autojump_clock: MockClock) -> None:
    """On all connections, also on those that were lost."""
    network = Network().held()
    async with trio.open_nursery() as nursery:

        async def refuse() -> None:
            for refusals in (1, 2):
                peer = await subscribed(network)
                for _ in range(refusals):
                    await peer.refuse("E_FIN_FAILED", "FIN 0123456789abcdef failed")
                if refusals == 1:
                    peer.stream.close()

        nursery.start_soon(refuse)
        async with consumer_of(network) as consumer:
            await trio.sleep(60)
            stats = consumer.stats()
            assert (stats.refused, stats.connections) == (3, 1)
            nursery.cancel_scope.cancel()


async def test_messages_of_a_lost_connection_are_not_handed_out(
    autojump_clock: MockClock,
) -> None:
    """nsqd redelivers them after its timeout; an answer to one returns False."""
    async with nsqd_in_memory(msg_timeout_ns=2_000_000_000) as broker:
        publish(broker, "t", b"a", b"b")
        network = Network.of(broker)
        async with consumer_of(network) as consumer:
            messages = consumer.__aiter__()
            held = await anext(messages)
            network.links[0].incoming.break_with(ConnectionResetError("reset"))
            await wait_all_tasks_blocked()
            assert not held.finish()
            again = [await anext(messages), await anext(messages)]
            assert [message.attempts for message in again] == [2, 2]
            for message in again:
                message.finish()
        assert left(broker) == 0


async def test_addresses_can_be_added_and_removed(autojump_clock: MockClock) -> None:
    """An address is connected once; a removed one is closed and stays closed."""
    async with nsqd_in_memory() as one, nsqd_in_memory() as other:
        network = Network.of(one, "a:1")
        network.hosts["b:1"] = other.connect
        async with consumer_of(network, "a:1") as consumer:
            with pytest.raises(AlreadyConnectedError):
                consumer.add_nsqd("a:1")
            consumer.add_nsqd("b:1")
            await trio.sleep(1)
            assert consumer.stats().connections == 2
            consumer.remove_nsqd("a:1")
            await trio.sleep(1)
            assert consumer.stats().connections == 1
            assert not one.clients
            with pytest.raises(KeyError):
                consumer.remove_nsqd("a:1")
            publish(other, "t", b"x")
            (await anext(consumer.__aiter__())).finish()


async def test_max_in_flight_may_be_changed() -> None:
    """0 pauses all connections; a larger value is sent at once."""
    network = Network().held()
    async with trio.open_nursery() as nursery:
        peers: list[Peer] = []

        async def hold() -> None:
            peers.append(await subscribed(network))

        nursery.start_soon(hold)
        async with consumer_of(network) as consumer:
            peer = peers[0]
            assert await peer.line() == b"RDY 5"
            for count in (0, 7):
                consumer.max_in_flight = count
                assert await peer.line() == b"RDY %d" % count
            await peer.deliver(*[b"x"] * 5)
            await wait_all_tasks_blocked()
            starved = [consumer.is_starved]
            await peer.deliver(b"x", first=9)
            await wait_all_tasks_blocked()
            assert [*starved, consumer.is_starved] == [False, True]
            given_back = [b"%016x" % number for number in (0, 1, 2, 3, 4, 9)]
            nursery.start_soon(_say_goodbye, peer, *given_back)


# Backoff and turns


async def test_backoff_stops_all_and_tries_one(autojump_clock: MockClock) -> None:
    """All get RDY 0, then one gets RDY 1; its success restores the normal RDY."""
    network = Network().held("a:1").held("b:1")
    async with trio.open_nursery() as nursery:
        peers: dict[str, Peer] = {}

        async def hold(address: str) -> None:
            peers[address] = await subscribed(network, address)

        for address in ("a:1", "b:1"):
            nursery.start_soon(hold, address)
        config = Config(max_in_flight=10)
        async with consumer_of(network, "a:1", "b:1", config=config) as consumer:
            await trio.sleep(1)
            await peers["a:1"].deliver(b"x")
            message = await anext(consumer.__aiter__())
            heard: dict[str, list[bytes]] = {"a:1": [], "b:1": []}

            async def listen(address: str) -> None:
                while True:
                    heard[address].append(await peers[address].line())

            for address in peers:
                nursery.start_soon(listen, address)
            await wait_all_tasks_blocked()
            for lines in heard.values():
                assert lines.pop() == b"RDY 5"
                lines.clear()
            message.requeue(0)
            await wait_all_tasks_blocked()
            assert consumer.flow.backoff.phase is Phase.PAUSED
            assert [lines[-1] for lines in heard.values()] == [b"RDY 0", b"RDY 0"]
            await trio.sleep(1.9)
            assert [lines[-1] for lines in heard.values()] == [b"RDY 0", b"RDY 0"]
            await trio.sleep(0.2)
            assert sorted(lines[-1] for lines in heard.values()) == [b"RDY 0", b"RDY 1"]
            tested = next(address for address in heard if heard[address][-1] == b"RDY 1")
            await peers[tested].deliver(b"y", first=5)
            (await anext(consumer.__aiter__())).finish()
            await trio.sleep(1)
            assert [lines[-1] for lines in heard.values()] == [b"RDY 5", b"RDY 5"]
            nursery.cancel_scope.cancel()


async def test_more_connections_than_max_in_flight_take_turns(
    autojump_clock: MockClock,
) -> None:
    """Every nsqd's messages are received, even with max_in_flight 1."""
    network = Network()
    async with (
        nsqd_in_memory() as one,
        nsqd_in_memory() as other,
        nsqd_in_memory() as third,
    ):
        brokers = {"a:1": one, "b:1": other, "c:1": third}
        for address, broker in brokers.items():
            network.hosts[address] = broker.connect
        found = set()
        async with consumer_of(network, *brokers, config=Config(max_in_flight=1)) as consumer:
            for broker in brokers.values():
                publish(broker, "t", *BODIES)
            async for message in consumer:
                assert consumer.stats().in_flight <= 1
                found.add(message.nsqd_address)
                await trio.sleep(1)
                message.finish()
                if found == set(brokers):
                    break
        assert trio.current_time() < 200


async def test_a_message_without_an_answer_holds_up_the_others_for_its_timeout_only(
    autojump_clock: MockClock,
) -> None:
    """A program that forgets one gets those of another nsqd, and then the forgotten one again."""
    network = Network()
    async with nsqd_in_memory() as one, nsqd_in_memory() as other:
        brokers = {"a:1": one, "b:1": other}
        for address, broker in brokers.items():
            network.hosts[address] = broker.connect
            publish(broker, "t", b"x")
        async with consumer_of(network, *brokers, config=Config(max_in_flight=1)) as consumer:
            messages = aiter(consumer)
            forgotten = await anext(messages)
            touched_s = 30.0
            await trio.sleep_until(touched_s)
            assert forgotten.touch()
            found: list[tuple[bool, int]] = []
            while len(found) < 2:
                message = await anext(messages)
                assert trio.current_time() > touched_s + 60
                found.append((message.nsqd_address == forgotten.nsqd_address, message.attempts))
                message.finish()
            assert sorted(found) == [(False, 1), (True, 2)]
            assert trio.current_time() < 200


# Discovery


class Lookupd:
    """An nsqlookupd that answers with these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked_s: list[float] = []

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        request_timeout_s: float,
        *,
        ssl_context: ssl.SSLContext | None,
    ) -> httpget.Answer:
        self.asked_s.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if not self.addresses:
            raise httpget.GetConnectError("refused")
        producers = [
            {"broadcast_address": host, "tcp_port": int(port)}
            for host, _, port in (address.partition(":") for address in self.addresses)
        ]
        return httpget.Answer(200, {}, json.dumps({"producers": producers}).encode())


async def test_discovered_nsqds_are_consumed(autojump_clock: MockClock) -> None:
    """The consumer connects to all nsqds that the filter allows, also later ones, and keeps those
    that vanish.
    """
    async with nsqd_in_memory() as one, nsqd_in_memory() as other:
        network = Network.of(one, "a:1")
        network.hosts["b:1"] = other.connect
        lookupd = Lookupd("a:1", "unwanted:1")
        async with consumer_of(
            network,
            lookupd_http_addresses=["l:1"],
            get=lookupd.get,
            address_filter=lambda address: address != "unwanted:1",
        ) as consumer:
            await trio.sleep(0.1)
            assert [address for address, _ in network.dialled] == ["a:1"]
            lookupd.addresses = ("b:1",)
            await trio.sleep(150)
            assert consumer.stats().connections == 2
            assert len(network.dialled) == 2


async def test_polling_is_put_off_once_and_then_regular(autojump_clock: MockClock) -> None:
    """The first poll is at once, the second after the interval and a random part of it, then every
    interval.
    """
    lookupd = Lookupd("unreachable:1")
    config = Config(lookupd_poll_interval_s=10, lookupd_poll_jitter=0.3)
    async with consumer_of(
        Network(), lookupd_http_addresses=["l:1"], get=lookupd.get, config=config
    ):
        await trio.sleep(50)
    gaps = [b - a for a, b in pairwise(lookupd.asked_s)]
    assert lookupd.asked_s[0] == 0
    assert 10 < gaps[0] <= 13
    assert gaps[1:] == pytest.approx([10.0] * len(gaps[1:]))


async def test_who_finds_no_nsqd_asks_again_soon(autojump_clock: MockClock) -> None:
    """The gaps between polls double until they are as long as the interval."""
    lookupd = Lookupd()
    async with consumer_of(Network(), lookupd_http_addresses=["l:1"], get=lookupd.get):
        await trio.sleep(300)
    gaps = [b - a for a, b in pairwise(lookupd.asked_s)]
    for gap, least in zip(gaps, (1, 2, 4, 8, 16, 32), strict=False):
        assert least <= gap <= 1.5 * least
    assert gaps[6:] == pytest.approx([60.0] * len(gaps[6:]))


async def test_a_closed_connection_asks_at_once(autojump_clock: MockClock) -> None:
    """A lost connection causes a poll at once, but at most one a second."""
    async with nsqd_in_memory() as broker:
        network = Network.of(broker, "a:1")
        lookupd = Lookupd("a:1")
        async with consumer_of(
            network, lookupd_http_addresses=["l:1"], get=lookupd.get
        ) as consumer:
            await trio.sleep(5)
            network.links[0].incoming.break_with(ConnectionResetError("reset"))
            await trio.sleep(0.01)
            assert consumer.stats().connections == 1
            network.hosts["a:1"] = lambda transport: transport.close()
            network.links[1].incoming.break_with(ConnectionResetError("reset"))
            began = len(network.dialled)
            await trio.sleep(30)
            assert len(network.dialled) - began <= 31


async def test_an_nsqd_that_is_restarted_is_found_again_soon(autojump_clock: MockClock) -> None:
    """Polls follow in doubling gaps, long before the next regular one."""
    async with nsqd_in_memory() as broker:
        network = Network.of(broker, "a:1")
        lookupd = Lookupd("a:1")
        async with consumer_of(
            network, lookupd_http_addresses=["l:1"], get=lookupd.get
        ) as consumer:
            await trio.sleep(5)
            serve, lookupd.addresses = network.hosts.pop("a:1"), ("unreachable:1",)
            network.links[0].incoming.break_with(ConnectionResetError("reset"))
            await trio.sleep(12)
            network.hosts["a:1"], lookupd.addresses = serve, ("a:1",)
            await trio.sleep(12)
            assert consumer.stats().connections == 1
            await trio.sleep(200)
    gaps = [b - a for a, b in pairwise(lookupd.asked_s[1:])]
    for gap, least in zip(gaps, (1, 2, 4, 8, 16, 32), strict=False):
        assert least <= gap <= 1.5 * least
    assert gaps[6:] == pytest.approx([60.0] * len(gaps[6:]))


@pytest.mark.parametrize("gateway", [False, True])
async def test_without_nsqlookupds_those_that_were_found_are_connected_again(
    gateway: bool,
    autojump_clock: MockClock,
) -> None:
    """While no nsqlookupd can be reached, also behind a gateway, the last answer of each holds."""
    async with nsqd_in_memory() as one, nsqd_in_memory() as other:
        network = Network.of(one, "a:1")
        network.hosts["b:1"] = other.connect
        lookupds = {"l:1": Lookupd("a:1"), "m:1": Lookupd("a:1", "b:1")}

        async def get(url: str, *args: Any, **options: Any) -> httpget.Answer:
            lookupd = lookupds[url[len("http://") :][:3]]
            if gateway and not lookupd.addresses:
                return httpget.Answer(502, {}, b"<html>Bad Gateway</html>")
            return await lookupd.get(url, *args, **options)

        async with consumer_of(network, lookupd_http_addresses=lookupds, get=get) as consumer:
            await trio.sleep(200)
            assert consumer.stats().connections == 2
            for lookupd in lookupds.values():
                lookupd.addresses = ()
            for link in network.links:
                link.incoming.break_with(ConnectionResetError("reset"))
            await trio.sleep(2)
            assert consumer.stats().connections == 2


async def test_what_no_nsqlookupd_knows_any_more_is_not_connected_again(
    autojump_clock: MockClock,
) -> None:
    """Reconnecting would create a deleted topic again."""
    async with nsqd_in_memory() as broker:
        network = Network.of(broker, "a:1")
        lookupd = Lookupd("a:1")
        is_known = True

        async def get(*args: Any, **options: Any) -> httpget.Answer:
            found = await lookupd.get(*args, **options)
            return found if is_known else httpget.Answer(404, {}, b'{"message":"TOPIC_NOT_FOUND"}')

        async with consumer_of(network, lookupd_http_addresses=["l:1"], get=get) as consumer:
            await trio.sleep(1)
            assert consumer.stats().connections == 1
            is_known = False
            network.links[0].incoming.break_with(ConnectionResetError("reset"))
            await trio.sleep(10)
            lookupd.addresses = ()
            await trio.sleep(100)
            assert len(network.dialled) == 1


async def test_nsqlookupds_can_be_added(autojump_clock: MockClock) -> None:
    """A consumer without nsqlookupd can get one."""
    async with nsqd_in_memory() as one, nsqd_in_memory() as other:
        network = Network.of(one)
        network.hosts["b:1"] = other.connect
        async with consumer_of(network, get=Lookupd("b:1").get) as consumer:
            consumer.add_lookupd("l:1")
            await trio.sleep(0.1)
            assert consumer.stats().connections == 2
            with pytest.raises(ClientError):
                consumer.remove_lookupd("l:1")


async def test_a_consumer_that_does_not_run_takes_no_nsqlookupd() -> None:
    """Before its start and after its end."""
    network = Network().held()
    consumer = consumer_of(network, lookupd_http_addresses=("a:1",), get=no_lookupd)
    with pytest.raises(StoppedError):
        consumer.add_lookupd("b:1")
    async with consumer:
        consumer.add_lookupd("c:1")
    with pytest.raises(StoppedError):
        consumer.add_lookupd("d:1")


async def no_lookupd(*args: Any, **kwargs: Any) -> httpget.Answer:
    raise httpget.GetConnectError("refused")
