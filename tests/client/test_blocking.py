"""The blocking client: threads, forks, the end of a program, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client.worlds import channel_stats, until
from trionsq.client import Config, ConnectError, NotConnectedError, ProtocolError, StoppedError
from trionsq.client.blocking import Consumer, Message, Producer, QueueFullError
from trionsq.testing import OpenBroker, broker_in_thread
from trionsq.wire import frames

# The state of a client that has sent CLS.
CLOSING = 4
CONFIG = Config(max_in_flight=100, lookupd_poll_interval_s=0.1, backoff_multiplier_s=0.05)


@pytest.fixture(scope="module")
def nsqd() -> Iterator[OpenBroker]:
    """An nsqd in a thread."""
    with broker_in_thread(max_msg_size=100_000) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Each test closes what it opens."""
    yield
    until(lambda: not any(t.name.startswith("trionsq-") for t in threading.enumerate()))


def consume(nsqd: OpenBroker, topic: str, count: int, concurrency: int = 4) -> Counter[bytes]:
    """Handle so many messages."""
    bodies = Counter[bytes]()
    lock = threading.Lock()

    def handle(message: Message) -> None:
        with lock:
            bodies[message.body] += 1
            if bodies.total() == count:
                consumer.stop()

    consumer = Consumer(topic, "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG)
    consumer.run(handle, concurrency, handle_signals=False)
    assert consumer.stats().finished == count
    return bodies


def test_many_threads_publish(nsqd: OpenBroker) -> None:
    """Each message that a thread has published is there once."""
    expected = Counter[bytes]()

    def work(name: int) -> None:
        own = [b"%d-%d" % (name, number) for number in range(300)]
        for body in own[:100]:
            producer.publish("threads", body)
        producer.publish_many("threads", own[100:200])
        producer.publish_deferred("threads", own[200], 0.01)
        waiting = [producer.begin_publish("threads", body) for body in own[201:]]
        for confirmed in waiting:
            confirmed.result()
        expected.update(own)

    with Producer(nsqd.tcp_address) as producer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert producer.unconfirmed == 0
    assert expected.total() == 2400
    assert consume(nsqd, "threads", 2400) == expected


def test_what_publish_raises(nsqd: OpenBroker) -> None:
    """The errors are those of the async client; an error ends neither the producer nor others."""
    with pytest.raises(ValueError, match="address"):
        Producer()
    with pytest.raises(ValueError, match="port"):
        Producer("nowhere")
    with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(ValueError, match="topic name"):
            producer.publish("not a topic", b"x")
        with pytest.raises(ProtocolError, match="E_BAD_MESSAGE"):
            producer.publish("errors", b"x" * 200_000)
        producer.publish("errors", b"x")
    with pytest.raises(StoppedError):
        producer.publish("errors", b"x")
    with Producer("127.0.0.1:1") as unreachable:
        for _ in range(2):
            with pytest.raises(ConnectError):
                unreachable.publish("errors", b"x")
    producer.close()


@contextmanager
def silent_nsqd() -> Iterator[tuple[str, threading.Event]]:
    """An nsqd that confirms nothing; when the event is set it is gone."""
    proceed = threading.Event()

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.recv(65536)
            accepted.sendall(frames.response(b"{}"))
            proceed.wait()
            listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield address, proceed
        finally:
            proceed.set()
            thread.join()


def test_a_full_queue_raises() -> None:
    """With ``when_full="raise"`` nothing waits; close gives up after its time, and says so."""
    with silent_nsqd() as (address, _):
        producer = Producer(address, max_unconfirmed=2, when_full="raise")
        waiting = [producer.begin_publish("t", b"x") for _ in range(2)]
        with pytest.raises(QueueFullError):
            producer.begin_publish("t", b"x")
        with pytest.raises(QueueFullError):
            producer.publish("t", b"x")
        assert producer.unconfirmed == 2
        producer.close(timeout_s=0.05)
        for confirmed in waiting:
            with pytest.raises((StoppedError, NotConnectedError)):
                confirmed.result()


def test_a_full_queue_waits() -> None:
    """By default a publish waits for room; it gives up at its time limit, and when the producer is
    closed, and goes on when the answers come."""
    with silent_nsqd() as (address, proceed), Producer(address, max_unconfirmed=1) as producer:
        with pytest.raises(TimeoutError):
            producer.publish("t", b"x", timeout_s=0.05)
        with pytest.raises(TimeoutError):
            producer.publish("t", b"x", timeout_s=0.05)
        errors: list[Exception] = []

        def publish() -> None:
            try:
                producer.publish("t", b"x")
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        until(lambda: producer._waiting == 1)
        # The connection ends: the first gets its error, and the next one tries to connect.
        proceed.set()
        thread.join()
        assert isinstance(errors[0], ConnectError | NotConnectedError)
        blocked = threading.Thread(target=publish)
        with producer._changed:
            producer._begun += 1
        blocked.start()
        until(lambda: producer._waiting == 1)
        with producer._changed:
            producer._begun -= 1
        producer.close()
        blocked.join()
        assert isinstance(errors[1], StoppedError)


def run_program(name: str, nsqd: OpenBroker, topic: str, *rest: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.client.blocking_programs", name, nsqd.tcp_address]
    return subprocess.Popen(
        [*command, topic, *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_the_end_of_a_program_waits_for_nsqd(nsqd: OpenBroker) -> None:
    """What was begun is published when the program ends, without a word from it."""
    with run_program("leave", nsqd, "leave") as process:
        _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    assert consume(nsqd, "leave", 2000).keys() == {b"%d" % number for number in range(2000)}


def test_forks_at_any_time(nsqd: OpenBroker) -> None:
    """Parent and children publish with one object, while threads of the parent do: each message is
    there once, and nobody hangs."""
    with run_program("fork", nsqd, "fork") as process:
        _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    expected = {f"thread{n}-{number}" for n in range(4) for number in range(200)}
    expected |= {
        f"{kind}{n}-{m}" for kind in ("child", "late") for n in range(4) for m in range(100)
    }
    expected |= {f"parent-{number}" for number in range(100)}
    found = consume(nsqd, "fork", len(expected))
    assert {body.decode() for body in found} == expected


def test_a_handler_that_fails(nsqd: OpenBroker) -> None:
    """The message is requeued and given up after max_attempts; touch and requeue work in threads;
    ``auto_response`` leaves the answer to the program."""
    attempts = Counter[bytes]()
    given_up: list[bytes] = []
    later: list[Message] = []

    def handle(message: Message) -> None:
        attempts[message.body] += 1
        message.touch()
        if message.body == b"bad":
            raise ValueError("bad")
        if message.body == b"later":
            message.auto_response = False
            later.append(message)
        if message.body == b"again" and message.attempts == 1:
            message.requeue(0, backoff=False)

    def give_up(message: Message) -> None:
        given_up.append(message.body)
        later[0].finish()
        consumer.stop()

    config = Config(
        max_in_flight=10, max_attempts=2, default_requeue_delay_s=0, max_backoff_duration_s=0
    )
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many("failing", [b"good", b"later", b"again", b"bad"])
    consumer = Consumer(
        "failing", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=config, on_give_up=give_up
    )
    consumer.run(handle, 2, handle_signals=False)
    assert given_up == [b"bad"]
    assert attempts == {b"good": 1, b"later": 1, b"again": 2, b"bad": 2}
    stats = channel_stats(nsqd, "failing", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (0, 0, 0)
    with pytest.raises(RuntimeError, match="once"):
        consumer.run(handle)


def test_an_nsqd_that_cannot_be_reached() -> None:
    """The error of the async client reaches the caller, and no thread is left."""
    consumer = Consumer("t", "c", nsqd_tcp_addresses=["127.0.0.1:1"], config=CONFIG)
    with pytest.raises(ConnectError):
        consumer.run(print, handle_signals=False)


def test_nsqd_restarts(tmp_path: Path) -> None:
    """An idempotent producer repeats by itself; the consumer connects again."""
    bodies: set[bytes] = set()
    with broker_in_thread(tmp_path) as opened:
        address = opened.tcp_address
    consumer = Consumer("t", "c", nsqd_tcp_addresses=[address], config=CONFIG)

    def run() -> None:
        consumer.run(lambda message: bodies.add(message.body), 3)

    with broker_in_thread(tmp_path, tcp_address=address), Producer(address) as producer:
        producer.publish("t", b"before")
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: len(bodies) == 1)
        with pytest.raises(StoppedError):
            _close_while_waiting(address)
    with broker_in_thread(tmp_path, tcp_address=address), Producer(address) as producer:
        producer.publish("t", b"after")
        until(lambda: len(bodies) == 2)
        consumer.stop()
        thread.join()


def _close_while_waiting(address: str) -> None:
    with Producer(address) as producer:
        producer.publish("t", b"before")
    producer.publish("t", b"after")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(number: signal.Signals, nsqd: OpenBroker) -> None:
    """After SIGTERM or SIGINT the messages in hand are handled and finished, the rest stays."""
    topic = f"drain-{number.name}"
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, [b"%d" % number for number in range(1000)])
    with run_program("consume", nsqd, topic, "0.01") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"handles\n"
        process.send_signal(number)
        said, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    handled, finished = map(int, said.split())
    stats = channel_stats(nsqd, topic, "c")
    assert handled == finished == 1000 - stats["depth"] < 1000
    assert (stats["in_flight_count"], stats["timeout_count"], stats["clients"]) == (0, 0, [])


def test_a_second_signal_ends_at_once(nsqd: OpenBroker) -> None:
    """Handlers that do not end are not waited for; their messages go back to nsqd."""
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many("stuck", [b"%d" % number for number in range(100)])
    with run_program("consume", nsqd, "stuck", "3600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"handles\n"
        process.send_signal(signal.SIGTERM)
        until(lambda: channel_stats(nsqd, "stuck", "c")["clients"][0]["state"] == CLOSING)
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=60)
    assert complaints.endswith(b"KeyboardInterrupt\n")
    stats = channel_stats(nsqd, "stuck", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (100, 0, 0)


def test_a_signal_may_come_to_any_thread(nsqd: OpenBroker) -> None:
    """The kernel gives it to a handler's thread: the main thread wakes, from its wait for the
    messages and from that for the handlers."""
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("any-thread", b"x")
    consumer = Consumer("any-thread", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG)
    proceed = threading.Event()

    def handle(message: Message) -> None:
        message.finish()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        until(consumer._background.ended.done)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        proceed.wait()

    with pytest.raises(KeyboardInterrupt):
        consumer.run(handle)
    proceed.set()


def test_an_interruption_amid_the_end(nsqd: OpenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers' threads end, however late the second signal comes."""

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with Producer(nsqd.tcp_address) as producer:
        producer.publish("amid-the-end", b"x")
    consumer = Consumer("amid-the-end", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG)
    monkeypatch.setattr(consumer._background, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumer.run(lambda _: consumer.stop(), concurrency=3)


def test_an_interruption_before_the_thread_has_begun(
    nsqd: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the consumer starts ends it too, whatever its thread has done so far."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    for patched in ("_thread.start", "_started.wait"):
        consumer = Consumer("early", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=CONFIG)
        thing, method = patched.split(".")
        monkeypatch.setattr(getattr(consumer._background, thing), method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.run(print, handle_signals=False)
