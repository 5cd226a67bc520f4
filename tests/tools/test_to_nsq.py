"""The tool to_nsq, as a process and against a real nsqd."""

from __future__ import annotations

import os
import signal

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.support import (
    LIMIT_S,
    SIGNALS,
    bodies,
    command,
    drain,
    handles,
    run,
    running,
    stats,
    until,
    until_true,
)
from trionsq.client import Config
from trionsq.testing import OpenBroker, open_broker
from trionsq.tools.to_nsq import RecordSplitter, ToNsqOptions, _Publishing, groups


@given(st.lists(st.text(alphabet="ab\n").map(str.encode)))
def test_records_do_not_depend_on_how_they_come(pieces: list[bytes]) -> None:
    """However the input is cut, the records are the same; empty ones are dropped."""
    records = RecordSplitter(b"\n")
    found = [record for piece in pieces for record in records.feed(piece)]
    if rest := records.pop_rest():
        found.append(rest)
    assert found == [record for record in b"".join(pieces).split(b"\n") if record]


def test_groups_are_bounded_and_leave_out_nothing() -> None:
    """A group has at most 500 records and 256 KiB; a larger record stands alone."""
    records = [b"x"] * 1100 + [b"y" * 300_000] + [b"z" * 200_000] * 2
    parted = list(groups(records))
    assert [record for group in parted for record in group] == records
    assert [len(group) for group in parted] == [500, 500, 100, 1, 1, 1]


async def test_each_nsqd_gets_every_record() -> None:
    """Records are published in order to all nsqds, without empty ones and with the last one."""
    async with open_broker() as one, open_broker() as two:
        ended = await run(
            "to_nsq",
            "--topic=t",
            f"--nsqd-tcp-address={one.tcp_address}",
            f"--nsqd-tcp-address={two.tcp_address}",
            stdin=b"one\n\ntwo\nthree",
        )
        assert (ended.code, ended.err) == (0, "")
        for nsqd in (one, two):
            assert await bodies(nsqd, "t", "c", 3) == [b"one", b"two", b"three"]


async def test_another_delimiter() -> None:
    """--delimiter replaces the newline, which is then an ordinary byte."""
    async with open_broker() as nsqd:
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        ended = await run("to_nsq", "--topic=t", address, "--delimiter=,", stdin=b"a\n,b")
        assert ended.code == 0
        assert await bodies(nsqd, "t", "c", 2) == [b"a\n", b"b"]


async def test_a_refused_record_ends_it() -> None:
    """nsqd's error ends the tool with 1; the records before it are published, none after it."""
    async with open_broker(max_msg_size=100) as nsqd:
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        lines = b"a\nb\n" + b"x" * 101 + b"\n" + b"after\n" * 5000
        ended = await run("to_nsq", "--topic=t", address, stdin=lines)
        assert ended.code == 1
        assert "failed to publish - E_BAD_MESSAGE" in ended.err
        assert (await stats(nsqd, "t"))["message_count"] == 2


async def test_progress_is_shown_on_a_terminal() -> None:
    """On a terminal stderr shows the number of published records; otherwise it stays empty."""
    terminal, slave = os.openpty()
    try:
        async with open_broker() as nsqd:
            flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
            with trio.fail_after(LIMIT_S):
                await trio.run_process(command("to_nsq", *flags), stdin=b"a\nb\n", stderr=slave)
        assert b"2 published" in drain(terminal)
    finally:
        os.close(terminal)
        os.close(slave)


async def _feed(fd: int, sent: bytearray) -> None:
    """Write lines to a pipe until cancelled; *sent* collects the written bytes."""
    os.set_blocking(fd, False)
    number = 0
    rest = b""
    while True:
        if not rest:
            rest = b"".join(b"line %d\n" % n for n in range(number, number + 100))
            number += 100
        await trio.lowlevel.wait_writable(fd)
        # Any boundary may be cut.
        written = os.write(fd, rest[:1001])
        sent += rest[:written]
        rest = rest[written:]


async def _published(nsqd: OpenBroker) -> int:
    return int((await stats(nsqd, "t")).get("message_count", 0))


@pytest.mark.parametrize(("rate", "least"), [("0", 2000), ("50", 3)])
@pytest.mark.parametrize("signum", SIGNALS)
async def test_a_signal_in_mid_work_loses_nothing(
    rate: str, least: int, signum: signal.Signals
) -> None:
    """Every byte that was read is published; the others are still in the pipe, line by line."""
    sent = bytearray()
    reading, writing = os.pipe()
    try:
        async with open_broker(mem_queue_size=10_000_000) as nsqd, trio.open_nursery() as nursery:
            nursery.start_soon(_feed, writing, sent)
            flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}", f"--rate={rate}")
            async with running("to_nsq", *flags, stdin=reading) as process:

                async def has_begun() -> bool:
                    return await _published(nsqd) >= least

                await until_true(has_begun)
                with trio.fail_after(LIMIT_S):
                    process.send_signal(signum)
                    assert await process.wait() == 0
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                count = await _published(nsqd)
                published = await bodies(nsqd, "t", "c", count)
                unread = drain(reading)
                assert len(published) >= least
                assert b"".join(body + b"\n" for body in published) + unread == bytes(sent)
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_second_signal_ends_it_at_once() -> None:
    """While it waits for the end of a record, a second signal kills it."""
    reading, writing = os.pipe()
    try:
        async with open_broker() as nsqd:
            flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
            async with running("to_nsq", *flags, stdin=reading) as process:
                os.write(writing, b"whole\nbegun")

                async def has_begun() -> bool:
                    return await _published(nsqd) == 1

                await until_true(has_begun)
                process.send_signal(signal.SIGTERM)
                await until(lambda: not handles(process, signal.SIGTERM))
                process.send_signal(signal.SIGTERM)
                with trio.fail_after(LIMIT_S):
                    assert await process.wait() == -signal.SIGTERM
    finally:
        os.close(reading)
        os.close(writing)


async def test_the_rate(autojump_clock: trio.testing.MockClock) -> None:
    """Messages start 1/rate apart; time spent waiting for input is not made up for."""
    publishing = _Publishing(ToNsqOptions(rate=4), Config())
    begins = []
    for pause_s in (0, 0, 0, 10, 0, 0):
        await trio.sleep(pause_s)
        await publishing._wait_for_turn()
        begins.append(trio.current_time())
    assert [begin - begins[0] for begin in begins] == pytest.approx([0, 0.25, 0.5, 10.5, 10.75, 11])


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        ((), 1, "--topic required"),
        (("--topic=t",), 1, "--nsqd-tcp-address required"),
        (("--topic=t!", "--nsqd-tcp-address=127.0.0.1:1"), 1, "--topic is invalid"),
        (("--topic=t", "--delimiter=ab"), 1, "--delimiter must be a single byte"),
        (("--topic=t", "--delimiter="), 1, "--delimiter must be a single byte"),
        (("--topic=t", "--nsqd-tcp-address=127.0.0.1:1"), 1, "failed to publish - "),
        (("--topic=t", "--nsqd-tcp-address=nowhere"), 1, "'nowhere' is not host:port"),
        (
            ("--topic=t", "--nsqd-tcp-address=127.0.0.1:1", "--producer-opt=nope,1"),
            2,
            "there is no option 'nope'",
        ),
        (("--version",), 2, "flag provided but not defined: -version"),
    ],
)
async def test_wrong_usage(flags: tuple[str, ...], code: int, text: str) -> None:
    """One line reports the error, exit code 1; for a bad flag the usage, exit code 2."""
    ended = await run("to_nsq", *flags, stdin=b"x")
    assert ended.code == code
    assert text in ended.err
    assert "Traceback" not in ended.err
