"""Starts a server to measure, each in a process and a data folder of its own.

Three kinds: `ours`, the `original` (another nsqd binary) and the `floor`, which has no HTTP and
does no broker's work. They are killed, not asked to end, unless a row measures that: an orderly
stop would write the queues to disk.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, TypedDict, cast

START_S = 30.0
LAST_LINES = 1500  # characters of a log that go into an error
OURS, ORIGINAL, FLOOR = "ours", "original", "floor"


class ServerError(Exception):
    """A server did not start, ended early or lost count of its messages."""


class ChannelStats(TypedDict):
    """The part of a channel's /stats that the checks look at."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    message_count: int


class TopicStats(TypedDict):
    """The part of a topic's /stats that the checks look at."""

    topic_name: str
    depth: int
    backend_depth: int
    message_count: int
    channels: list[ChannelStats]


@dataclass(frozen=True)
class Server:
    """A running server: its kind, its process and where it listens on 127.0.0.1."""

    kind: str
    process: subprocess.Popen[bytes]
    tcp_port: int
    http_port: int | None
    log: IO[bytes]

    def last_lines(self) -> str:
        """The end of what the server wrote on stderr."""
        return _text(self.log)[-LAST_LINES:]

    def topic_stats(self, topic: str, channel: str | None = None) -> TopicStats | None:
        """What /stats says of one channel and its topic; None while either is missing.

        Raises `ServerError` when it does not answer.
        """
        query = {"topic": topic} | ({"channel": channel} if channel else {})
        topics = self.all_stats(**query)
        return topics[0] if topics else None

    def all_stats(self, **query: str) -> list[TopicStats]:
        """What /stats says of the topics; raises `ServerError` when it does not answer."""
        query |= {"format": "json", "include_clients": "false", "include_mem": "false"}
        url = f"http://127.0.0.1:{self.http_port}/stats?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return cast(list[TopicStats] | None, json.load(answer)["topics"]) or []
        except (OSError, HTTPException) as error:
            raise ServerError(f"/stats does not answer: {error!r}") from error

    def stop(self, within_s: float) -> float:
        """SIGTERM; returns the seconds until the process had ended.

        Raises `ServerError` when it does not end in time or not with 0.
        """
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"no clean stop within {within_s:g} s") from error
        if code != 0:
            raise ServerError(f"a stop with exit code {code}; its last lines:\n{self.last_lines()}")
        return time.monotonic() - began

    def cpu_s(self) -> float:
        """User and system time of the process so far, in seconds (in steps of 10 ms)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def written_bytes(self) -> int:
        """Bytes that the process caused to be written to disks so far."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])

    def resident_bytes(self) -> int:
        """Resident memory of the process in bytes."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(statm.split()[1]) * 4096


@dataclass(frozen=True)
class Launched:
    """A process that was just started, at `since_ns` of CLOCK_MONOTONIC; it may not listen yet."""

    kind: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    since_ns: int

    def last_lines(self) -> str:
        """The end of what the server wrote on stderr."""
        return _text(self.log)[-LAST_LINES:]

    def listening(self) -> Server:
        """Waits until it says where it listens.

        Raises `ServerError` when it does not within 30 s.
        """
        ports = _wait_for_ports(self.process, self.log, http=self.kind != FLOOR)
        return Server(self.kind, self.process, *ports, self.log)


@dataclass(frozen=True)
class Kinds:
    """The commands that start each kind of server, and where their data folders are made."""

    commands: dict[str, Sequence[str]]
    data: Path

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty data folder, gone after the block."""
        with tempfile.TemporaryDirectory(prefix="nsqd-", dir=self.data) as folder:
            yield Path(folder)

    @contextmanager
    def launch(
        self, kind: str, options: Sequence[str], folder: Path, tcp_port: int = 0
    ) -> Iterator[Launched]:
        """Start a server on this data folder, and wait for nothing; killed when the block ends."""
        command = [*self.commands[kind], *options]
        if kind != FLOOR:
            command += [f"--tcp-address=127.0.0.1:{tcp_port}", "--http-address=127.0.0.1:0"]
            command.append(f"--data-path={folder}")
        with tempfile.TemporaryFile(dir=self.data) as log:
            since_ns = time.monotonic_ns()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
            try:
                yield Launched(kind, process, log, since_ns)
            finally:
                process.kill()
                process.wait()

    @contextmanager
    def start(
        self, kind: str, options: Sequence[str], folder: Path | None = None
    ) -> Iterator[Server]:
        """Run a server of this kind with these options until the block ends.

        Its start is over: what it loads while it already serves would be part of a short run.
        Without `folder` it gets an empty one of its own. Raises `ServerError` when it does not
        say within 30 s where it listens.
        """
        with (
            self.folder() if folder is None else nullcontext(folder) as used,
            self.launch(kind, options, used) as launched,
        ):
            server = launched.listening()
            if kind != FLOOR:
                with suppress(ServerError):  # a row that needs it says so
                    server.all_stats()
            yield server


def _text(log: IO[bytes]) -> str:
    # Not by seek and read: the server shares the position, and would write over what it has said.
    data = os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0)
    return data.decode(errors="replace")


def _port(name: str, text: str) -> int | None:
    found = re.search(rf"\b{name}: listening on \S+:(\d+)", text)
    return int(found[1]) if found else None


def _wait_for_ports(
    process: subprocess.Popen[bytes], log: IO[bytes], *, http: bool
) -> tuple[int, int | None]:
    end = time.monotonic() + START_S
    while True:
        ended = process.poll() is not None
        text = _text(log)
        tcp_port, http_port = _port("TCP", text), _port("HTTP", text)
        if tcp_port is not None and (http_port is not None or not http):
            return tcp_port, http_port
        if ended or time.monotonic() > end:
            state = f"ended with {process.returncode}" if ended else "says not where it listens"
            raise ServerError(f"{process.args!r} {state}; its last lines:\n{text[-LAST_LINES:]}")
        time.sleep(0.02)


def kinds(floor: Path, original: Path | None, data: Path, packages: Path | None = None) -> Kinds:
    """The commands for the compiled floor, this project's nsqd and, if given, the original's.

    `original` is the folder of its binaries, `data` where data folders are made, `packages` has
    this project's packages if they are not those of the checkout.
    Raises `ServerError` when there is no nsqd.
    """
    ours: tuple[str, ...] = (sys.executable, "-m", "trionsq.local.nsqd")
    if packages is not None:
        if not (packages / "trionsq/local/nsqd.py").is_file():
            raise ServerError(f"there is no trionsq in {packages}")
        # Without -P the working directory, which may be the checkout, comes first.
        path = f"PYTHONPATH={packages.absolute()}"
        ours = ("env", path, sys.executable, "-P", "-m", "trionsq.local.nsqd")
    commands: dict[str, Sequence[str]] = {OURS: ours, FLOOR: (str(floor),)}
    if original is not None:
        if not (original / "nsqd").is_file():
            raise ServerError(f"there is no nsqd in {original}")
        commands[ORIGINAL] = (str(original / "nsqd"),)
    return Kinds(commands, data)
