"""Publishing (trionsq.client.producer). Spec: client, section 2."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.client.network import ADDRESS, Network
from trionsq.client import (
    Config,
    ConfigError,
    ConnectError,
    NotConnectedError,
    Producer,
    ProtocolError,
    StoppedError,
)
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import frames


async def test_what_is_published_is_there() -> None:
    """Single, many and deferred messages reach nsqd."""
    async with nsqd_in_memory() as broker:
        network = Network.of(broker)
        async with Producer(ADDRESS, dial=network.dial) as producer:
            await producer.ping()
            await producer.publish("t", b"1")
            await producer.publish_many("t", [b"2", b"3"])
            await producer.publish_deferred("t", b"4", 0.5)
            await (await producer.begin_publish("t", b"5")).wait()
        assert broker.topic("t").core.message_count == 5
        assert len(network.dialled) == 1


async def test_many_tasks_share_one_connection() -> None:
    """Their commands do not wait for each other's answers."""
    network = Network().held()
    async with trio.open_nursery() as nursery, Producer(ADDRESS, dial=network.dial) as producer:
        for number in range(100):
            nursery.start_soon(producer.publish, "t", b"%d" % number)
        peer = await network.peer()
        await peer.identify()
        bodies = set()
        for _ in range(100):
            assert await peer.line() == b"PUB t"
            bodies.add(await peer.body())
        assert bodies == {b"%d" % number for number in range(100)}
        await peer.say(frames.OK * 100)
    assert len(network.dialled) == 1


@pytest.mark.parametrize(("topic", "body"), [("no good", b"x"), ("t", b"")])
async def test_what_nsqd_would_refuse_anyhow_is_not_sent(topic: str, body: bytes) -> None:
    """An invalid message raises ValueError, because nsqd would close the connection."""
    network = Network()
    async with Producer(ADDRESS, dial=network.dial) as producer:
        with pytest.raises(ValueError, match=r"name|body"):
            await producer.publish(topic, body)
        with pytest.raises(ValueError, match=r"name|body"):
            await producer.publish_many(topic, [body])
        with pytest.raises(ValueError, match=r"name|body|delay"):
            await producer.publish_deferred(topic, body, -1)
    assert not network.dialled


async def test_a_refusal_raises_and_the_next_publish_connects_anew() -> None:
    """nsqd closes after an error; the producer retries nothing."""
    async with nsqd_in_memory(max_msg_size=3) as broker:
        network = Network.of(broker)
        async with Producer(ADDRESS, dial=network.dial) as producer:
            with pytest.raises(ProtocolError, match="E_BAD_MESSAGE"):
                await producer.publish("t", b"four")
            await producer.publish("t", b"3")
        assert broker.topic("t").core.message_count == 1
        assert len(network.dialled) == 2


async def test_waiting_calls_fail_when_the_connection_dies() -> None:
    """All of them fail, and the next publish connects again."""
    network = Network().held()
    failed = []

    async with trio.open_nursery() as nursery, Producer(ADDRESS, dial=network.dial) as producer:

        async def publish() -> None:
            with pytest.raises(NotConnectedError):
                await producer.publish("t", b"x")
            failed.append(1)

        for _ in range(3):
            nursery.start_soon(publish)
        peer = await network.peer()
        await peer.identify()
        for _ in range(3):
            await peer.line()
            await peer.body()
        peer.stream.close()
        await wait_all_tasks_blocked()
        assert len(failed) == 3
        nursery.start_soon(producer.publish, "t", b"y")
        peer = await network.peer()
        await peer.identify()
        await peer.line()
        await peer.say(frames.OK)


async def test_it_goes_on_to_the_next_nsqd() -> None:
    """After a failed attempt and after a lost connection; nsqd_address names the last one."""
    network = Network().held("b:1").held("c:1")
    async with (
        trio.open_nursery() as nursery,
        Producer("a:1", "b:1", "c:1", dial=network.dial) as producer,
    ):
        assert producer.nsqd_address == ""
        for address in ("b:1", "c:1", "b:1"):
            nursery.start_soon(producer.publish, "t", b"x")
            peer = await network.peer(address)
            await peer.identify()
            await peer.line()
            await peer.body()
            await peer.say(frames.OK)
            await wait_all_tasks_blocked()
            peer.stream.close()
            await wait_all_tasks_blocked()
            assert producer.nsqd_address == address
    assert [address for address, _ in network.dialled] == ["a:1", "b:1", "c:1", "a:1", "b:1"]


async def test_no_nsqd_at_all() -> None:
    """The error names all addresses; so does that of the next attempt."""
    async with Producer("a:1", "b:1", dial=Network().dial) as producer:
        for _ in range(2):
            with pytest.raises(ConnectError, match=r"a:1.*b:1|b:1.*a:1"):
                await producer.publish("t", b"x")


async def test_it_works_only_inside_its_context() -> None:
    """Before and after ``async with`` it raises StoppedError."""
    producer = Producer(ADDRESS, dial=Network().dial)
    with pytest.raises(StoppedError):
        await producer.publish("t", b"x")
    async with producer:
        pass
    with pytest.raises(StoppedError):
        await producer.publish("t", b"x")
    with pytest.raises(ValueError, match="address"):
        Producer()


async def test_the_end_fails_what_waits_with_stopped(autojump_clock: MockClock) -> None:
    """A publish of a task outside the body raises StoppedError."""
    network = Network().held()
    async with trio.open_nursery() as nursery:

        async def publish() -> None:
            with pytest.raises(StoppedError):
                await producer.publish("t", b"x")

        async with Producer(ADDRESS, dial=network.dial) as producer:
            nursery.start_soon(publish)
            peer = await network.peer()
            await peer.identify()
            await peer.line()


async def test_exceptions_of_the_body_come_out_as_they_are() -> None:
    """An exception of the body is not wrapped in a group."""
    async with nsqd_in_memory() as broker:
        with pytest.raises(KeyError, match="mine"):
            async with Producer(ADDRESS, dial=Network.of(broker).dial) as producer:
                await _fail_after(producer.publish("t", b"x"))


async def _fail_after(first: Awaitable[None]) -> None:
    await first
    raise KeyError("mine")


async def test_a_bad_file_is_known_at_the_beginning() -> None:
    """Entering the producer raises, not the first publish."""
    config = Config(tls_v1=True, tls_root_ca_file="/no/such/ca.pem")
    with pytest.raises(ConfigError, match=r"tls_root_ca_file: .*/no/such/ca\.pem"):
        async with Producer(ADDRESS, config=config, dial=Network().dial):
            pass


async def test_a_cancelled_publish_leaves_the_connection_in_step() -> None:
    """Cancelled at each await once: the next publish gets its own answer, and each message is
    published once.
    """
    async with nsqd_in_memory() as broker:
        network = Network.of(broker)
        cancelled = 0
        for steps in range(40):
            async with Producer(ADDRESS, dial=network.dial) as producer:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_cancel_after, steps, scope)
                        await producer.publish("cancelled", b"x")
                        scope.cancel()
                cancelled += scope.cancelled_caught
                await producer.publish("t", b"%d" % steps)
        assert cancelled
        assert broker.topic("t").core.message_count == 40


async def _cancel_after(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_stalled_nsqd_does_not_hold_the_end(autojump_clock: MockClock) -> None:
    """The connection is closed after a second, whatever nsqd does."""
    network = Network().held()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            peer = await network.peer()
            await peer.identify()
            await peer.line()

        nursery.start_soon(serve)
        async with Producer(ADDRESS, dial=network.dial) as producer:
            await producer.ping()
            await wait_all_tasks_blocked()
    assert trio.current_time() <= 1
    assert network.links[0].is_closed
