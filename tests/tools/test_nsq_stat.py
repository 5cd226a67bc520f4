"""The tool nsq_stat, as a process and against a real nsqd."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from tests.processes import running_nsqlookupd
from tests.tools.support import LIMIT_S, PATIENT, bodies, run, run_here, running, until_true
from trionsq import httpget
from trionsq.client import Producer
from trionsq.testing import OpenBroker, open_broker
from trionsq.tools.nsq_stat import ChannelCounts, row

HEADER = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)


def test_a_row() -> None:
    """The columns have the original's widths; rates are per second and rounded down."""
    figures = ChannelCounts(
        depth=3, in_flight_count=1, message_count=6, backend_depth=0, client_count=0
    )
    assert row(figures, figures, 2) == (
        "      0       0 |       3       3       0     1     0 |       0       0"
        "            6       0"
    )
    now = ChannelCounts(8, 5, 1, 2, 3, 4, 17, 9)
    assert row(figures, now, 2) == (
        "      5       3 |       8       3       5     1     2 |       3       4"
        "           17       9"
    )


async def _fill(nsqd: OpenBroker, count: int) -> None:
    """Create channel c of topic t with this many messages."""
    async with Producer(nsqd.tcp_address, config=PATIENT) as producer:
        await producer.publish("t", b"first")
        await bodies(nsqd, "t", "c", 1)
        await producer.publish_many("t", [b"x"] * count)


async def test_rows_are_sums_over_all_nsqds() -> None:
    """--count rows after the header, each the sum over the nsqds, then exit code 0."""
    async with open_broker() as one, open_broker() as two:
        await _fill(one, 3)
        await _fill(two, 4)
        ended = await run(
            "nsq_stat",
            "--topic=t",
            "--channel=c",
            f"--nsqd-http-address={one.http_address}",
            f"--nsqd-http-address={two.http_address}",
            "--interval=50ms",
            "--count=26",
        )
        assert (ended.code, ended.err) == (0, "")
        line = row(zero := ChannelCounts(7, message_count=9), zero, 1) + "\n"
        assert ended.out.decode() == HEADER + line * 24 + HEADER + line * 2


async def test_nsqds_are_discovered() -> None:
    """With --lookupd-http-address the counts are those of the nsqds that have the topic."""
    async with (
        running_nsqlookupd() as lookupd,
        open_broker(
            lookupd_tcp_address=(lookupd.tcp_address,), broadcast_address="127.0.0.1"
        ) as nsqd,
    ):
        await _fill(nsqd, 2)
        url = f"http://{lookupd.http_address}/lookup?topic=t"
        port = nsqd.http_address.rpartition(":")[2].encode()

        async def is_known() -> bool:
            return port in (await httpget.get(url)).body

        await until_true(is_known)
        ended = await run(
            "nsq_stat",
            "--topic=t",
            "--channel=c",
            f"--lookupd-http-address={lookupd.http_address}",
            "--interval=50ms",
            "--count=1",
        )
        assert ended.code == 0
        line = row(figures := ChannelCounts(2, message_count=3), figures, 1) + "\n"
        assert ended.out.decode() == HEADER + line


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
async def test_signals_end_it(signum: signal.Signals) -> None:
    """SIGHUP, SIGINT and SIGTERM end it at once, exit code 0."""
    reading, writing = os.pipe()
    try:
        async with open_broker() as nsqd:
            await _fill(nsqd, 1)
            address = f"--nsqd-http-address={nsqd.http_address}"
            flags = ("--topic=t", "--channel=c", address, "--interval=1h")
            async with running("nsq_stat", *flags, stdout=writing) as process:
                with trio.fail_after(LIMIT_S):
                    # The header comes once signals are handled.
                    await trio.lowlevel.wait_readable(reading)
                    process.send_signal(signum)
                    assert await process.wait() == 0
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_channel_that_is_not_there() -> None:
    """The tool reports a missing channel and exits with 1."""
    async with open_broker() as nsqd:
        await _fill(nsqd, 1)
        address = f"--nsqd-http-address={nsqd.http_address}"
        ended = await run("nsq_stat", "--topic=t", "--channel=no", address)
        assert ended.code == 1
        text = "ERROR: failed to find channel(no) in stats metadata for topic(t)"
        assert text in ended.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--topic=t",), "--topic and --channel are required"),
        (
            ("--topic=t", "--channel=c"),
            "--nsqd-http-address or --lookupd-http-address required",
        ),
        (
            ("--topic=t", "--channel=c", "--nsqd-http-address=a:1", "--lookupd-http-address=b:1"),
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            ("--topic=t", "--channel=c", "--nsqd-http-address=http://a:1"),
            "address should not contain scheme",
        ),
        (("--topic=t", "--channel=c", "--interval=0"), "--interval should be positive"),
        (("--topic=t", "--channel=c", "--count=0"), "--count should be positive"),
        (
            ("--topic=t", "--channel=c", "--nsqd-http-address=127.0.0.1:1"),
            "ERROR: failed to get http://127.0.0.1:1/stats",
        ),
    ],
)
def test_wrong_usage(flags: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line reports the error, exit code 1."""
    ended = run_here("nsq_stat", flags, capsys)
    assert ended.code == 1
    assert text in ended.err
    assert "Traceback" not in ended.err
