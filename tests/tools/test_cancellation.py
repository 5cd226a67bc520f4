"""Each await of a tool is cancelled once: no message is lost, nothing stays open.

The tools run in this process, with brokers in memory; files, pipes and signals are real.
"""

from __future__ import annotations

import fcntl
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from random import Random
from signal import SIGHUP, SIGTERM
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import trio

from tests.cancellation import BOTH_IN_SOAK, CancelAt, When, sweep_awaits
from tests.client.accounts import bodies_left, repeatable_turns
from tests.client.network import ADDRESS
from tests.tools.stage import BODIES, CONFIG, LARGE, LOOKUPD, OPTIONS, OTHER, SECOND, Stage
from tests.tools.support import drain
from trionsq.durations import SECOND_NS
from trionsq.testing.memory import nsqd_in_memory
from trionsq.tools.nsq_stat import NsqStatOptions, _Polling
from trionsq.tools.nsq_tail import NsqTailOptions, _Tail
from trionsq.tools.nsq_to_file import NsqToFile
from trionsq.tools.nsq_to_file_options import NsqToFileOptions
from trionsq.tools.nsq_to_http import NsqToHttpOptions, _Sender
from trionsq.tools.nsq_to_nsq import NsqToNsqOptions, _Forwarding
from trionsq.tools.stdio import InputFd, OutputFd
from trionsq.tools.to_nsq import ToNsqOptions, _Publishing

WHEN = pytest.mark.parametrize("when", BOTH_IN_SOAK)


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    repeatable_turns(monkeypatch)
    monkeypatch.setattr("trionsq.tools.nsq_to_file._MAX_BATCHES_A_TURN", 1)
    monkeypatch.setattr("trionsq.tools.nsq_to_file._MAX_NAMES_A_TURN", 1)


def lines_below(folder: str) -> list[bytes]:
    found = []
    for path in Path(folder).rglob("*"):
        found += path.read_bytes().splitlines() if path.is_file() else []
    return found


async def write_files(cancel_at: CancelAt, **source: Any) -> None:
    """Messages go to files, which are closed at SIGHUP; then the tool is stopped."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        async with nsqd_in_memory(**OPTIONS) as broker:
            stage = Stage(patch, broker)
            stage.connect_tools("nsq_to_file")
            options = NsqToFileOptions(
                channel="c",
                output_dir=f"{folder}/out",
                work_dir=f"{folder}/work",
                sync_interval_ns=SECOND_NS // 2,
                rotate_size=60,
                topic_refresh_ns=SECOND_NS // 5,
                **source,
            )
            tool = NsqToFile(options, CONFIG)
            await stage.run(cancel_at, tool.run, (1, SIGHUP), (2.5, SIGTERM))
            stage.check_files()
            left = await bodies_left([broker])
        written = lines_below(folder)
        assert set(BODIES) - set(left) <= set(written) <= set(BODIES)
        assert not left or cancel_at.has_fired


async def of_a_topic(cancel_at: CancelAt) -> None:
    await write_files(cancel_at, topic=("t",), nsqd_tcp_address=(ADDRESS,))


async def of_a_pattern(cancel_at: CancelAt) -> None:
    await write_files(cancel_at, topic_pattern="t", lookupd_http_address=(LOOKUPD,))


@pytest.mark.parametrize("how", [of_a_topic, of_a_pattern])
@WHEN
def test_nsq_to_file_cancelled_at_any_await(how: Any, when: When) -> None:
    """Each message is in a file or at nsqd."""
    sweep_awaits(how, when, least=50, one_in=20)


async def publish_lines(cancel_at: CancelAt, rate: int) -> None:
    """Records come in pieces; the last one is incomplete when the tool is stopped."""
    with pytest.MonkeyPatch.context() as patch:
        async with nsqd_in_memory(**OPTIONS) as broker, nsqd_in_memory(**OPTIONS) as other:
            stage = Stage(patch, broker, other)
            stage.connect_tools("to_nsq")
            reader, writer = os.pipe()
            records = [b"record %d" % number for number in range(6)]
            tool = _Publishing(
                ToNsqOptions(topic="t", nsqd_tcp_address=(ADDRESS, OTHER), rate=rate), CONFIG
            )
            tool._input = InputFd(reader)
            tool._progress._is_terminal = True
            os.write(writer, b"\n".join(records[:5]) + b"\n" + records[5][:3])

            async def finish_line() -> None:
                await trio.sleep(5.5)
                os.write(writer, records[5][3:] + b"\nmore")

            async with trio.open_nursery() as user:
                user.start_soon(finish_line)
                await stage.run(cancel_at, tool.run, (5, SIGTERM))
                user.cancel_scope.cancel()
            stage.check_files(reader, writer)
            confirmed = tool._progress.count
            for each, earlier in ((broker, BODIES), (other, [])):
                found = Counter(await bodies_left([each])) - Counter(earlier)
                assert set(found) <= set(records)
                assert set(found.values()) <= {1}
                assert confirmed <= len(found)
                assert len(found) == len(records) or cancel_at.has_fired


@pytest.mark.parametrize("rate", [0, 10])
@WHEN
def test_to_nsq_cancelled_at_any_await(rate: int, when: When) -> None:
    """What it counts as published is at each nsqd, and nothing is there twice."""
    sweep_awaits(lambda cancel_at: publish_lines(cancel_at, rate), when, least=50, one_in=20)


async def tail(cancel_at: CancelAt) -> None:
    """Lines go to a pipe of a page; a slow reader is in the way."""
    with pytest.MonkeyPatch.context() as patch:
        async with nsqd_in_memory(**OPTIONS) as broker:
            stage = Stage(patch, broker)
            stage.connect_tools("nsq_tail")
            patch.setattr("trionsq.tools.stdio.OutputFd._PIPE_PIECE_BYTES", 30)
            reader, writer = os.pipe()
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
            earlier = b"x" * 4000
            os.write(writer, earlier)
            tool = _Tail(
                NsqTailOptions(topic=("t",), channel="c", n=7, nsqd_tcp_address=(ADDRESS,)), CONFIG
            )
            tool._output = OutputFd(writer)
            output = b""

            async def read_slowly() -> None:
                nonlocal output
                while True:
                    await trio.sleep(0.05)
                    output += drain(reader)

            async with trio.open_nursery() as user:
                user.start_soon(read_slowly)
                await stage.run(cancel_at, tool.run)
                user.cancel_scope.cancel()
            output += drain(reader)
            stage.check_files(reader, writer)
            *lines, rest = output.removeprefix(earlier).split(b"\n")
            left = await bodies_left([broker])
            assert not rest
            assert set(lines) | set(left) == set(BODIES)
            assert set(lines) <= set(BODIES)
            assert len(lines) == len(set(lines)) == 7 or cancel_at.has_fired


@WHEN
def test_nsq_tail_cancelled_at_any_await(when: When) -> None:
    """Each message is a line or at nsqd, and no line is cut."""
    sweep_awaits(tail, when, least=50)


async def forward(cancel_at: CancelAt) -> None:
    """From an nsqd to two others in turn, of which one refuses a message."""
    with pytest.MonkeyPatch.context() as patch:
        async with (
            nsqd_in_memory(**OPTIONS) as source,
            nsqd_in_memory(**OPTIONS, max_msg_size=len(LARGE) - 1) as first,
            nsqd_in_memory(**OPTIONS) as second,
        ):
            stage = Stage(patch, source, first, second)
            stage.connect_tools("nsq_to_nsq")
            options = NsqToNsqOptions(
                topic=("t",),
                channel="c",
                nsqd_tcp_address=(ADDRESS,),
                destination_nsqd_tcp_address=(OTHER, SECOND),
                mode="round-robin",
            )
            tool = _Forwarding(options, CONFIG, CONFIG)
            await stage.run(cancel_at, tool.run, (4, SIGTERM))
            left, arrived = await bodies_left([source]), await bodies_left([first, second])
            assert set(left) | set(arrived) == set(BODIES)
            assert not left or cancel_at.has_fired


@WHEN
def test_nsq_to_nsq_cancelled_at_any_await(when: When) -> None:
    """Each message is at its destination or where it came from."""
    sweep_awaits(forward, when, least=50, one_in=20)


@cache
def context() -> ssl.SSLContext:
    """It takes 20 ms to make one."""
    return ssl.create_default_context()


async def send_requests(cancel_at: CancelAt) -> None:
    """To a server that redirects once, refuses one message at first, and takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        async with nsqd_in_memory(**OPTIONS) as broker:
            stage = Stage(patch, broker)
            stage.connect_tools("nsq_to_http")
            patch.setattr(
                "trionsq.tools.nsq_to_http.ssl", SimpleNamespace(create_default_context=context)
            )
            options = NsqToHttpOptions(
                topic="t",
                channel="c",
                nsqd_tcp_address=(ADDRESS,),
                post=("http://a.test/", "http://b.test/"),
                mode="multicast",
                n=2,
            )
            tool = _Sender(options, CONFIG, Random(1))
            received: dict[str, list[bytes]] = {"a.test": [], "b.test": []}
            counts = Counter[bytes]()

            async def content() -> AsyncIterator[bytes]:
                await trio.sleep(0.01)
                yield b"content"

            async def serve(request: httpx2.Request) -> httpx2.Response:
                body = await request.aread()
                counts[body] += 1
                # The last one is under way when the tool is stopped.
                await trio.sleep(2.5 if body == BODIES[-1] else 0.01)
                if counts[body] == 1 and body == BODIES[2]:
                    return httpx2.Response(500, content=content())
                if request.url.path == "/" and body == BODIES[4]:
                    return httpx2.Response(
                        307, headers={"Location": "/elsewhere"}, content=content()
                    )
                received[request.url.host].append(body)
                return httpx2.Response(200, content=content())

            plain = tool._requests._client
            tool._requests._client = httpx2.AsyncClient(
                transport=httpx2.MockTransport(serve), trust_env=False
            )
            await stage.run(cancel_at, tool.run, (2, SIGTERM))
            assert tool._requests._client.is_closed or cancel_at.has_fired
            await plain.aclose()
            left = await bodies_left([broker])
            for bodies in received.values():
                assert set(BODIES) - set(left) <= set(bodies) <= set(BODIES)
            assert not left or cancel_at.has_fired
            assert tool._limiter.borrowed_tokens == 0


@WHEN
def test_nsq_to_http_cancelled_at_any_await(when: When) -> None:
    """Each message was accepted by all servers or is at nsqd."""
    sweep_awaits(send_requests, when, least=50, one_in=20)


async def show_rows(cancel_at: CancelAt) -> None:
    """Two rows of an nsqd that nsqlookupd knows of."""
    with pytest.MonkeyPatch.context() as patch:
        async with nsqd_in_memory(**OPTIONS) as broker:
            stage = Stage(patch, broker)
            options = NsqStatOptions(
                topic="t", channel="c", count=2, lookupd_http_address=(LOOKUPD,)
            )
            await stage.run(cancel_at, _Polling(options).run)
            assert len(stage.requests) == 6 or cancel_at.has_fired


@WHEN
def test_nsq_stat_cancelled_at_any_await(when: When) -> None:
    """It ends, and leaves no request."""
    sweep_awaits(show_rows, when, least=10, one_in=20)
