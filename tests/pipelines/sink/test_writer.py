"""Into real nsqds: everything confirmed, whatever dies; and when it can't be, one clear line."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from pipelines.errors import ColumnsError, PublishError, RowsError, StageError
from pipelines.sink.writers import NsqStreamWriter, NsqWriter, publish
from pipelines.wal.meta import lock_log
from tests.pipelines.sink.committing import run, writer
from tests.pipelines.sink.rows import LIMIT_S, batch, numbers, options, taken
from tests.processes import free_address, running_nsqd, running_nsqlookupd
from tests.secured import make_papers
from trionsq.testing import OpenBroker, broker_in_thread


def topic_of(http_address: str, topic: str) -> dict[str, Any]:
    """nsqd's figures of it; empty if there is none."""
    url = f"http://{http_address}/stats?format=json&topic={topic}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        topics = json.load(answer)["topics"]
    return dict(topics[0]) if topics else {}


def count_at(nsqd: OpenBroker, topic: str = "t") -> int:
    """How many messages the topic has got since nsqd's start."""
    return int(topic_of(nsqd.http_address, topic).get("message_count", 0))


@contextmanager
def mute_server(*answers: bytes) -> Iterator[str]:
    """Speaks as nsqd does, as long as it has answers; each to one read. Then it listens only."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                for answer in answers:
                    connection.recv(1 << 20)
                    frame = (4 + len(answer)).to_bytes(4, "big") + bytes(4) + answer
                    connection.sendall(frame)
                while connection.recv(1 << 20):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "{}:{}".format(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_all_rows_are_confirmed_once(nsqd: OpenBroker) -> None:
    """Of many batches, with empty ones between; the count is told to Spark."""
    batches = [*numbers(0, 20_000), batch([b"x"]).slice(1), *numbers(20_000, 25_000)]
    message = NsqWriter(options(nsqd.tcp_address)).write(iter(batches))
    assert message.rows == 25_000
    found = taken(nsqd.tcp_address, 25_000)
    assert Counter(found) == Counter(b"%d" % number for number in range(25_000))
    assert count_at(nsqd) == 25_000


def test_topics_and_delays_by_column(nsqd: OpenBroker) -> None:
    """Each row where its topic says; nsqd keeps those with a delay back."""
    rows = batch(
        ["a", "b", "c", "d"],
        topic=["one", "two", "one", "two"],
        defer_ms=pa.array([None, 0, 600_000, 600_000], pa.int64()),
    )
    assert NsqStreamWriter(options(nsqd.tcp_address, topic="")).write(iter([rows])).rows == 4
    assert taken(nsqd.tcp_address, 1, "one") == [b"a"]
    assert taken(nsqd.tcp_address, 1, "two") == [b"b"]
    assert (count_at(nsqd, "one"), count_at(nsqd, "two")) == (2, 2)


def test_several_nsqds_get_messages_in_turn() -> None:
    """As many parcels each, from one task."""
    with broker_in_thread() as one, broker_in_thread() as other:
        told = options(one.tcp_address, other.tcp_address, batchMessages="100")
        assert publish(numbers(0, 10_000), told) == 10_000
        assert count_at(one) + count_at(other) == 10_000
        assert count_at(one) == count_at(other)


def test_an_nsqd_that_stops_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    """The others take its share; started again, it has what it had confirmed."""
    with broker_in_thread() as other:
        opened = broker_in_thread(tmp_path)
        one = opened.__enter__()

        def rows() -> Iterator[pa.RecordBatch]:
            for number, each in enumerate(numbers(0, 20_000)):
                if number == 10:
                    # It saves what it has, as after SIGTERM.
                    opened.__exit__(None, None, None)
                yield each

        told = options(one.tcp_address, other.tcp_address, batchMessages="100")
        assert publish(rows(), told) == 20_000
        with broker_in_thread(tmp_path) as again:
            found = taken(again.tcp_address, topic_of(again.http_address, "t")["depth"])
        found += taken(other.tcp_address, count_at(other))
    assert set(found) == {b"%d" % number for number in range(20_000)}


def take_all(http_address: str, address: str) -> list[bytes]:
    """What waits in topic t."""
    return taken(address, topic_of(http_address, "t")["depth"])


def test_an_nsqd_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    """The only one is killed with SIGKILL in the middle and started anew at the same address."""
    address = free_address()
    flags = [f"--tcp-address={address}", "--mem-queue-size=0", "--sync-every=1"]

    async def main() -> int:
        go_on, killed = threading.Event(), trio.Event()
        token = trio.lowlevel.current_trio_token()

        def rows() -> Iterator[pa.RecordBatch]:
            yield from numbers(0, 1000)
            token.run_sync_soon(killed.set)
            assert go_on.wait(LIMIT_S)
            yield from numbers(1000, 2000)

        told = options(address, retries="20", client__dial_timeout="200ms")
        done: list[int] = []
        finished = trio.Event()

        async def write() -> None:
            done.append(await trio.to_thread.run_sync(publish, rows(), told))
            finished.set()

        async with trio.open_nursery() as nursery:
            async with running_nsqd(tmp_path, flags) as nsqd:
                nursery.start_soon(write)
                await killed.wait()
                nsqd.process.kill()
                await nsqd.process.wait()
            go_on.set()
            async with running_nsqd(tmp_path, flags) as nsqd:
                with trio.fail_after(LIMIT_S):
                    await finished.wait()
                found = await trio.to_thread.run_sync(take_all, nsqd.http_address, address)
        assert set(found) == {b"%d" % number for number in range(2000)}
        return done[0]

    assert trio.run(main) == 2000


@contextmanager
def closing_server() -> Iterator[tuple[str, list[int]]]:
    """Takes connections and closes them at once; how many is the list's length."""
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                taken.append(connection.fileno())
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "{}:{}".format(*listener.getsockname()), taken
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(LIMIT_S)


def test_an_nsqd_that_can_not_be_used_does_not_slow_the_others(nsqd: OpenBroker) -> None:
    """It is not tried again for each parcel."""
    with closing_server() as (address, tries):
        told = options(address, nsqd.tcp_address, batchMessages="10", unconfirmed="1")
        assert publish(numbers(0, 10_000), told) == 10_000
        assert 1 <= len(tries) <= 100
    assert count_at(nsqd) == 10_000


def test_without_any_nsqd_it_says_so_after_its_rounds() -> None:
    """Each address with its reason, in one line."""
    one, other = free_address(), free_address()
    reason = "no nsqd accepted 10 messages for t in 2 rounds"
    with pytest.raises(PublishError, match=reason) as caught:
        publish(numbers(0, 10), options(one, other, retries="1"))
    assert one in str(caught.value)
    assert other in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.nsqd(max_msg_size=100)
def test_what_nsqd_refuses_is_not_tried_again(nsqd: OpenBroker) -> None:
    """The address, nsqd's reason and what to do; the retries would take minutes."""
    rows = batch([b"x" * 200])
    with pytest.raises(PublishError, match=r"E_BAD_MESSAGE.*--max-msg-size") as caught:
        publish(iter([rows]), options(nsqd.tcp_address, retries="1000"))
    assert nsqd.tcp_address in str(caught.value)


def test_a_delay_that_nsqd_does_not_grant_is_refused(nsqd: OpenBroker) -> None:
    """A delay above nsqd's --max-req-timeout fails the task."""
    rows = batch([b"x"], defer_ms=pa.array([10**9], pa.int64()))
    with pytest.raises(PublishError, match=r"DPUB timeout 1000000000 out of range.*defer_ms"):
        publish(iter([rows]), options(nsqd.tcp_address))


def test_an_nsqd_that_never_answers_is_given_up() -> None:
    """An nsqd that identifies and then sends no OK fails after the timeout."""
    with mute_server(b"OK") as address, pytest.raises(PublishError, match="no answer within"):
        publish(numbers(0, 10), options(address, retries="0", publishTimeout="200ms"))


def test_an_answer_that_is_not_ok_is_no_confirmation() -> None:
    """Any other response fails the task, because the state of the rows is unknown."""
    with mute_server(b"OK", b"NO") as address, pytest.raises(PublishError, match="answered b'NO'"):
        publish(numbers(0, 10), options(address, retries="0"))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (batch([b"a"], topic=["not ok"]), RowsError),
        (batch([1]), ColumnsError),
    ],
)
def test_bad_rows_fail_the_task(nsqd: OpenBroker, rows: pa.RecordBatch, error: type) -> None:
    """The exception is raised itself, not in a group."""
    with pytest.raises(error):
        publish(iter([rows]), options(nsqd.tcp_address, topic=""))


def test_an_error_of_spark_comes_out_as_it_is(nsqd: OpenBroker) -> None:
    """An exception of the row iterator is raised itself; earlier rows are published."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield from numbers(0, 10)
        raise KeyError("upstream")

    with pytest.raises(KeyError, match="upstream"):
        publish(rows(), options(nsqd.tcp_address))


def wait_for(url: str, text: str) -> None:
    """Query until the response has it."""
    deadline_s = time.monotonic() + LIMIT_S
    while text not in urllib.request.urlopen(url, timeout=60).read().decode():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_nsqds_are_found_by_nsqlookupd(tmp_path: Path) -> None:
    """A new topic is published to the nsqds of nsqlookupd, even if one nsqlookupd is down."""

    async def main() -> None:
        async with running_nsqlookupd() as lookupd:
            flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
            async with running_nsqd(tmp_path, flags) as nsqd:
                url = f"http://{lookupd.http_address}/nodes"
                port = nsqd.tcp_address.rpartition(":")[2]
                await trio.to_thread.run_sync(wait_for, url, port)
                told = options(
                    nsqd__tcp__addresses="",
                    lookupd__http__addresses=f"{free_address()},{lookupd.http_address}",
                )
                assert await trio.to_thread.run_sync(publish, numbers(0, 100), told) == 100
                found = await trio.to_thread.run_sync(taken, nsqd.tcp_address, 100)
                assert len(set(found)) == 100

    trio.run(main)


def test_without_any_nsqlookupd_it_says_so() -> None:
    """The error has the URL."""
    address = free_address()
    told = options(nsqd__tcp__addresses="", lookupd__http__addresses=address)
    with pytest.raises(PublishError, match=f"{address}/nodes"):
        publish(numbers(0, 10), told)


def test_options_of_the_client_are_used(tmp_path: Path) -> None:
    """TLS with a private authority and snappy work; without them nsqd refuses."""
    papers = make_papers(tmp_path)
    with broker_in_thread(tls_required="tcp-https", **papers.nsqd_options) as nsqd:
        told = options(
            nsqd.tcp_address,
            client__tls_root_ca_file=papers.ca,
            client__tls_v1="true",
            client__snappy="true",
        )
        assert publish(numbers(0, 100), told) == 100
        with pytest.raises(PublishError, match=nsqd.tcp_address):
            publish(numbers(0, 100), options(nsqd.tcp_address, retries="0"))
        assert count_at(nsqd) == 100


def test_a_driver_killed_while_publishing_repeats_one_parcel_at_most(
    nsqd: OpenBroker, tmp_path: Path
) -> None:
    """After three kills in mid-batch the repeated microbatch has one duplicate command at most."""
    count = 4000
    for kill in range(1, 4):
        command = [sys.executable, "-m", "tests.pipelines.sink.committing"]
        process = subprocess.Popen([*command, str(tmp_path), nsqd.tcp_address, "7", str(count)])
        try:
            deadline_s = time.monotonic() + LIMIT_S
            while count_at(nsqd) < kill * 500:
                assert process.poll() is None
                assert time.monotonic() < deadline_s
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.wait(LIMIT_S)
        assert kill * 500 <= count_at(nsqd) < count
    run(str(tmp_path), nsqd.tcp_address, 7, count)
    run(str(tmp_path), nsqd.tcp_address, 7, count)
    found = Counter(taken(nsqd.tcp_address, count_at(nsqd)))
    assert set(found) == {b"%d" % number for number in range(count)}
    assert found.total() - count <= 3 * 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LOCK", "PUBLISHED.json"]


def test_two_drivers_do_not_publish_from_one_folder(nsqd: OpenBroker, tmp_path: Path) -> None:
    """The second driver waits for a while, then raises StageError."""
    told = options(nsqd.tcp_address, mode="staged", stagePath=str(tmp_path), lockTimeout="200ms")
    driver = type(writer(str(tmp_path), nsqd.tcp_address))(told)
    message = driver.write(numbers(0, 10))
    lock = lock_log(str(tmp_path))
    with pytest.raises(StageError, match="another process publishes"):
        driver.commit([message], 0)
    lock.release()
    driver.commit([message, None], 0)
    assert len(taken(nsqd.tcp_address, 10)) == 10
