"""What connections can make the broker hold: their number, their silence, what they do not read."""

from __future__ import annotations

import logging
import socket

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import check_balances, check_nobody_left, connect, numbered, publish
from trionsq.daemon.listener import accept_forever, open_sockets
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory
from trionsq.testing.streams import memory_connection
from trionsq.transports.trio_sockets import SocketTransport
from trionsq.wire import commands
from trionsq.wire.states import MAGIC_V2

KIB = 1024
READ_MAX = 128 * KIB
# Answers to what one read brought: an IDENTIFY's is about nine times as long as the command.
ANSWERS_MAX = 10 * READ_MAX
# What the pump joins for one write, and one more delivery of small messages.
MESSAGES_MAX = 2 * 256 * KIB + 512 * 34
INBOX_NBYTES_MAX = 4 * 1024 * KIB
UNKNOWN_ID = b"0" * 16

# --max-connections


async def test_connections_beyond_the_limit_are_closed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, without a frame; those that are there go on, and there is room when one goes."""
    async with nsqd_in_memory(max_connections=2) as broker:

        def come() -> Conversation:
            stream, transport = memory_connection()
            broker.accept(transport)
            if not transport.is_closed:
                stream.send_nowait(MAGIC_V2)
            return Conversation(stream)

        first, second, third = come(), come(), come()
        assert await third.end() == []
        assert (broker.admission.connections, broker.admission.refused) == (2, 1)
        await first.say(commands.publish("t", b"x"))
        await first.response()
        second.close()
        await wait_all_tasks_blocked()
        fourth = come()
        await fourth.say(commands.publish("t", b"x"))
        await fourth.response()
        assert broker.admission.refused == 1


async def test_refusals_are_logged_once_a_second(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A flood of them costs a line; the next line tells how many there were."""
    async with nsqd_in_memory(max_connections=1) as broker:
        connect(broker)
        with caplog.at_level(logging.WARNING):
            for _ in range(500):
                broker.accept(memory_connection()[1])
            await trio.sleep(1)
            broker.accept(memory_connection()[1])
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2
        assert "1 refused" in lines[0]
        assert "500 refused" in lines[1]
        assert broker.admission.refused == 501


async def test_a_connection_on_its_last_words_counts(autojump_clock: MockClock) -> None:
    """It has a descriptor still, though it is no client any more; then it is given back."""
    async with nsqd_in_memory(max_connections=1) as broker:
        talk, client, _ = connect(broker)
        await talk.say(b"NONSENSE\n")
        await wait_all_tasks_blocked()
        assert client not in broker.clients
        assert not broker.admission.has_room
        await talk.end()
        talk.close()
        await wait_all_tasks_blocked()
        assert broker.admission.connections == 0


async def test_there_is_no_limit_by_default(autojump_clock: MockClock) -> None:
    """0 means any number."""
    async with nsqd_in_memory() as broker:
        for _ in range(300):
            broker.accept(memory_connection()[1])
        assert (broker.admission.connections, broker.admission.refused) == (300, 0)


async def test_real_sockets_beyond_the_limit_are_closed() -> None:
    """The peer sees the end of the stream."""
    async with nsqd_in_memory(max_connections=1) as broker, trio.open_nursery() as nursery:
        (sock,) = await open_sockets("127.0.0.1:0")
        port = sock.getsockname()[1]
        await nursery.start(
            accept_forever, sock, lambda accepted: broker.accept(SocketTransport(accepted))
        )
        with trio.fail_after(60):
            first = await trio.open_tcp_stream("127.0.0.1", port)
            await first.send_all(MAGIC_V2 + commands.publish("t", b"x"))
            assert await first.receive_some()
            second = await trio.open_tcp_stream("127.0.0.1", port)
            assert await second.receive_some() == b""
            await first.aclose()
            await second.aclose()
        nursery.cancel_scope.cancel()


async def test_a_peer_that_is_gone_before_it_is_served(autojump_clock: MockClock) -> None:
    """Its address can't be had any more; whoever accepts the next one goes on."""
    (listener,) = await open_sockets("127.0.0.1:0")
    peer = socket.create_connection(listener.getsockname())
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    accepted, _ = listener.accept()
    peer.close()
    with pytest.raises(OSError, match="not connected"):
        SocketTransport(accepted)
    accepted.close()
    listener.close()


# Silence


@pytest.mark.parametrize(
    "said",
    [
        b"",
        MAGIC_V2[:2],
        MAGIC_V2,
        MAGIC_V2 + b"IDENT",
        MAGIC_V2 + b"PUB t\n\x00\x00",
        MAGIC_V2 + b"PUB t\n\x00\x00\x00\x09half",
        MAGIC_V2 + b"IDENTIFY\n\x00\x00\x00\x09{",
        MAGIC_V2 + b"MPUB t\n\x00\x00\x00\x20\x00\x00\x00\x02\x00\x00\x00\x01x\x00",
    ],
)
@pytest.mark.parametrize("trickles", [False, True])
async def test_half_open_connections_end(
    autojump_clock: MockClock, said: bytes, trickles: bool
) -> None:
    """Nothing, half a magic, line or body: closed after two intervals, also if it comes bytewise.

    None of it is a command, so bytes that trickle in keep nobody.
    """
    async with nsqd_in_memory() as broker:
        stream, transport = memory_connection()
        client = broker.connect(transport)
        start_s = trio.current_time()
        for byte in said if trickles else ():
            stream.send_nowait(bytes([byte]))
            await trio.sleep(1)
        if not trickles:
            stream.send_nowait(said)
        while await stream.receive_some():
            pass  # a heartbeat
        # By the default interval; a command line that was seen starts it anew.
        assert 60 <= trio.current_time() - start_s <= 60 * 9 / 8 + len(said)
        await wait_all_tasks_blocked()
        assert client not in broker.clients
        assert transport.is_closed
        assert broker.topics.keys() <= {"t"}
        assert not any(topic.core.message_count for topic in broker.topics.values())
        check_nobody_left(broker)


async def test_a_body_at_a_byte_a_second_holds_no_more_than_came(
    autojump_clock: MockClock,
) -> None:
    """A publisher of 5 MB is not given 5 MB in advance, and ends after two intervals."""
    async with nsqd_in_memory(max_msg_size=5_000_000) as broker:
        talk, client, _ = connect(broker)
        await talk.say(b"PUB t\n" + (5_000_000).to_bytes(4, "big"))
        sent = 0
        while client in broker.clients:
            talk.stream.send_nowait(b"x")
            sent += 1
            await trio.sleep(1)
            assert client.parser.buffered <= sent + 10
        assert sent < 80
        assert not any(topic.core.message_count for topic in broker.topics.values())


# What is not read


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(commands.publish("t", b"x"), id="PUB"),
        pytest.param(commands.publish_many("t", [b"x"]), id="MPUB"),
        pytest.param(commands.publish_deferred("t", 1, b"x"), id="DPUB"),
        pytest.param(commands.identify({}), id="IDENTIFY"),
        pytest.param(commands.identify({"feature_negotiation": True}), id="IDENTIFY with features"),
    ],
)
async def test_answers_are_bounded(autojump_clock: MockClock, flood: bytes) -> None:
    """Whatever is asked over and over: no more is held than the answers to one read."""
    async with nsqd_in_memory(mem_queue_size=10**6) as broker:
        talk, client, _ = connect(broker, capacity_bytes=4 * KIB)
        data = flood * (4 * READ_MAX // len(flood))
        most = 0
        with trio.move_on_after(20):
            for start in range(0, len(data), READ_MAX):
                await talk.say(data[start : start + READ_MAX])
        for _ in range(10):
            await wait_all_tasks_blocked()
            most = max(most, client.output.pending)
        assert 0 < most <= ANSWERS_MAX
        assert broker.queued_output_bytes == client.output.pending
        assert client.parser.buffered <= READ_MAX


@pytest.mark.parametrize("command", [b"FIN", b"REQ", b"TOUCH"])
async def test_failures_are_bounded(autojump_clock: MockClock, command: bytes) -> None:
    """Error frames that leave the connection open are longer than what they answer."""
    async with nsqd_in_memory() as broker:
        talk, client, _ = connect(broker, capacity_bytes=2 * READ_MAX)
        await talk.subscribe("t", "c")
        end = b" 0\n" if command == b"REQ" else b"\n"
        line = command + b" " + UNKNOWN_ID + end
        talk.stream.send_nowait(line * (2 * READ_MAX // len(line)))
        await wait_all_tasks_blocked()
        talk.stream.send_nowait(line * (READ_MAX // len(line)))
        await wait_all_tasks_blocked()
        assert 0 < client.output.pending <= ANSWERS_MAX


async def test_heartbeats_are_bounded(autojump_clock: MockClock) -> None:
    """One that was not taken is not followed by another."""
    async with nsqd_in_memory() as broker:
        _talk, client, _ = connect(broker, capacity_bytes=10)
        most = 0
        for _ in range(1000):
            await trio.sleep(0.25)
            most = max(most, client.output.pending)
            if client not in broker.clients:
                break
        assert client not in broker.clients
        assert most < 100


@pytest.mark.parametrize("size", [100, 100 * KIB, 300 * KIB, 1024 * KIB])
@pytest.mark.parametrize("capacity_bytes", [KIB, 64 * KIB])
async def test_messages_are_bounded(
    autojump_clock: MockClock, size: int, capacity_bytes: int
) -> None:
    """RDY 2500 and a backlog on disk: of large messages no 64 are read ahead for who reads none."""
    async with nsqd_in_memory(mem_queue_size=0) as broker:
        broker.topic("t").channel("c")
        for body in numbered(60, size=size):
            publish(broker, "t", body)
        await wait_all_tasks_blocked()
        talk, client, _ = connect(broker, capacity_bytes=capacity_bytes)
        await talk.subscribe("t", "c", ready=2500)
        most = 0
        for _ in range(8):
            # Commands come too, so that some deliveries go out with the answers.
            talk.stream.send_nowait(commands.touch(UNKNOWN_ID) * 5)
            await wait_all_tasks_blocked()
            most = max(most, client.output.pending)
        assert most <= max(MESSAGES_MAX, size + 256 * KIB + 34 * 64) + ANSWERS_MAX
        core = broker.topics["t"].channels["c"].core
        held_nbytes = core.in_flight_count * size
        assert held_nbytes <= INBOX_NBYTES_MAX + most + capacity_bytes + size
        check_balances(broker)


async def test_messages_that_come_with_credit_are_bounded(autojump_clock: MockClock) -> None:
    """What goes out with the answers, in the client's own turn, is no exception."""
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        for body in numbered(10, size=1024 * KIB):
            publish(broker, "t", body)
        await wait_all_tasks_blocked()
        talk, client, _ = connect(broker, capacity_bytes=4 * KIB)
        await talk.subscribe("t", "c")
        await talk.say(commands.ready(1) + commands.ready(2) + commands.ready(5))
        most = 0
        for _ in range(5):
            await wait_all_tasks_blocked()
            most = max(most, client.output.pending)
        assert 0 < most <= 1024 * KIB + 256 * KIB + 100


async def test_a_client_that_reads_gets_large_messages_in_order(autojump_clock: MockClock) -> None:
    """The bound on what waits for the pump holds nothing up for good."""
    bodies = numbered(40, size=400 * KIB)
    async with nsqd_in_memory() as broker:
        broker.topic("t").channel("c")
        for body in bodies:
            publish(broker, "t", body)
        await wait_all_tasks_blocked()
        talk, client, _ = connect(broker, capacity_bytes=64 * KIB)
        await talk.subscribe("t", "c", ready=2500)
        assert [message.body for message in await talk.messages(40)] == bodies
        assert client.pump._inbox_bytes == 0
        check_balances(broker)


async def test_many_who_read_nothing_leave_others_alone(autojump_clock: MockClock) -> None:
    """500 half-open connections and 50 stalled consumers: a pair beside them loses nothing."""
    async with nsqd_in_memory() as broker:
        for number in range(500):
            broker.connect(memory_connection()[1])
            if number % 10 == 0:
                stalled, _, _ = connect(broker, capacity_bytes=KIB)
                await stalled.subscribe("t", f"stalled{number}", ready=2500)
        producer, consumer = Conversation.begin(broker), Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=100)
        bodies = numbered(1000, size=KIB)
        got: list[bytes] = []

        async def consume() -> None:
            while len(got) < len(bodies):
                message = await consumer.message()
                got.append(message.body)
                await consumer.say(commands.finish(message.message_id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            for body in bodies:
                await producer.say(commands.publish("t", body))
                await producer.response()
        assert got == bodies
        assert broker.queued_output_bytes <= 50 * MESSAGES_MAX
        check_balances(broker)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\x1b[2J\rFATAL: gone", r"invalid command \x1b[2J\rFATAL:"),
        (b"x" * 16_000, "x" * 100),
        ("gr\u00fcn".encode(), "invalid command gr\u00fcn"),
    ],
)
async def test_the_log_is_not_written_by_clients(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, line: bytes, shown: str
) -> None:
    """What a client sent instead of a command is shown in part, and nothing in it acts."""
    async with nsqd_in_memory() as broker:
        talk, _, _ = connect(broker)
        await talk.say(line + b"\n")
        await talk.end()
    (message,) = (one.getMessage() for one in caplog.records if one.levelno == logging.ERROR)
    assert shown in message
    assert message.isprintable()
    assert len(message) < 300
