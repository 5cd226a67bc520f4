"""The way down of the command: signals, exit codes, and what is said of a full disk."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.broker.support import Gate
from tests.processes import nsqd_command, split_address
from tests.soak import smoke
from trionsq.broker.drain import Drain, DrainPhase
from trionsq.broker.options import NsqdOptions, validated
from trionsq.daemon.signals import ECHO_S
from trionsq.local import nsqd_daemon
from trionsq.transports.poller import Poller

LIMIT_S = 60.0
# No file may be longer: a message has room, a few hundred do not.
FILE_NBYTES_MAX = 20_000
BODY_NBYTES = 1000
LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")


class Nsqd:
    """A process that was started, and the address of its HTTP API."""

    def __init__(
        self,
        data_path: Path,
        *flags: str,
        file_nbytes_max: int | None = None,
        command: Sequence[str] = (),
    ) -> None:
        def limit() -> None:
            if file_nbytes_max is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_nbytes_max, file_nbytes_max))

        self.log: list[str] = []
        self.process = subprocess.Popen(
            [
                *(command or nsqd_command()),
                f"--data-path={data_path}",
                "--tcp-address=127.0.0.1:0",
                "--http-address=127.0.0.1:0",
                *flags,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        self.http_address = ""

    def wait_until_it_listens(self) -> None:
        """Read the log up to the address, or to the end."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if (found := LISTENING.search(line)) and found[1] == "HTTP":
                self.http_address = found[2]
                return

    def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer."""
        host, port = split_address(self.http_address)
        connection = HTTPConnection(host, port, timeout=LIMIT_S)
        try:
            connection.request(method, target, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def depths(self) -> dict[str, int]:
        """The depth of each topic and channel."""
        document = json.loads(self.ask("GET", "/stats?format=json")[1])
        found = {}
        for topic in document["topics"]:
            found[topic["topic_name"]] = topic["depth"]
            for channel in topic["channels"]:
                found[f"{topic['topic_name']}:{channel['channel_name']}"] = channel["depth"]
        return found

    def end(self, *signals: int) -> int:
        """Send signals and wait for the end; the exit code."""
        for number in signals:
            self.process.send_signal(number)
        code = self.process.wait(LIMIT_S)
        # Not by communicate(), which does not know what iteration has read ahead.
        assert self.process.stderr is not None
        self.log += self.process.stderr.read().splitlines(keepends=True)
        return code


@contextmanager
def running(
    data_path: Path,
    *flags: str,
    file_nbytes_max: int | None = None,
    command: Sequence[str] = (),
) -> Iterator[Nsqd]:
    """An nsqd that listens; killed if the test leaves it running."""
    nsqd = Nsqd(data_path, *flags, file_nbytes_max=file_nbytes_max, command=command)
    try:
        nsqd.wait_until_it_listens()
        yield nsqd
    finally:
        nsqd.process.kill()
        nsqd.process.wait()
        assert nsqd.process.stderr is not None
        nsqd.process.stderr.close()


def mpub(nsqd: Nsqd, topic: str, count: int) -> tuple[int, bytes]:
    """Publish ``count`` messages in one request."""
    lines = b"".join(b"%0*d\n" % (BODY_NBYTES, number) for number in range(count))
    return nsqd.ask("POST", f"/mpub?topic={topic}", lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_everything_on_disk(number: int, tmp_path: Path) -> None:
    """Exit 0; the next one has all messages, and the pause."""
    with running(tmp_path) as nsqd:
        assert nsqd.ask("POST", "/topic/create?topic=t")[0] == 200
        assert nsqd.ask("POST", "/channel/create?topic=t&channel=c")[0] == 200
        assert mpub(nsqd, "t", 30) == (200, b"OK")
        assert mpub(nsqd, "u", 20) == (200, b"OK")
        assert nsqd.ask("POST", "/topic/pause?topic=u")[0] == 200
        assert nsqd.end(number) == 0
    assert not [line for line in nsqd.log if "ERROR" in line or "Traceback" in line]
    assert not list(tmp_path.glob("*.tmp"))
    with running(tmp_path) as nsqd:
        assert nsqd.depths() == {"t": 0, "t:c": 30, "u": 20}
        assert b'"paused":true' in nsqd.ask("GET", "/stats?format=json")[1]
        assert nsqd.end(signal.SIGTERM) == 0


def state_of_drain(nsqd: Nsqd) -> str:
    """As /config/drain has it."""
    return str(json.loads(nsqd.ask("GET", "/config/drain")[1])["state"])


@pytest.mark.parametrize("storage", smoke({"default": "default", "log": "log"}, "default"))
def test_sigterm_drains_if_asked_to(storage: str, tmp_path: Path) -> None:
    """It serves on until nothing is left, or its limit; exit 0, and what is left is on disk."""
    flags = ("--sigterm=drain", f"--storage={storage}")
    with running(tmp_path, *flags, "--drain-timeout=500ms") as nsqd:
        assert mpub(nsqd, "t", 5) == (200, b"OK")
        assert nsqd.end(signal.SIGTERM) == 0
    assert any("5 messages stay" in line for line in nsqd.log)
    with running(tmp_path, *flags) as nsqd:
        assert state_of_drain(nsqd) == "off"
        nsqd.process.send_signal(signal.SIGTERM)
        while state_of_drain(nsqd) != "draining":
            pass
        assert mpub(nsqd, "t", 1) == (503, b'{"message":"DRAINING"}')
        assert nsqd.depths() == {"t": 5}
        assert nsqd.ask("POST", "/topic/empty?topic=t")[0] == 200
        assert nsqd.end() == 0
    assert any("NSQ: drained in " in line for line in nsqd.log)


def test_a_second_sigterm_ends_a_drain_in_order(tmp_path: Path) -> None:
    """With everything on disk and exit 0; so does SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(tmp_path, "--sigterm=drain", "--drain-timeout=0") as nsqd:
            mpub(nsqd, "t", 5)
            nsqd.process.send_signal(signal.SIGTERM)
            while state_of_drain(nsqd) != "draining":
                pass
            time.sleep(2 * ECHO_S)
            assert nsqd.end(number) == 0
            assert not any("drained" in line for line in nsqd.log)
    with running(tmp_path) as nsqd:
        assert nsqd.depths() == {"t": 10}


async def test_what_sigterm_does_during_a_drain(autojump_clock: MockClock) -> None:
    """An echo does nothing; a later one stops nsqd, unless the drain was cancelled meanwhile."""
    drain = Drain({}, 0)
    sigterm = nsqd_daemon._Sigterm()
    assert sigterm.stops(signal.SIGTERM)
    sigterm.drain = drain
    assert sigterm.stops(signal.SIGINT)
    for _ in range(2):
        assert not sigterm.stops(signal.SIGTERM)
        assert drain.phase is DrainPhase.DRAINING
        assert not sigterm.stops(signal.SIGTERM)
        await trio.sleep(ECHO_S + 0.01)
        assert sigterm.stops(signal.SIGTERM)
        drain.cancel()
    await trio.sleep(1)
    drain.begin(exits=False)
    assert not sigterm.stops(signal.SIGTERM)
    assert drain.exits
    drain.cancel()
    await trio.sleep(1)
    drain.begin(exits=False)
    drain.phase = DrainPhase.EMPTY
    assert sigterm.stops(signal.SIGTERM)


def test_a_drain_by_http_ends_the_process(tmp_path: Path) -> None:
    """As SIGTERM does, and without --sigterm."""
    with running(tmp_path) as nsqd:
        assert nsqd.ask("PUT", "/config/drain", b"true")[0] == 200
        assert nsqd.end() == 0


def test_a_full_disk_at_the_stop(tmp_path: Path) -> None:
    """Exit 1, the log names queue and number of messages; what was saved before is whole.

    A file size limit stands for the full disk: writes fail with EFBIG, the signal that comes with
    it does not end the process.
    """
    with running(tmp_path) as nsqd:
        assert mpub(nsqd, "t", 7) == (200, b"OK")
        assert nsqd.end(signal.SIGTERM) == 0
    with running(tmp_path, file_nbytes_max=FILE_NBYTES_MAX) as nsqd:
        assert mpub(nsqd, "t", 100) == (200, b"OK")
        assert mpub(nsqd, "u", 9) == (200, b"OK")
        assert nsqd.end(signal.SIGTERM) == 1
    unsaved = [line for line in nsqd.log if "could not save" in line]
    assert len(unsaved) == 1
    assert "ERROR: NSQ: could not save: t: 100 messages only in memory: " in unsaved[0]
    assert "File too large" in unsaved[0]
    with running(tmp_path) as nsqd:
        assert nsqd.depths() == {"t": 7, "u": 9}
        for topic in ("t", "u"):
            assert nsqd.ask("POST", f"/channel/create?topic={topic}&channel=c")[0] == 200
            assert mpub(nsqd, topic, 1) == (200, b"OK")
        assert nsqd.end(signal.SIGTERM) == 0
    assert not list(tmp_path.glob("*.bad"))
    with running(tmp_path) as nsqd:
        depths = nsqd.depths()
        assert depths["t"] + depths["t:c"] == 8
        assert depths["u"] + depths["u:c"] == 10


def test_a_full_disk_while_it_runs(tmp_path: Path) -> None:
    """/mpub is refused as a whole, /ping is red, and what was taken is there afterwards."""
    flags = ("--mem-queue-size=0",)
    taken = 0
    with running(tmp_path, *flags, file_nbytes_max=FILE_NBYTES_MAX) as nsqd:
        for _ in range(20):
            status, body = mpub(nsqd, "t", 3)
            if status != 200:
                break
            taken += 3
        assert status == 503
        assert json.loads(body)["message"].startswith("MPUB_FAILED: ")
        assert 0 < taken < 60
        status, body = nsqd.ask("GET", "/ping")
        assert (status, body[:6]) == (500, b"NOK - ")
        assert nsqd.end(signal.SIGTERM) == 0
    with running(tmp_path, *flags) as nsqd:
        assert nsqd.depths() == {"t": taken}
        assert nsqd.ask("GET", "/ping") == (200, b"OK")


# Start errors of the data path


def fatal_line(nsqd: Nsqd) -> str:
    """The text of the FATAL line, the last one of the log."""
    found = re.fullmatch(r"\[nsqd\] [\d/]{10} [\d:.]{15} FATAL: (.*)\n", nsqd.log[-1])
    assert found is not None, nsqd.log
    return found[1]


def test_a_locked_data_path(tmp_path: Path) -> None:
    """A second nsqd ends with nsqd's own words; the first one is not disturbed."""
    with running(tmp_path) as first:
        assert mpub(first, "t", 3) == (200, b"OK")
        with running(tmp_path) as second:
            assert second.end() == 1
        assert fatal_line(second) == (
            "failed to instantiate nsqd - failed to lock data-path: cannot flock directory "
            f"{tmp_path} - resource temporarily unavailable "
            "(possibly in use by another instance of nsqd)"
        )
        assert len(second.log) == 1
        assert first.ask("GET", "/ping") == (200, b"OK")
        assert first.end(signal.SIGTERM) == 0
    with running(tmp_path) as third:
        assert third.depths() == {"t": 3}


def test_a_missing_data_path(tmp_path: Path) -> None:
    """It is not made: a folder that is not mounted must not be mistaken for an empty one."""
    path = tmp_path / "missing"
    with running(path) as nsqd:
        assert nsqd.end() == 1
    assert fatal_line(nsqd) == (
        f"failed to instantiate nsqd - failed to lock data-path: open {path}: "
        "no such file or directory"
    )
    assert len(nsqd.log) == 1
    assert not path.exists()


def test_broken_metadata(tmp_path: Path) -> None:
    """It does not start, and leaves the file as it is."""
    (tmp_path / "nsqd.dat").write_text('{"topics":')
    with running(tmp_path) as nsqd:
        assert nsqd.end() == 1
    assert fatal_line(nsqd) == (
        f"failed to load metadata - failed to parse metadata in {tmp_path}/nsqd.dat - "
        "unexpected end of JSON input"
    )
    assert (tmp_path / "nsqd.dat").read_text() == '{"topics":'


# In this process: a disk that hangs


class Hanging(Gate):
    """A background of an nsqd in this process; the test shuts it."""

    made: ClassVar[list[Hanging]] = []

    def __init__(self, poller: Poller) -> None:
        super().__init__()
        self.made.append(self)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_forces_the_end(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the disk hangs the first one waits for it; the second ends it, with a code above 0."""
    caplog.set_level("INFO", "trionsq")
    monkeypatch.setattr(nsqd_daemon, "ThreadBackground", Hanging)
    monkeypatch.setattr(nsqd_daemon, "tune_interpreter", lambda: None)
    Hanging.made.clear()
    options = validated(
        NsqdOptions(data_path=str(tmp_path), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    )
    codes: list[int] = []
    # On a busy machine half a second may pass between two steps of this test.
    now_s = 0.0
    monkeypatch.setattr("trionsq.daemon.signals.trio", SimpleNamespace(current_time=lambda: now_s))

    async def run() -> None:
        codes.append(await nsqd_daemon.run_nsqd(options))

    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while not said("HTTP: listening") or Hanging.made[0].submitted < 2:
                await trio.lowlevel.checkpoint()
            [background] = Hanging.made
            background.shut()
            signal.raise_signal(number)
            while not (background.held_up and said("NSQ: stopping")):
                await trio.lowlevel.checkpoint()
            signal.raise_signal(number)  # an echo, as of Ctrl-C passed on by who started nsqd
            await trio.testing.wait_all_tasks_blocked()
            assert not codes
            now_s = ECHO_S
            signal.raise_signal(number)
    assert codes == [1]
    assert said("second signal")
