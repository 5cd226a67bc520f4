"""`trionsq up` as its users run it: real processes, both with one process and with many."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from tests.soak import in_short_soak, smoke
from trionsq import httpget
from trionsq.client import Config, Consumer, Producer
from trionsq.daemon.signals import ECHO_S
from trionsq.storage.folder import lock_data_path

LIMIT_S = 180.0
CONFIG = Config(
    dial_timeout_s=LIMIT_S,
    max_in_flight=100,
    lookupd_poll_interval_s=0.2,
    default_requeue_delay_s=0,
    max_attempts=0,
)
FLAGS: dict[str, list[str]] = {"one process": [], "processes": ["--processes"]}
ONE_MODE = pytest.mark.parametrize("mode", smoke(FLAGS, "one process"))
"""The other one is for the soaks."""
IN_SOAK = pytest.mark.parametrize("mode", smoke(FLAGS))


@dataclass
class Up:
    """A running `trionsq up`."""

    process: trio.Process
    log_path: Path
    tcp: dict[str, str] = field(default_factory=dict)
    http: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def log(self) -> list[str]:
        """The lines so far."""
        return self.log_path.read_text().splitlines()

    @property
    def fatal(self) -> list[str]:
        """The texts of the FATAL lines."""
        return [line.partition("FATAL: ")[2] for line in self.log if "FATAL" in line]

    async def read_table(self) -> None:
        """Wait until it says where everything is, or ends."""
        assert self.process.stdout is not None
        text = b""
        async for chunk in self.process.stdout:
            text += chunk
            if b"Consumers find" in text:
                break
        shown = text.decode()
        for row in re.findall(r"^(nsq\S+) +(\S+:\d+)? +(\S+:\d+).*?(\d*)$", shown, re.M):
            name, self.tcp[name], self.http[name], pid = row
            self.pids[name] = int(pid or 0)
        dashboard = re.findall(r"^Dashboard: http://(\S+)$", shown, re.M)
        assert dashboard == [self.http[name] for name in self.http if name == "nsqadmin"]

    async def logged(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log."""
        while True:
            for line in self.log:
                if found := re.search(pattern, line):
                    return found
            await trio.sleep(0.02)

    async def up_again(self, name: str) -> None:
        """Wait until that part is a new process."""
        await self.logged(rf"{name} is up, pid (?!{self.pids[name]}$)")

    async def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return await self.process.wait()


@asynccontextmanager
async def up(folder: Path, *flags: str, ports: Sequence[str] | None = None) -> AsyncIterator[Up]:
    """`trionsq up` in *folder*, on free ports; killed if the test leaves it running."""
    if ports is None:
        ports = ["--port=0", "--lookupd-port=0", "--admin-port=0"]
    log_path = folder / "up.log"
    with trio.fail_after(LIMIT_S), log_path.open("w") as log:
        process = await trio.lowlevel.open_process(
            [
                sys.executable,
                "-P",
                "-m",
                "trionsq.local.main",
                "up",
                "--data-path=data",
                *ports,
                *flags,
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        running = Up(process, log_path)
        try:
            await running.read_table()
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                assert process.stdout is not None
                await process.stdout.aclose()


async def publish(running: Up, name: str, count: int) -> set[bytes]:
    """Publish to one nsqd; the bodies."""
    bodies = [f"{name} {number} {running.tcp[name]}".encode() for number in range(count)]
    async with Producer(running.tcp[name], config=CONFIG) as producer:
        await producer.publish_many("orders", bodies)
    return set(bodies)


async def consume(running: Up, expected: set[bytes]) -> None:
    """Consume, by discovery, until all have come and are finished, and nothing else."""
    where = [running.http["nsqlookupd"]]
    async with Consumer(
        "orders", "billing", lookupd_http_addresses=where, config=CONFIG
    ) as consumer:
        await take(consumer, expected)


async def take(consumer: Consumer, expected: set[bytes]) -> None:
    """Finish messages until all that are expected have come; no other may."""
    missing = set(expected)
    async for batch in consumer.batches():
        assert set(batch.bodies) <= expected
        missing -= set(batch.bodies)
        batch.finish()
        if not missing:
            return


def has_ended(pid: int) -> bool:
    """Whether the process is no more (or waits only for someone to take its exit code)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until_ended(pids: dict[str, int]) -> None:
    """Wait for the end of processes that are not ours to wait for."""
    while not all(has_ended(pid) for pid in pids.values()):  # noqa: ASYNC110
        await trio.sleep(0.02)


@ONE_MODE
async def test_messages_flow_and_outlast_ctrl_c(mode: list[str], tmp_path: Path) -> None:
    """What is published to either nsqd is consumed by discovery, also after Ctrl-C and a start.

    Modules in the user's folder are not in the way.
    """
    (tmp_path / "logging.py").write_text("raise RuntimeError('not this one')")
    async with up(tmp_path, "--nsqd=2", *mode) as first:
        assert first.tcp.keys() == {"nsqlookupd", "nsqd-1", "nsqd-2", "nsqadmin"}
        flowed = await publish(first, "nsqd-1", 30) | await publish(first, "nsqd-2", 40)
        await consume(first, flowed)
        waiting = await publish(first, "nsqd-1", 50) | await publish(first, "nsqd-2", 60)
        assert await first.end() == 0
        stops = [line for line in first.log if "stopping" in line]
        whose = [line.split()[0] for line in stops]
        assert [*whose[:2], sorted(whose[2:4]), *whose[4:]] == [
            "[trionsq]",
            "[nsqadmin]",
            ["[nsqd-1]", "[nsqd-2]"],
            "[nsqlookupd]",
        ]
        assert not [line for line in first.log if "ERROR" in line or "Traceback" in line]
        await until_ended(first.pids if mode else {})
    async with up(tmp_path, "--nsqd=2", *mode) as second:
        await consume(second, waiting)
        assert await second.end(signal.SIGTERM) == 0


@IN_SOAK
async def test_debug_pages_name_every_task(mode: list[str], tmp_path: Path) -> None:
    """No task that nsqd shows is named by a function of ours."""
    async with up(tmp_path, *mode) as running:
        await publish(running, "nsqd-1", 1)
        await httpget.get(f"http://{running.http['nsqadmin']}/topics")
        shown = (await httpget.get(f"http://{running.http['nsqd-1']}/debug/tasks")).body.decode()
        names = [line.partition("  [")[0].strip() for line in shown.splitlines()]
        assert "disk jobs" in names
        assert not [
            name for name in names if re.match(r"trionsq\.|lookupd\.|admin\.|__main__", name)
        ]
        assert ("nsqadmin poller" in names) is not bool(mode)


@ONE_MODE
async def test_the_dashboard_shows_the_cluster(mode: list[str], tmp_path: Path) -> None:
    """nsqadmin finds all nsqds by the nsqlookupd, and shows what was published.

    With --log-format=json each line of the log is an object that names its part.
    """
    async with up(tmp_path, "--nsqd=2", "--log-format=json", *mode) as running:
        await publish(running, "nsqd-1", 3)
        await publish(running, "nsqd-2", 4)
        where = f"http://{running.http['nsqadmin']}"
        nodes = json.loads((await httpget.get(f"{where}/api/nodes")).body)["nodes"]
        assert {f"{node['broadcast_address']}:{node['http_port']}" for node in nodes} == {
            running.http["nsqd-1"],
            running.http["nsqd-2"],
        }
        topic = json.loads((await httpget.get(f"{where}/api/topics/orders")).body)
        assert topic["message_count"] == 7
        page = (await httpget.get(f"{where}/topics/orders")).body.decode()
        assert "orders" in page
        assert running.http["nsqd-2"] in page
        assert await running.end() == 0
        lines = [json.loads(line) for line in running.log]
        assert {line["daemon"] for line in lines} == {"trionsq", *running.http}
        assert [line for line in lines if line["daemon"] == "nsqadmin" and "listening" in str(line)]


@in_short_soak
async def test_what_is_killed_comes_back(tmp_path: Path) -> None:
    """With --processes it is started again where it was; a consumer goes on by itself."""
    async with up(tmp_path, "--nsqd=2", "--processes") as running:
        where = [running.http["nsqlookupd"]]
        async with Consumer(
            "orders", "billing", lookupd_http_addresses=where, config=CONFIG
        ) as consumer:
            await take(consumer, await publish(running, "nsqd-2", 10))
            os.kill(running.pids["nsqd-2"], signal.SIGKILL)
            await running.logged(r"nsqd-2 exited \(Killed\), restarting in 0.5 s")
            await running.up_again("nsqd-2")
            await take(consumer, await publish(running, "nsqd-2", 20))
        os.kill(running.pids["nsqlookupd"], signal.SIGKILL)
        await running.up_again("nsqlookupd")
        host, _, port = running.tcp["nsqlookupd"].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)):
            pass
        os.kill(running.pids["nsqadmin"], signal.SIGKILL)
        await running.up_again("nsqadmin")
        assert (await httpget.get(f"http://{running.http['nsqadmin']}/ping")).body == b"OK"
        assert await running.end() == 0


@in_short_soak
async def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    """kill -9 of `trionsq up` itself: its processes save everything and end.

    --no-admin leaves nsqadmin out of the next one.
    """
    async with up(tmp_path, "--nsqd=2", "--processes") as running:
        waiting = await publish(running, "nsqd-1", 10) | await publish(running, "nsqd-2", 10)
        assert len(set(running.pids.values())) == 4
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        await until_ended(running.pids)
    async with up(tmp_path, "--nsqd=2", "--no-admin") as second:
        assert second.http.keys() == {"nsqlookupd", "nsqd-1", "nsqd-2"}
        await consume(second, waiting)
        assert await second.end() == 0


async def test_a_second_signal_leaves_no_process(tmp_path: Path) -> None:
    """A process that does not stop is killed at the second Ctrl-C; exit 1. (Without nsqadmin.)"""
    async with up(tmp_path, "--processes", "--no-admin") as running:
        assert running.http.keys() == {"nsqlookupd", "nsqd-1"}
        os.kill(running.pids["nsqd-1"], signal.SIGSTOP)
        running.process.send_signal(signal.SIGINT)
        await running.logged("stopping; a second signal stops at once")
        # It may count from somewhat later than its line.
        await trio.sleep(3 * ECHO_S)
        assert await running.end() == 1
        assert running.fatal == ["stopped at once by a second signal"]
        await until_ended(running.pids)


@ONE_MODE
async def test_a_port_in_use(mode: list[str], tmp_path: Path) -> None:
    """One line names the part, the port and what to do; exit 1, nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = [f"--port={port}", "--lookupd-port=0", "--no-admin"]
        async with up(tmp_path, *mode, ports=ports) as running:
            assert await running.process.wait() == 1
    [line] = running.fatal
    assert line.startswith(f"nsqd-1: listen (127.0.0.1:{port}) failed")
    assert "choose other ports by --port" in line
    assert "NSQLOOKUPD: stopping" in running.log[-2]


@ONE_MODE
async def test_a_locked_data_path(mode: list[str], tmp_path: Path) -> None:
    """One line says so; exit 1, nothing is left running."""
    (tmp_path / "data/nsqd-2").mkdir(parents=True)
    with lock_data_path(str(tmp_path / "data/nsqd-2")):
        async with up(tmp_path, "--nsqd=2", *mode) as running:
            assert await running.process.wait() == 1
    [line] = running.fatal
    assert line.startswith("nsqd-2: failed to lock data-path: cannot flock directory data/nsqd-2")
    # The first nsqd, which had started, has ended in order, and its folder is free again.
    assert not running.tcp
    assert not [line for line in running.log if "Traceback" in line or "ERROR" in line]
    lock_data_path(str(tmp_path / "data/nsqd-1")).release()


async def test_a_data_path_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in its place: one line, exit 1."""
    (tmp_path / "data").write_text("")
    async with up(tmp_path) as running:
        assert await running.process.wait() == 1
    [line] = running.fatal
    assert line.startswith("nsqd-1: can't create its folder: ")
