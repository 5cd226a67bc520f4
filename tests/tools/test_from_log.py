"""--from of nsq_tail, nsq_to_file and nsq_to_nsq, as processes and against real nsqds."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.broker.support import publish
from tests.cancellation import BOTH_IN_SOAK, CancelAt, When, run_counted, sweep_awaits
from tests.http.logreader import serving
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from tests.processes import running_nsqlookupd
from tests.tools.support import (
    LIMIT_S,
    PATIENT,
    bodies,
    drain,
    run,
    run_here,
    running,
    stats,
    until,
    until_true,
)
from trionsq import httpget
from trionsq.client import Producer
from trionsq.testing import OpenBroker, open_broker
from trionsq.tools.fromlog import read_logs
from trionsq.tools.json_filter import JsonFilter
from trionsq.tools.nsq_tail import NsqTailOptions, _Tail
from trionsq.tools.nsq_to_file import NsqToFile
from trionsq.tools.nsq_to_file_from import LogTopicTask
from trionsq.tools.nsq_to_file_options import NsqToFileOptions
from trionsq.tools.nsq_to_nsq import NsqToNsqOptions, _Forwarding
from trionsq.tools.nsq_to_nsq_from import LoggedBodies, passing, publish_all
from trionsq.tools.stdio import OutputFd, Progress

MESSAGES = [b"%0100d" % number for number in range(2_000)]


@asynccontextmanager
async def nsqd_with_log(messages: list[bytes], **options: Any) -> AsyncIterator[OpenBroker]:
    async with open_broker(storage="log", durability="always", **options) as nsqd:
        async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
            await producer.publish_many("t", messages)
        yield nsqd


@asynccontextmanager
async def cutting_proxy(address: str, nbytes: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A proxy that breaks each of its first connections when so many bytes of answers have passed;
    the list has the bytes of each."""
    host, _, port = address.rpartition(":")
    passed: list[int] = []

    async def serve(client: trio.SocketStream) -> None:
        place = len(passed)
        passed.append(0)
        async with client, await trio.open_tcp_stream(host, int(port)) as server:
            await server.send_all(await client.receive_some())
            while data := await server.receive_some(4_096):
                await client.send_all(data)
                passed[place] += len(data)
                if passed[place] > nbytes and place < 4:
                    return

    async with trio.open_nursery() as nursery:
        serving = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        [listener] = await nursery.start(serving)
        number = listener.socket.getsockname()[1]
        yield f"127.0.0.1:{number}", passed
        nursery.cancel_scope.cancel()


def lines_below(folder: Path) -> list[bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [line for path in files for line in path.read_bytes().splitlines()]


async def test_files_have_each_message_once(tmp_path: Path) -> None:
    """Of two nsqds that nsqlookupd knows; the tool ends by itself, with 0, and makes no channel."""
    async with running_nsqlookupd() as lookupd:
        known = {"lookupd_tcp_address": (lookupd.tcp_address,)}
        async with (
            nsqd_with_log(MESSAGES[:1_000], **known) as one,
            nsqd_with_log(MESSAGES[1_000:], **known),
        ):
            lookup = f"http://{lookupd.http_address}/lookup?topic=t"

            async def both_are_known() -> bool:
                return (await httpget.get(lookup)).body.count(b"tcp_port") == 2

            await until_true(both_are_known)
            flags = (f"--lookupd-http-address={lookupd.http_address}", f"--output-dir={tmp_path}")
            ended = await run("nsq_to_file", "--topic=t", "--from=beginning", *flags)
            assert (ended.code, sorted(lines_below(tmp_path))) == (0, MESSAGES), ended.err
            assert (await stats(one, "t"))["channels"] == []


async def test_files_over_broken_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A range comes once, in order, though connections break in the middle of it."""
    async with (
        nsqd_with_log(MESSAGES) as nsqd,
        cutting_proxy(nsqd.http_address, 20_000) as (proxy, passed),
    ):
        options = NsqToFileOptions(
            topic=("t",),
            nsqd_http_address=(proxy,),
            output_dir=str(tmp_path),
            begin="100",
            to="1900",
        )
        assert await NsqToFile(options, PATIENT).run() == 0
        assert lines_below(tmp_path) == MESSAGES[100:1_900]
        assert len(passed) == 5
        assert caplog.text.count("reads t again") == 4


async def test_a_file_that_cannot_be_written_ends_the_tool(tmp_path: Path) -> None:
    """With 1, as without --from."""
    (tmp_path / "out").write_bytes(b"no folder")
    async with nsqd_with_log(MESSAGES[:5]) as nsqd:
        options = NsqToFileOptions(
            topic=("t",),
            nsqd_http_address=(nsqd.http_address,),
            output_dir=str(tmp_path / "out"),
            begin="beginning",
        )
        assert await NsqToFile(options, PATIENT).run() == 1


async def test_tail_goes_on_with_what_comes() -> None:
    """Behind the history, until a signal."""
    reading, writing = os.pipe()
    try:
        async with nsqd_with_log(MESSAGES[:20]) as nsqd:
            flags = ("--topic=t", "--from=15", f"--nsqd-http-address={nsqd.http_address}")
            output = b""

            def has_lines(count: int) -> bool:
                nonlocal output
                output += drain(reading)
                return output.count(b"\n") == count

            async with running("nsq_tail", *flags, stdout=writing) as process:
                await until(lambda: has_lines(5))
                async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
                    await producer.publish_many("t", MESSAGES[20:25])
                await until(lambda: has_lines(10))
                process.send_signal(signal.SIGTERM)
                with trio.fail_after(LIMIT_S):
                    assert await process.wait() == 0
            assert output.splitlines() == MESSAGES[15:25]
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("how", [{"to": "18"}, {"n": 3}])
async def test_tail_to_an_end(how: dict[str, Any], tmp_path: Path) -> None:
    """--to and -n end it."""
    async with nsqd_with_log(MESSAGES[:20]) as nsqd:
        where: dict[str, Any] = {"nsqd_http_address": (nsqd.http_address,), "print_topic": True}
        tail = _Tail(NsqTailOptions(topic=("t",), begin="15", **where, **how), PATIENT)
        with (tmp_path / "lines").open("wb") as lines:
            tail._output = OutputFd(lines.fileno())
            assert await tail.run() == 0
        expected = [b"t | " + body for body in MESSAGES[15:18]]
        assert (tmp_path / "lines").read_bytes().splitlines() == expected


async def test_a_log_is_published_to_others() -> None:
    """Each message that passes the filter, to two destinations in turn; then the tool ends."""
    messages = [b'{"n":%d,"kind":"%s"}' % (n, (b"a", b"b")[n % 2]) for n in range(300)]
    async with (
        nsqd_with_log(messages) as source,
        open_broker() as first,
        open_broker() as second,
    ):
        options = NsqToNsqOptions(
            topic=("t",),
            begin="beginning",
            nsqd_http_address=(source.http_address,),
            destination_nsqd_tcp_address=(first.tcp_address, second.tcp_address),
            destination_topic="u",
            mode="round-robin",
            require_json_field="kind",
            require_json_value="a",
            max_in_flight=40,
        )
        assert await _Forwarding(options, PATIENT, PATIENT).run() == 0
        found = [await bodies(one, "u", "c", 75) for one in (first, second)]
        assert Counter(found[0] + found[1]) == Counter(messages[::2])


async def test_a_destination_that_refuses_gets_it_again(autojump_clock: MockClock) -> None:
    """In growing pauses, and nothing that it has confirmed."""
    published: list[tuple[float, list[bytes]]] = []

    async def publish(some: LoggedBodies) -> None:
        published.append((trio.current_time(), some.bodies))
        for place, body in enumerate(some.bodies):
            if body == b"2" and len(published) < 4:
                some[place].requeue()
            else:
                some[place].finish()

    await publish_all([b"0", b"1", b"2", b"3"], 3, publish)
    assert [some for _, some in published] == [[b"0", b"1", b"2"], [b"2"], [b"2"], [b"2"], [b"3"]]
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(published)]
    assert pauses == [0.5, 1.0, 2.0, 0.0]


def test_what_passes_the_filter() -> None:
    """A message that a channel would get back again and again is logged, and passed over."""
    found = passing([b'{"a":1}', b"no json", b'{"b":1}'], JsonFilter((), "a", "1"))
    assert found == [b'{"a":1}']


@pytest.mark.parametrize(
    ("tool", "flags", "text"),
    [
        ("nsq_tail", ("--to=5", "--nsqd-tcp-address=127.0.0.1:1"), "need --from"),
        ("nsq_tail", ("--from=5", "--nsqd-tcp-address=127.0.0.1:1"), "not --nsqd-tcp-address"),
        ("nsq_to_file", ("--from=5",), "needs either --nsqd-http-address or --lookupd"),
        (
            "nsq_to_nsq",
            ("--from=5", "--nsqd-http-address=a:1", "--lookupd-http-address=b:1"),
            "needs either",
        ),
        ("nsq_tail", ("--from=5", "--nsqd-http-address=127.0.0.1:1"), "127.0.0.1:1"),
        ("nsq_to_file", ("--from=5", "--topic-pattern=t", "--nsqd-http-address=a:1"), "--topic"),
        ("nsq_tail", ("--from=5", "--lookupd-http-address=127.0.0.1:1"), "no nsqlookupd answers"),
    ],
)
def test_refusals(
    tool: str, flags: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the flag or the address, and 1."""
    topic = () if "--topic-pattern=t" in flags else ("--topic=t",)
    more = ("--destination-nsqd-tcp-address=c:1",) if tool == "nsq_to_nsq" else ()
    ended = run_here(tool, (*topic, *more, *flags), capsys)
    assert ended.code == 1
    assert text in ended.err


async def test_what_nsqd_refuses_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is no position, and a topic without a log."""
    async with nsqd_with_log(MESSAGES[:1]) as nsqd:
        nsqd.broker.topic("u", storage="default")
        for topic, begin, text in (("t", "then", "400 INVALID_ARG_FROM"), ("u", "0", "NO_LOG")):
            options = NsqToFileOptions(
                topic=(topic,),
                nsqd_http_address=(nsqd.http_address,),
                output_dir=str(tmp_path),
                begin=begin,
            )
            assert await NsqToFile(options, PATIENT).run() == 1
            assert text in caplog.text


async def archive_cut_off(cancel_at: CancelAt) -> None:
    """nsq_to_file reads a log that grows, and is cancelled at one await."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        with threads_in_mock_time():
            async with serving() as server:
                for at in range(0, 20, 4):
                    publish(server.broker, "t", *MESSAGES[at : at + 4])

                async def dial(_host: str, _port: int) -> trio.SocketStream:
                    return server.connect()

                assert read_logs.__kwdefaults__ is not None
                patch.setitem(read_logs.__kwdefaults__, "dial", dial)
                options = NsqToFileOptions(
                    topic=("t",),
                    nsqd_http_address=("localhost:1",),
                    output_dir=f"{folder}/out",
                    work_dir=f"{folder}/work",
                    begin="beginning",
                    to="25",
                    sync_interval_ns=100_000_000,
                    rotate_size=500,
                )
                with nothing_left_behind():
                    task = LogTopicTask("t", options, PATIENT, Progress("written"))
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(run_counted, cancel_at, task.run)
                        await trio.sleep(2)
                        publish(server.broker, "t", *MESSAGES[20:30])
                    await trio.sleep(10)  # nsqd gives up the connection
                assert not task.has_failed
        written = sorted(lines_below(Path(folder)))
        assert written == MESSAGES[: len(written)]
        assert cancel_at.has_fired or len(written) == 25


@pytest.mark.parametrize("when", BOTH_IN_SOAK)
def test_nsq_to_file_cut_off_at_any_await(when: When) -> None:
    """Its files have the first messages of the range, each once; nothing stays open."""
    sweep_awaits(archive_cut_off, when, least=40, one_in=20)
