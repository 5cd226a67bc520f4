"""nsq_to_file as a process, against a real nsqd."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.processes import running_nsqlookupd
from tests.soak import smoke
from tests.tools.support import PATIENT, SIGNALS, run_here
from trionsq.client import Config, Consumer, Producer
from trionsq.testing import OpenBroker, open_broker
from trionsq.tools.nsq_to_file import TopicTask
from trionsq.tools.nsq_to_file_options import NsqToFileOptions
from trionsq.tools.stdio import Progress

COMMAND = [sys.executable, "-m", "trionsq.tools.nsq_to_file"]
LIMIT_S = 60.0


@asynccontextmanager
async def running(nsqd: OpenBroker, folder: Path, *flags: str) -> AsyncIterator[trio.Process]:
    """Run the tool, for topic t unless the flags name one."""
    base = [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--output-dir={folder}"]
    if not any(flag.startswith("--topic") for flag in flags):
        base.append("--topic=t")
    if any(flag.startswith("--lookupd") for flag in flags):
        base.pop(0)
    process = await trio.lowlevel.open_process(
        [*COMMAND, *base, *flags], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        with trio.fail_after(LIMIT_S):
            yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def stop(process: trio.Process, signum: int = signal.SIGTERM) -> str:
    """Send a signal and wait for exit code 0. Returns the log."""
    process.send_signal(signum)
    text = await log_of(process)
    assert process.returncode == 0, text
    return text


async def log_of(process: trio.Process) -> str:
    """The log until the tool ends."""
    assert process.stderr is not None
    text = b"".join([chunk async for chunk in process.stderr])
    await process.wait()
    return text.decode()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    with trio.fail_after(LIMIT_S):
        while not is_so():  # noqa: ASYNC110 - nothing tells
            await trio.sleep(0.01)


def records(folder: Path) -> list[bytes]:
    """The records of all files."""
    found: list[bytes] = []
    for path in sorted(folder.rglob("*.*")):
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        assert not data or data.endswith(b"\n")
        found += data.split(b"\n")[:-1]
    return found


def finished(nsqd: OpenBroker) -> int:
    """The number of finished messages of the channel."""
    topic = nsqd.broker.topics.get("t")
    channel = topic.channels.get("nsq_to_file") if topic else None
    if channel is None:
        return 0
    core = channel.core
    return core.message_count - core.depth - core.in_flight_count - core.deferred_count


def names(folder: Path) -> list[str]:
    """The names of all files, sorted."""
    return sorted(path.name for path in folder.iterdir())


async def publish(nsqd: OpenBroker, bodies: Sequence[bytes], topic: str = "t") -> None:
    """Publish and wait for the confirmation."""
    async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
        await producer.publish_many(topic, list(bodies))


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (["--version"], 0, ""),
        ([], 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (["--nsqd-tcp-address=a:1", "--lookupd-http-address=a:1"], 1, "not both"),
        (["--nsqd-tcp-address=a:1", "--channel="], 1, "--channel is required"),
        (["--nsqd-tcp-address=a:1"], 1, "--topic or --topic-pattern required"),
        (
            ["--nsqd-tcp-address=a:1", "--topic-pattern=x"],
            1,
            "--lookupd-http-address must be specified when no --topic specified",
        ),
        (
            ["--nsqd-tcp-address=a:1", "--gzip-level=10"],
            1,
            "invalid --gzip-level value (10), should be 1-9",
        ),
        (["--log-level=loud"], 1, "--log-level is invalid"),
        (["one", "two"], 1, "unknown arguments: [one two]"),
        (["--nsqd-tcp-address=a:1", "--topic=t", "--consumer-opt=no,1"], 2, "no option 'no'"),
        (["--no-such"], 2, "flag provided but not defined: -no-such"),
        (
            ["--nsqd-tcp-address=127.0.0.1:1", "--topic=t", "--gzip", "--filename-format=x"],
            1,
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled",
        ),
        (["--nsqd-tcp-address=127.0.0.1:1", "--topic=t"], 1, "couldn't create logger for topic t"),
    ],
)
def test_refusals(
    flags: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused options have the original's texts and exit codes."""
    ended = run_here("nsq_to_file", flags, capsys)
    assert (ended.code, line in ended.err) == (code, True), ended.err
    if flags == ["--version"]:
        assert ended.out == b"nsq_to_file v1.3.0\n"


@pytest.mark.parametrize("signum", SIGNALS)
async def test_a_signal_syncs_finishes_and_closes(tmp_path: Path, signum: int) -> None:
    """Messages too few for a sync are written and finished when the tool ends with 0."""
    async with open_broker() as nsqd:
        async with running(nsqd, tmp_path) as process:
            await publish(nsqd, [b"one", b"two"])
            await until(lambda: records(tmp_path) == [b"one", b"two"])
            channel = nsqd.broker.topics["t"].channels["nsq_to_file"].core
            assert channel.in_flight_count == 2
            await stop(process, signum)
        assert not channel.in_flight_count
        assert not channel.depth
    assert records(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize(
    "flags",
    smoke(
        {
            "plain": [],
            "all at once": [
                *("--gzip", "--rotate-size=5000", "--work-dir={work}", "--max-in-flight=50")
            ],
        },
        "all at once",
    ),
)
async def test_nothing_is_lost_when_stopped_in_mid_work(tmp_path: Path, flags: list[str]) -> None:
    """Stopped and started repeatedly under load: each message is in a file exactly once."""
    expected = [b"%d" % number for number in range(20_000)]
    output = tmp_path / "output"
    flags = [flag.format(work=tmp_path / "work") for flag in flags]
    stops = 0
    async with open_broker(mem_queue_size=len(expected)) as nsqd, trio.open_nursery() as nursery:
        has_published = trio.Event()

        async def feed() -> None:
            for first in range(0, len(expected), 100):
                await publish(nsqd, expected[first : first + 100])
            has_published.set()

        nursery.start_soon(feed)
        before = 0
        while before < len(expected):
            async with running(nsqd, output, *flags) as process:
                aim = min(before + 1 + 4_000, len(expected))
                await until(partial(lambda aim: finished(nsqd) >= aim, aim))
                await stop(process)
                stops += 1
            before = len(records(output))
            # What is finished is in files, and what is not finished is in none.
            assert before == finished(nsqd)
        await has_published.wait()
    assert stops >= 3
    assert sorted(records(output)) == sorted(expected)
    assert not records(tmp_path / "work")


async def test_nothing_is_lost_when_killed(tmp_path: Path) -> None:
    """After kill -9 a second run writes the rest; no message is missing.

    What the first had in flight comes after its time-out: nsqd does not requeue on a disconnection.
    """
    expected = [b"%d" % number for number in range(5_000)]
    async with open_broker() as nsqd:
        await publish(nsqd, expected)
        async with running(nsqd, tmp_path, "--consumer-opt=msg_timeout,1s") as process:
            await until(lambda: len(names(tmp_path)) > 0)
            process.kill()
            await process.wait()
        async with running(nsqd, tmp_path) as process:
            await until(lambda: set(expected) <= set(records(tmp_path)))
            await stop(process)


async def test_hang_up_begins_another_file(tmp_path: Path) -> None:
    """SIGHUP syncs, finishes and closes; the next message is in the next revision."""
    async with open_broker() as nsqd, running(nsqd, tmp_path, "--gzip") as process:
        await publish(nsqd, [b"one"])
        await until(lambda: len(names(tmp_path)) == 1)
        channel = nsqd.broker.topics["t"].channels["nsq_to_file"].core
        assert channel.in_flight_count == 1
        process.send_signal(signal.SIGHUP)
        await until(lambda: not channel.in_flight_count)
        await publish(nsqd, [b"two"])
        await until(lambda: len(names(tmp_path)) == 2)
        await stop(process)
        assert records(tmp_path) == [b"one", b"two"]
        assert ["-00000" in name for name in names(tmp_path)] == [True, True]


async def test_sync_interval(tmp_path: Path) -> None:
    """A message waits at most the interval for its FIN; files rotate also without messages."""
    flags = ["--sync-interval=50ms", "--rotate-interval=200ms"]
    async with open_broker() as nsqd, running(nsqd, tmp_path, *flags) as process:
        await publish(nsqd, [b"one"])
        await until(lambda: finished(nsqd) == 1)
        await until(lambda: len(names(tmp_path)) >= 3)
        await stop(process)
        assert records(tmp_path) == [b"one"]


async def test_a_write_error_is_fatal_and_gives_back(tmp_path: Path) -> None:
    """On a full disk the tool exits with 1, and nsqd still has every message."""
    (tmp_path / "full").symlink_to("/dev/full")
    async with open_broker() as nsqd:
        async with running(nsqd, tmp_path, "--filename-format=full") as process:
            await publish(nsqd, [b"one", b"two"])
            text = await log_of(process)
        assert process.returncode == 1
        assert "FATAL: t: [Errno 28] No space left on device" in text
        channel = nsqd.broker.topics["t"].channels["nsq_to_file"].core
        await until(lambda: not channel.in_flight_count)
        assert finished(nsqd) == 0
        assert channel.depth == 2


async def test_topics_by_pattern(tmp_path: Path) -> None:
    """Matching topics that appear at nsqlookupd later are written too."""
    async with (
        running_nsqlookupd() as lookupd,
        open_broker(
            lookupd_tcp_address=(lookupd.tcp_address,), broadcast_address="127.0.0.1"
        ) as nsqd,
    ):
        flags = [
            "--topic-pattern=^log_",
            "--topic-refresh=100ms",
            f"--lookupd-http-address={lookupd.http_address}",
            "--consumer-opt=lookupd_poll_interval,100ms",
            "--filename-format=<TOPIC>.log",
        ]
        async with running(nsqd, tmp_path, *flags) as process:
            await publish(nsqd, [b"one"], "log_a")
            await publish(nsqd, [b"two"], "other")
            await until(lambda: (tmp_path / "log_a.log").exists())
            await stop(process)
    assert names(tmp_path) == ["log_a.log"]
    assert records(tmp_path) == [b"one"]


async def test_no_message_is_finished_before_its_fsync(tmp_path: Path) -> None:
    """At any fsync, nsqd has had no FIN for a record that is not yet durable.

    And a failed one is the last: it ends the topic, and what it was for goes back to nsqd.
    """
    durable = 0
    early = 0

    async with open_broker() as nsqd:

        def fsync(fd: int) -> None:
            nonlocal durable, early
            path = Path(f"/proc/self/fd/{fd}")
            if path.is_dir():
                return
            early += finished(nsqd) > durable
            if durable >= 2000:
                raise OSError(5, "Input/output error")
            durable = len(path.read_bytes().splitlines())

        async def feed() -> None:
            # Too few at once to be due for a sync; that is what the interval is for.
            async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
                for number in range(0, 5_000, 10):
                    await producer.publish_many(
                        "t", [b"%d" % n for n in range(number, number + 10)]
                    )

        options = NsqToFileOptions(
            topic=("t",),
            nsqd_tcp_address=(nsqd.tcp_address,),
            output_dir=str(tmp_path),
            filename_format="t.log",
            sync_interval_ns=20_000_000,
        )
        task = TopicTask("t", options, Config(max_in_flight=200), Progress("messages"))
        task._log._fsync = fsync
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed)
                nursery.start_soon(task.run)
        assert task.has_failed
        channel = nsqd.broker.topics["t"].channels["nsq_to_file"].core
        await until(lambda: not channel.in_flight_count)
        assert not early
        assert finished(nsqd) == durable
        assert channel.depth == 5_000 - durable


async def test_what_waits_for_a_sync_is_not_delivered_again(tmp_path: Path) -> None:
    """nsqd redelivers nothing, although the sync interval exceeds its timeout."""
    async with open_broker() as nsqd:
        where = [nsqd.tcp_address]
        flags = ["--consumer-opt=msg_timeout,3s", "--sync-interval=1h"]
        config = replace(PATIENT, msg_timeout_s=3, max_attempts=0)
        async with (
            running(nsqd, tmp_path, *flags) as process,
            Consumer("t", "silent", nsqd_tcp_addresses=where, config=config) as silent,
        ):
            await until(lambda: "nsq_to_file" in nsqd.broker.topics["t"].channels)
            await publish(nsqd, [b"one"])
            await until(lambda: records(tmp_path) == [b"one"])
            # Time passes by the clock of nsqd: it delivers again what this one does not answer.
            async for message in silent:
                if message.attempts == 2:
                    break
            channel = nsqd.broker.topics["t"].channels["nsq_to_file"].core
            assert (channel.in_flight_count, channel.timeout_count) == (1, 0)
            await stop(process)
            assert finished(nsqd) == 1
    assert records(tmp_path) == [b"one"]


async def test_what_a_killed_run_left_is_moved_by_the_next(tmp_path: Path) -> None:
    """After kill -9 the next run moves the work dir's file; messages come again, and none is
    missing.
    """
    output, work = tmp_path / "output", tmp_path / "work"
    flags = ["--gzip", f"--work-dir={work}", "--sync-interval=50ms", "--max-in-flight=1"]
    async with open_broker() as nsqd:
        async with running(nsqd, output, *flags) as process:
            await publish(nsqd, [b"one", b"two"])
            await until(lambda: finished(nsqd) == 2)
            process.kill()
            await process.wait()
        assert not names(output)
        async with running(nsqd, output, *flags) as process:
            await until(lambda: len(names(output)) == 1)
            assert records(output) == [b"one", b"two"]
            await stop(process)
        assert not names(work)
