"""The tool nsq_to_nsq, as a process, between real nsqds."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.processes import free_address, running_nsqlookupd
from tests.soak import smoke
from tests.tools.support import (
    LIMIT_S,
    PATIENT,
    SIGNALS,
    bodies,
    channel_stats,
    command,
    run,
    run_here,
    running,
    until,
    until_true,
)
from trionsq.client import Producer
from trionsq.testing import OpenBroker, open_broker

SOON = (
    "--consumer-opt=default_requeue_delay,0",
    "--consumer-opt=backoff_multiplier,5ms",
)
COUNT = 40
MESSAGES = [b"message %05d" % number for number in range(COUNT)]


async def publish(nsqd: OpenBroker, messages: Sequence[bytes], topic: str = "t") -> None:
    """Publish as one batch."""
    async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
        await producer.publish_many(topic, messages)


def flags(source: OpenBroker, *destinations: str) -> tuple[str, ...]:
    """Flags to forward topic t of one nsqd to others."""
    return (
        "--topic=t",
        f"--nsqd-tcp-address={source.tcp_address}",
        *(f"--destination-nsqd-tcp-address={address}" for address in destinations),
    )


def count(nsqd: OpenBroker, topic: str = "t") -> int:
    """The number of messages that the topic ever received."""
    topics = nsqd.broker.topics
    return topics[topic].core.message_count if topic in topics else 0


def finished(nsqd: OpenBroker, topic: str = "t") -> int:
    """The number of finished messages of the tool's channel."""
    topics = nsqd.broker.topics
    if topic not in topics or "nsq_to_nsq" not in topics[topic].channels:
        return 0
    core = topics[topic].channels["nsq_to_nsq"].core
    return int(core.message_count - core.depth - core.in_flight_count - core.deferred_count)


async def stop(process: trio.Process, signum: int = signal.SIGTERM) -> None:
    """Stop the tool, which must exit with 0."""
    process.send_signal(signum)
    with trio.fail_after(LIMIT_S):
        assert await process.wait() == 0


async def forward(source: OpenBroker, *words: str, finish: int = COUNT) -> None:
    """Run the tool until this many messages are finished."""
    async with running("nsq_to_nsq", *words) as process:
        await until(lambda: finished(source) >= finish)
        await stop(process)


async def test_every_message_once() -> None:
    """Each message is published to the destination, under its topic, and finished after that."""
    async with open_broker() as source, open_broker() as there:
        await publish(source, MESSAGES)
        await forward(source, *flags(source, there.tcp_address))
        assert sorted(await bodies(there, "t", "c", COUNT)) == MESSAGES
        assert count(there) == COUNT


async def test_destination_topic_and_several_topics() -> None:
    """All topics are published to --destination-topic, also with discovery."""
    async with running_nsqlookupd() as lookupd, open_broker() as there:
        lookupds = (lookupd.tcp_address,)
        async with open_broker(
            lookupd_tcp_address=lookupds, broadcast_address="127.0.0.1"
        ) as source:
            await publish(source, MESSAGES[:10])
            await publish(source, MESSAGES[10:], "u")
            words = (
                "--topic=t",
                "--topic=u",
                "--destination-topic=both",
                "--consumer-opt=lookupd_poll_interval,50ms",
                f"--lookupd-http-address={lookupd.http_address}",
                f"--destination-nsqd-tcp-address={there.tcp_address}",
            )
            async with running("nsq_to_nsq", *words) as process:
                await until(lambda: finished(source) + finished(source, "u") == COUNT)
                await stop(process)
            assert sorted(await bodies(there, "both", "c", COUNT)) == MESSAGES


MODES = ("round-robin", "hostpool", "epsilon-greedy", "other")


@pytest.mark.parametrize("mode", smoke({mode: mode for mode in MODES}, "hostpool"))
async def test_modes(mode: str) -> None:
    """Each message goes to one destination, and each destination gets some."""
    async with open_broker() as source, open_broker() as one, open_broker() as two:
        await publish(source, MESSAGES)
        where = flags(source, one.tcp_address, two.tcp_address)
        await forward(source, *where, f"--mode={mode}")
        first = await bodies(one, "t", "c", count(one))
        second = await bodies(two, "t", "c", count(two))
        assert sorted(first + second) == MESSAGES
        assert first
        assert second
        if mode != "epsilon-greedy":
            assert len(first) == len(second)


@pytest.mark.parametrize("mode", smoke({mode: mode for mode in MODES[:3]}, "hostpool"))
async def test_one_dead_destination(mode: str) -> None:
    """Messages that a dead destination did not get go to the other one."""
    async with open_broker() as source, open_broker() as there:
        await publish(source, MESSAGES)
        where = flags(source, free_address(), there.tcp_address)
        await forward(source, *where, f"--mode={mode}", *SOON)
        assert sorted(await bodies(there, "t", "c", COUNT)) == MESSAGES
        assert count(there) == COUNT


@pytest.mark.parametrize("signum", SIGNALS)
async def test_a_signal_in_mid_work_loses_nothing(signum: signal.Signals) -> None:
    """Publishes in progress are confirmed and finished, the rest goes back: each message arrives
    once.
    """
    messages = [b"%06d" % number for number in range(60_000)]
    async with (
        open_broker(mem_queue_size=100_000) as source,
        open_broker(mem_queue_size=100_000) as there,
    ):
        await publish(source, messages)
        async with running("nsq_to_nsq", *flags(source, there.tcp_address)) as process:
            await until(lambda: count(there) > 0)
            await stop(process, signum)
        arrived = count(there)
        assert 0 < arrived < len(messages), "the signal came too late to mean anything"
        left = await channel_stats(source, "t", "nsq_to_nsq")
        counts = (left["depth"], left["in_flight_count"], left["deferred_count"])
        assert counts == (len(messages) - arrived, 0, 0)
        rest = await bodies(source, "t", "nsq_to_nsq", len(messages) - arrived)
        assert sorted(await bodies(there, "t", "c", arrived) + rest) == messages


async def test_a_destination_that_dies_and_comes_back(tmp_path: Path) -> None:
    """Without its destination it keeps every message and logs errors; later it continues."""
    address = free_address()
    async with open_broker() as source:
        await publish(source, MESSAGES[:10])
        words = command("nsq_to_nsq", *flags(source, address), *SOON)
        process = await trio.lowlevel.open_process(words, stderr=subprocess.PIPE)
        assert process.stderr is not None
        try:
            async with open_broker(tmp_path, tcp_address=address):
                await until(lambda: finished(source) == 10)
            await publish(source, MESSAGES[10:])

            async def was_refused() -> bool:
                return bool((await channel_stats(source, "t", "nsq_to_nsq"))["requeue_count"] > 2)

            await until_true(was_refused)
            assert finished(source) == 10
            async with open_broker(tmp_path, tcp_address=address) as back:
                await until(lambda: finished(source) == COUNT)
                await stop(process)
                assert set(await bodies(back, "t", "c", COUNT)) == set(MESSAGES)
            text = b"".join([chunk async for chunk in process.stderr]).decode()
            assert f"ERR {address}: failed to publish" in text
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def test_a_message_that_the_destination_refuses() -> None:
    """A message that is too large there is requeued; it delays the others only briefly."""
    large = b"x" * 2000
    async with open_broker() as source, open_broker(max_msg_size=1000) as there:
        await publish(source, [MESSAGES[0], large, *MESSAGES[1:]])
        await forward(source, *flags(source, there.tcp_address), *SOON)
        left = await channel_stats(source, "t", "nsq_to_nsq")
        assert left["depth"] + left["in_flight_count"] + left["deferred_count"] == 1
        assert set(await bodies(there, "t", "c", count(there))) == set(MESSAGES)


async def test_json_fields() -> None:
    """Only messages with the field and value pass, and only with the fields to keep."""
    messages = [
        b'{"kind": "a", "z": 1.0, "b": [1.5, "\xc3\xa9"], "secret": 1}',
        b'{"kind": "b", "z": 2}',
        b"not json",
        b'{"kind": "a"}',
    ]
    async with open_broker() as source, open_broker() as there:
        await publish(source, messages)
        fields = ("--whitelist-json-field=z", "--whitelist-json-field=b")
        wanted = ("--require-json-field=kind", "--require-json-value=a")
        await forward(source, *flags(source, there.tcp_address), *fields, *wanted, finish=4)
        expected = [b'{"b":[1.5,"\xc3\xa9"],"z":1}', b"{}"]
        assert sorted(await bodies(there, "t", "c", 2)) == expected
        assert count(there) == 2


async def test_a_required_value_without_the_field() -> None:
    """Such a message is requeued, with backoff."""
    async with open_broker() as source, open_broker() as there:
        await publish(source, [b"{}", b'{"kind": 1}'])
        wanted = ("--require-json-field=kind", "--require-json-value=1")
        async with running("nsq_to_nsq", *flags(source, there.tcp_address), *wanted) as process:
            await until(lambda: finished(source) == 1)
            await until(
                lambda: source.broker.topics["t"].channels["nsq_to_nsq"].core.requeue_count == 1
            )
            await stop(process)
        assert await bodies(there, "t", "c", 1) == [b'{"kind": 1}']


async def test_status_lines() -> None:
    """After status-every messages it logs the times of each destination and of all."""
    async with open_broker() as source, open_broker() as one, open_broker() as two:
        await publish(source, MESSAGES)
        where = flags(source, one.tcp_address, two.tcp_address)
        words = command("nsq_to_nsq", *where, f"--status-every={COUNT // 2}")
        process = await trio.lowlevel.open_process(words, stderr=subprocess.PIPE)
        await until(lambda: finished(source) == COUNT)
        await stop(process)
        assert process.stderr is not None
        text = b"".join([chunk async for chunk in process.stderr]).decode()
        ms = r"\d+\.\d\dms"
        line = rf"\[(\S+)\]: finished \d+ - 99th: {ms} - 95th: {ms} - avg: {ms}$"
        names = {"aggregate", one.tcp_address, two.tcp_address}
        assert set(re.findall(line, text, re.MULTILINE)) == names


async def test_who_is_connected() -> None:
    """Both nsqds show the tool with the original's user agent."""
    async with open_broker() as source, open_broker() as there:
        await publish(source, MESSAGES)
        async with running("nsq_to_nsq", *flags(source, there.tcp_address)) as process:
            await until(lambda: finished(source) == COUNT)
            for nsqd in (source, there):
                agents = {client.identity.user_agent for client in nsqd.broker.clients}
                assert agents == {"nsq_to_nsq/1.3.0 go-nsq/1.1.0"}
            await stop(process)


THERE = "--destination-nsqd-tcp-address=127.0.0.1:1"
BASE = ("--topic=t", "--nsqd-tcp-address=127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 1, "--topic and --channel are required"),
        (("--topic=t", "--channel="), 1, "--topic and --channel are required"),
        (("--topic=t!",), 1, "--topic is invalid"),
        (("--topic=t", "--topic="), 1, "--topic is invalid"),
        (("--topic=t", "--destination-topic=t!"), 1, "--destination-topic is invalid"),
        (("--topic=t", "--channel=c!"), 1, "--channel is invalid"),
        (("--topic=t",), 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            (*BASE, "--lookupd-http-address=b:1"),
            1,
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (BASE, 1, "--destination-nsqd-tcp-address required"),
        ((*BASE, "--destination-nsqd-tcp-address=a"), 1, "--destination-nsqd-tcp-address: "),
        ((*BASE, THERE), 1, "127.0.0.1:1"),
        ((*BASE, THERE, "--consumer-opt=no,1"), 2, "invalid value for flag -consumer-opt"),
        ((*BASE, THERE, "--producer-opt=no,1"), 2, "invalid value for flag -producer-opt"),
        (("--nope",), 2, "flag provided but not defined: -nope"),
    ],
)
def test_wrong_usage(
    words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line reports the error, exit code 1; for a bad flag the usage, exit code 2."""
    ended = run_here("nsq_to_nsq", words, capsys)
    assert (ended.code, text in ended.err) == (code, True), ended.err
    assert "Traceback" not in ended.err


async def test_version() -> None:
    """--version prints the version, exit code 0."""
    ended = await run("nsq_to_nsq", "--version")
    assert (ended.code, ended.out) == (0, b"nsq_to_nsq v1.3.0\n")
