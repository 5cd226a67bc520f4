"""The tool nsq_to_http, as a process, between a real nsqd and a real HTTP server."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from tests.processes import free_address, split_address
from tests.soak import smoke
from tests.tools.http_receiver import Answer, Received, receiver
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

# Failures are tried again at once.
SOON = (
    "--consumer-opt=default_requeue_delay,0",
    "--consumer-opt=backoff_multiplier,5ms",
)
COUNT = 40
MESSAGES = [b"message %03d" % number for number in range(COUNT)]


async def publish(nsqd: OpenBroker, messages: list[bytes]) -> None:
    """Publish to topic t."""
    async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
        await producer.publish_many("t", messages)


def flags(nsqd: OpenBroker, *more: str) -> tuple[str, ...]:
    """Flags for topic t, channel nsq_to_http."""
    return ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", *more)


async def finished(nsqd: OpenBroker) -> int:
    """The number of finished messages."""
    topic = nsqd.broker.topics["t"]
    if "nsq_to_http" not in topic.channels:
        return 0
    core = topic.channels["nsq_to_http"].core
    return int(core.message_count - core.depth - core.in_flight_count - core.deferred_count)


async def until_finished(nsqd: OpenBroker, count: int = COUNT) -> None:
    """Wait until this many messages are finished."""

    async def are() -> bool:
        return await finished(nsqd) >= count

    await until_true(are)


async def stop(process: trio.Process, signum: int = signal.SIGTERM) -> None:
    """Stop the tool, which must exit with 0."""
    process.send_signal(signum)
    with trio.fail_after(LIMIT_S):
        assert await process.wait() == 0


@asynccontextmanager
async def forwarding(messages: list[bytes], *more: str) -> AsyncIterator[OpenBroker]:
    """A broker with messages, and the tool at work until the body ends."""
    async with open_broker() as nsqd:
        await publish(nsqd, messages)
        async with running("nsq_to_http", *flags(nsqd, *more)) as process:
            yield nsqd
            await stop(process)


async def test_post() -> None:
    """Each message is the body of one POST, with the given headers."""
    async with (
        receiver() as server,
        forwarding(
            MESSAGES,
            f"--post={server.url('/in?a=b%20c')}",
            "--content-type=text/plain",
            "--header=X-One: 1: and more",
            "--header=host:example.test",
        ) as nsqd,
    ):
        await until_finished(nsqd)
        assert sorted(server.bodies) == MESSAGES
        (seen,) = {
            (one.method, one.target, *map(one.headers.get, ("content-type", "x-one", "host")))
            for one in server.received
        }
        assert seen == ("POST", "/in?a=b%20c", "text/plain", "1: and more", "example.test")
        assert server.received[0].headers["user-agent"] == "nsq_to_http v1.3.0"


async def test_get() -> None:
    """Each message is in the URL, escaped as in a query; %% stands for %."""
    messages = [b"a b&c=d/\xff%", b"plain"]
    async with (
        receiver() as server,
        forwarding(messages, f"--get={server.url('/x%%20y?m=%s&z=1')}") as nsqd,
    ):
        await until_finished(nsqd, 2)
        assert sorted(one.target for one in server.received) == [
            "/x%20y?m=a+b%26c%3Dd%2F%FF%25&z=1",
            "/x%20y?m=plain&z=1",
        ]
        assert {one.method for one in server.received} == {"GET"}


async def test_connections_are_kept_and_few() -> None:
    """At most n requests run at once, over connections that are used again."""
    now, most = 0, 0

    async def answer(_: Received) -> Answer:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.lowlevel.checkpoint()
        now -= 1
        return Answer()

    async with (
        receiver(answer) as server,
        forwarding(MESSAGES, f"--post={server.url()}", "-n", "3") as nsqd,
    ):
        await until_finished(nsqd)
        assert len(server.received) == COUNT
        assert most <= 3
        assert server.connections <= 3


async def test_cookies_are_not_kept() -> None:
    """A cookie from one response is not sent with the next message."""

    async def answer(_: Received) -> Answer:
        return Answer(headers=(("Set-Cookie", "a=b"),))

    async with (
        receiver(answer) as server,
        forwarding(MESSAGES, f"--post={server.url()}", "-n", "1") as nsqd,
    ):
        await until_finished(nsqd)
        assert not any("cookie" in one.headers for one in server.received)


@pytest.mark.parametrize("signum", SIGNALS)
async def test_a_signal_in_mid_work_loses_nothing(signum: signal.Signals) -> None:
    """Requests in progress are completed and finished; all other messages go back, exit code 0."""
    release = trio.Event()

    async def answer(_: Received) -> Answer:
        await release.wait()
        return Answer()

    async with open_broker() as nsqd, receiver(answer) as server:
        await publish(nsqd, MESSAGES)
        more = flags(nsqd, f"--post={server.url()}", "-n", "3")
        async with running("nsq_to_http", *more) as process:
            await until(lambda: len(server.received) == 3)
            process.send_signal(signum)

            async def takes_no_more() -> bool:
                stats = await channel_stats(nsqd, "t", "nsq_to_http")
                return all(client["ready_count"] == 0 for client in stats["clients"])

            await until_true(takes_no_more)
            assert process.returncode is None
            release.set()
            with trio.fail_after(LIMIT_S):
                assert await process.wait() == 0
        left = await channel_stats(nsqd, "t", "nsq_to_http")
        counts = (left["depth"], left["in_flight_count"], left["deferred_count"])
        assert counts == (COUNT - 3, 0, 0)
        rest = await bodies(nsqd, "t", "nsq_to_http", COUNT - 3)
        assert sorted(server.bodies + rest) == MESSAGES


async def test_a_server_that_dies_and_comes_back() -> None:
    """Without its server it keeps every message, and continues when the server is back."""
    address = free_address()
    port = split_address(address)[1]
    async with open_broker() as nsqd:
        await publish(nsqd, MESSAGES[:10])
        more = flags(nsqd, f"--post=http://{address}/", *SOON)
        async with running("nsq_to_http", *more) as process:
            async with receiver(port=port) as server:
                await until_finished(nsqd, 10)
                first = server.bodies
            await publish(nsqd, MESSAGES[10:])

            async def was_refused() -> bool:
                return bool((await channel_stats(nsqd, "t", "nsq_to_http"))["requeue_count"] > 2)

            await until_true(was_refused)
            assert await finished(nsqd) == 10
            async with receiver(port=port) as server:
                await until_finished(nsqd)
                assert set(first + server.bodies) == set(MESSAGES)
                await stop(process)


@pytest.mark.parametrize("method", ["get", "post"])
async def test_what_is_success(method: str) -> None:
    """Any 2xx is a success for POST, only 200 for GET; otherwise the message comes again."""
    statuses = (200, 204, 299, 300, 404, 500)
    tries: Counter[int] = Counter()

    async def answer(request: Received) -> Answer:
        wanted = int(request.target[-3:] if method == "get" else request.body)
        tries[wanted] += 1
        code = wanted if tries[wanted] == 1 else 200
        return Answer(code, body=b"" if code == 204 else b"text")

    path = "/?m=%s" if method == "get" else "/"
    messages = [b"%d" % status for status in statuses]
    async with (
        receiver(answer) as server,
        forwarding(messages, f"--{method}={server.url(path)}", *SOON) as nsqd,
    ):
        await until_finished(nsqd, len(statuses))
    successes = {200} if method == "get" else {200, 204, 299}
    assert tries == {status: 1 if status in successes else 2 for status in statuses}


async def test_a_server_that_does_not_answer() -> None:
    """After the request timeout the message comes again."""

    async def answer(_: Received) -> Answer:
        if len(server.received) == 1:
            await trio.sleep_forever()
        return Answer()

    patience = "--http-client-request-timeout=100ms"
    async with (
        receiver(answer) as server,
        forwarding([b"one"], f"--post={server.url()}", patience, *SOON) as nsqd,
    ):
        await until_finished(nsqd, 1)
        # More often, where an answer takes longer than the patience.
        assert len(server.bodies) >= 2
        assert set(server.bodies) == {b"one"}


async def test_redirections() -> None:
    """Redirects are followed: 307 with the message, 303 without; ten at most."""

    async def answer(request: Received) -> Answer:
        if request.target == "/loop" and len(server.received) < 12:
            return Answer(307, (("Location", "/loop"),))
        if request.target == "/first":
            return Answer(307, (("Location", "/second"),))
        if request.target == "/second":
            return Answer(303, (("Location", "/third"),))
        return Answer()

    async with receiver(answer) as server:
        async with forwarding([b"one"], f"--post={server.url('/first')}") as nsqd:
            await until_finished(nsqd, 1)
        assert [(one.method, one.target, one.body) for one in server.received] == [
            ("POST", "/first", b"one"),
            ("POST", "/second", b"one"),
            ("GET", "/third", b""),
        ]
        server.received.clear()
        async with forwarding([b"one"], f"--post={server.url('/loop')}", *SOON) as nsqd:
            await until_finished(nsqd, 1)
            assert nsqd.broker.topics["t"].channels["nsq_to_http"].core.requeue_count == 1


MODES = ("round-robin", "hostpool", "epsilon-greedy", "all", "other")


@pytest.mark.parametrize("mode", smoke({mode: mode for mode in MODES}, "hostpool", "all"))
async def test_modes(mode: str) -> None:
    """Each message goes to one address, and each address gets some; otherwise to all addresses."""
    async with receiver() as one, receiver() as two:
        where = (f"--post={one.url()}", f"--post={two.url()}")
        async with forwarding(MESSAGES, *where, f"--mode={mode}") as nsqd:
            await until_finished(nsqd)
        if mode in ("all", "other"):
            assert sorted(one.bodies) == sorted(two.bodies) == MESSAGES
        else:
            assert sorted(one.bodies + two.bodies) == MESSAGES
            assert one.bodies
            assert two.bodies
        if mode in ("round-robin", "hostpool"):
            assert len(one.bodies) == len(two.bodies)


@pytest.mark.parametrize(("mode", "count"), [("hostpool", 1), ("round-robin", COUNT)])
async def test_an_address_that_fails(mode: str, count: int) -> None:
    """The host pool skips it after its first failure; round-robin asks it again and again."""

    async def fail(_: Received) -> Answer:
        return Answer(500)

    async with receiver(fail) as bad, receiver() as good:
        where = (f"--post={bad.url()}", f"--post={good.url()}")
        one_by_one = ("--max-in-flight=1", "-n=1", "--consumer-opt=max_backoff_duration,0")
        more = (*where, f"--mode={mode}", *one_by_one, "--consumer-opt=default_requeue_delay,0")
        async with forwarding(MESSAGES, *more) as nsqd:
            await until_finished(nsqd)
        assert sorted(good.bodies) == MESSAGES
        assert len(bad.bodies) in (count, count - 1)


@pytest.mark.parametrize(
    ("sample", "low", "high"), [("0", 0, 0), ("0.5", 20, 180), ("1", 200, 200)]
)
async def test_sample(sample: str, low: int, high: int) -> None:
    """A fraction of the messages is sent; all are finished."""
    messages = [b"%d" % number for number in range(200)]
    async with (
        receiver() as server,
        forwarding(messages, f"--post={server.url()}", f"--sample={sample}") as nsqd,
    ):
        await until_finished(nsqd, 200)
        counts = Counter(server.bodies)
        assert low <= len(counts) <= high
        assert set(counts.values()) <= {1}


async def test_status_lines() -> None:
    """After each status-every requests it logs their response times."""
    async with receiver() as server, open_broker() as nsqd:
        await publish(nsqd, MESSAGES)
        words = command("nsq_to_http", *flags(nsqd, f"--post={server.url()}", "--status-every=20"))
        process = await trio.lowlevel.open_process(words, stderr=subprocess.PIPE)
        await until_finished(nsqd)
        await stop(process)
        assert process.stderr is not None
        text = b"".join([chunk async for chunk in process.stderr]).decode()
        ms = r"\d+\.\d\dms"
        line = rf"\[aggregate\]: finished (\d+) - 99th: {ms} - 95th: {ms} - avg: {ms}$"
        assert re.findall(line, text, re.MULTILINE) == ["20", "40"]


async def test_https(tmp_path: Path) -> None:
    """https works, and only with a certificate that the machine trusts."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    async with receiver(tls=context) as server, open_broker() as nsqd:
        await publish(nsqd, [b"one"])
        words = command("nsq_to_http", *flags(nsqd, f"--post={server.url(scheme='https')}", *SOON))
        process = await trio.lowlevel.open_process(words, stderr=subprocess.PIPE)
        assert process.stderr is not None
        text = b""
        with trio.fail_after(LIMIT_S):
            while b"CERTIFICATE_VERIFY_FAILED" not in text:
                text += await process.stderr.receive_some()
        await stop(process)
        assert server.received == []
        process = await trio.lowlevel.open_process(
            words, env={**os.environ, "SSL_CERT_FILE": str(ca_file)}
        )
        await until_finished(nsqd, 1)
        await stop(process)
        assert server.bodies == [b"one"]


BASE = ("--topic=t", "--nsqd-tcp-address=127.0.0.1:1")
POST = "--post=http://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--channel=c",), 1, "--topic and --channel are required"),
        (("--topic=t", "--channel="), 1, "--topic and --channel are required"),
        (("--topic=t",), 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            (*BASE, "--lookupd-http-address=b:1"),
            1,
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (BASE, 1, "--get or --post required"),
        ((*BASE, POST, "--get=http://a/%s"), 1, "use --get or --post not both"),
        ((*BASE, "--get=http://a/"), 1, "invalid GET address - must be a printf string"),
        ((*BASE, "--get=http://a/%s%s"), 1, "invalid GET address - must be a printf string"),
        (
            (*BASE, "--get=http://a/%s", "--content-type=a/b"),
            1,
            "--content-type only used with --post",
        ),
        (
            (*BASE, POST, "--content-type="),
            1,
            "--content-type requires a value when used",
        ),
        ((*BASE, POST, "--sample=1.1"), 1, "ERROR: --sample must be between 0.0 and 1.0"),
        ((*BASE, POST, "--sample=nan"), 1, "ERROR: --sample must be between 0.0 and 1.0"),
        ((*BASE, POST, "--sample=x"), 2, "parse error"),
        ((*BASE, POST, "--header=x"), 1, "--header value format should be 'key=value'"),
        ((*BASE, POST, "--header=x y: z"), 1, "--header value format should be 'key=value'"),
        ((*BASE, "--post=ftp://a/"), 1, "not the URL of an HTTP server: ftp://a/"),
        ((*BASE, POST, "-n=0"), 1, "--n should be positive"),
        ((*BASE, POST, "--consumer-opt=no,1"), 2, "invalid value for flag -consumer-opt"),
        (("--topic=t", "--nsqd-tcp-address=a", POST), 1, "'a' is not host:port"),
        ((*BASE, POST), 1, "127.0.0.1:1"),
        (("--nope",), 2, "flag provided but not defined: -nope"),
    ],
)
def test_wrong_usage(
    words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line reports the error, exit code 1; for a bad flag the usage, exit code 2."""
    ended = run_here("nsq_to_http", words, capsys)
    assert (ended.code, text in ended.err) == (code, True), ended.err
    assert "Traceback" not in ended.err


async def test_version() -> None:
    """--version prints the version, exit code 0."""
    ended = await run("nsq_to_http", "--version")
    assert (ended.code, ended.out) == (0, b"nsq_to_http v1.3.0\n")
