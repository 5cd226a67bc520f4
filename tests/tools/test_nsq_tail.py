"""The tool nsq_tail, as a process and against a real nsqd."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import termios

import pytest
import trio

from tests.processes import running_nsqlookupd
from tests.tools.support import (
    LIMIT_S,
    PATIENT,
    SIGNALS,
    bodies,
    channel_stats,
    drain,
    handles,
    run,
    run_here,
    running,
    until,
    until_true,
)
from trionsq import httpget
from trionsq.client import Consumer, Producer
from trionsq.testing import OpenBroker, open_broker


async def _publish(nsqd: OpenBroker, topic: str, messages: list[bytes]) -> None:
    async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
        await producer.publish_many(topic, messages)


def _waiting_nbytes(fd: int) -> int:
    """The number of bytes in a pipe."""
    (nbytes,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
    return int(nbytes)


async def test_n_messages_and_not_one_more() -> None:
    """After -n messages it exits with 0; these are finished, all others remain."""
    messages = [b"%d" % number for number in range(10)]
    async with open_broker() as nsqd:
        await _publish(nsqd, "t", messages)
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        flags = ("--topic=t", "--channel=c", address, "--print-topic", "-n", "3")
        ended = await run("nsq_tail", *flags)
        assert ended.code == 0
        assert ended.out == b"t | 0\nt | 1\nt | 2\n"
        assert re.search(r"^\d{4}/.* Adding consumer for topic: t$", ended.err, re.MULTILINE)
        left = await channel_stats(nsqd, "t", "c")
        assert (left["depth"], left["in_flight_count"]) == (7, 0)
        assert sorted(await bodies(nsqd, "t", "c", 7)) == messages[3:]


async def test_by_default_a_channel_of_its_own() -> None:
    """Without --channel it reads a new ephemeral channel, and several topics at once."""
    reading, writing = os.pipe()
    try:
        async with open_broker() as nsqd:
            flags = ("--topic=a", "--topic=b", f"--nsqd-tcp-address={nsqd.tcp_address}")
            async with running("nsq_tail", *flags, stdout=writing) as process:
                topics = nsqd.broker.topics
                await until(
                    lambda: all(name in topics and topics[name].channels for name in ("a", "b"))
                )
                for name in ("a", "b"):
                    (channel,) = topics[name].channels
                    assert re.fullmatch(r"tail\d{6}#ephemeral", channel)
                    await _publish(nsqd, name, [name.encode()])
                await until(lambda: _waiting_nbytes(reading) == 4)
                assert sorted(drain(reading).split()) == [b"a", b"b"]
                process.send_signal(signal.SIGTERM)
                with trio.fail_after(LIMIT_S):
                    assert await process.wait() == 0
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("signum", SIGNALS)
async def test_a_signal_in_mid_work_loses_nothing(signum: signal.Signals) -> None:
    """Stopped while nobody reads its output, it returns unwritten messages at once."""
    messages = [b"%0100d" % number for number in range(3000)]
    reading, writing = os.pipe()
    try:
        async with open_broker() as nsqd:
            await _publish(nsqd, "t", messages)
            address = f"--nsqd-tcp-address={nsqd.tcp_address}"
            flags = ("--topic=t", "--channel=c", "--max-in-flight=2500", address)
            async with running("nsq_tail", *flags, stdout=writing) as process:
                await until(lambda: _waiting_nbytes(reading) > 60_000)
                process.send_signal(signum)
                with trio.fail_after(LIMIT_S):
                    assert await process.wait() == 0
            # The last line may be torn: there was no room for it.
            written = drain(reading).split(b"\n")[:-1]
            assert written
            left = await channel_stats(nsqd, "t", "c")
            assert (left["depth"], left["in_flight_count"]) == (3000 - len(written), 0)
            rest = await bodies(nsqd, "t", "c", 3000 - len(written))
            assert sorted(written + rest) == messages
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_second_signal_ends_it_at_once() -> None:
    """While it waits to write the rest of a line, a second signal kills it."""
    reading, writing = os.pipe()
    try:
        async with open_broker() as nsqd:
            await _publish(nsqd, "t", [b"x" * 500_000])
            flags = ("--topic=t", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}")
            async with running("nsq_tail", *flags, stdout=writing) as process:
                await until(lambda: _waiting_nbytes(reading) > 60_000)
                process.send_signal(signal.SIGTERM)
                await until(lambda: not handles(process, signal.SIGTERM))
                process.send_signal(signal.SIGTERM)
                with trio.fail_after(LIMIT_S):
                    assert await process.wait() == -signal.SIGTERM
    finally:
        os.close(reading)
        os.close(writing)


async def test_nsqds_are_found_through_nsqlookupd() -> None:
    """With --lookupd-http-address it reads from every nsqd that has the topic."""
    async with running_nsqlookupd() as lookupd:
        at = (lookupd.tcp_address,)
        async with (
            open_broker(lookupd_tcp_address=at, broadcast_address="127.0.0.1") as one,
            open_broker(lookupd_tcp_address=at, broadcast_address="127.0.0.1") as two,
        ):
            await _publish(one, "t", [b"one"])
            await _publish(two, "t", [b"two"])

            async def both_are_known() -> bool:
                answer = await httpget.get(f"http://{lookupd.http_address}/lookup?topic=t")
                return answer.status == 200 and len(json.loads(answer.body)["producers"]) == 2

            await until_true(both_are_known)
            address = f"--lookupd-http-address={lookupd.http_address}"
            ended = await run("nsq_tail", "--topic=t", "--channel=c", address, "-n", "2")
            assert (ended.code, sorted(ended.out.split())) == (0, [b"one", b"two"])


async def test_a_message_is_not_given_up() -> None:
    """However often a message was delivered, it is written."""
    async with open_broker() as nsqd:
        await _publish(nsqd, "t", [b"one"])
        where = [nsqd.tcp_address]
        async with Consumer("t", "c", nsqd_tcp_addresses=where, config=PATIENT) as consumer:
            with trio.fail_after(LIMIT_S):
                async for message in consumer:
                    message.requeue(0, backoff=False)
                    if message.attempts == 5:
                        break
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        ended = await run("nsq_tail", "--topic=t", "--channel=c", address, "-n", "1")
        assert ended.out == b"one\n"


async def test_nobody_reads_on() -> None:
    """When its output is closed it reports that and exits with 1; every message remains."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        async with open_broker() as nsqd:
            await _publish(nsqd, "t", [b"one", b"two"])
            address = f"--nsqd-tcp-address={nsqd.tcp_address}"
            async with running(
                "nsq_tail", "--topic=t", "--channel=c", address, stdout=writing
            ) as process:
                with trio.fail_after(LIMIT_S):
                    assert await process.wait() == 1
            left = await channel_stats(nsqd, "t", "c")
            assert (left["depth"], left["in_flight_count"]) == (2, 0)
    finally:
        os.close(writing)


async def test_nsqd_sees_who_reads() -> None:
    """nsqd shows the client with the original tool's user agent."""
    async with open_broker() as nsqd:
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        async with running("nsq_tail", "--topic=t", "--channel=c", address):
            await until(lambda: nsqd.broker.topics.get("t") is not None)
            clients: list[dict[str, str]] = []
            with trio.fail_after(LIMIT_S):
                while not clients:
                    clients = (await channel_stats(nsqd, "t", "c"))["clients"]
            assert clients[0]["user_agent"] == "nsq_tail/1.3.0 go-nsq/1.1.0"


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        ((), 1, "--topic required"),
        (("--topic=t",), 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ("--topic=t", "--nsqd-tcp-address=a:1", "--lookupd-http-address=b:1"),
            1,
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (("--topic=t!", "--nsqd-tcp-address=127.0.0.1:1"), 1, "not a valid name"),
        (("--topic=t", "--nsqd-tcp-address=127.0.0.1:1"), 1, "127.0.0.1:1"),
        (
            ("--topic=t", "--nsqd-tcp-address=a:1", "--consumer-opt=max_attempts,x"),
            2,
            "invalid value for flag -consumer-opt: max_attempts",
        ),
        (("--nope",), 2, "flag provided but not defined: -nope"),
    ],
)
def test_wrong_usage(
    flags: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line reports the error, exit code 1; for a bad flag the usage, exit code 2."""
    ended = run_here("nsq_tail", flags, capsys)
    assert ended.code == code
    assert text in ended.err
    assert "Traceback" not in ended.err


async def test_version() -> None:
    """--version prints the version, exit code 0."""
    ended = await run("nsq_tail", "--version")
    assert (ended.code, ended.out) == (0, b"nsq_tail v1.3.0\n")
