"""Starts a server to measure, each in a process and a data folder of its own.

Three kinds: `ours`, the `original` (another nsqd binary) and the `floor`, which has no HTTP and
does no broker's work. They are killed, not asked to end: an orderly stop would write the
queues to disk.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict, cast

START_S = 30.0
LAST_LINES = 1500  # characters of a log that go into an error
OURS, ORIGINAL, FLOOR = "ours", "original", "floor"
NSQD_OPTIONS = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


class ServerError(Exception):
    """A server did not start, ended early or lost count of its messages."""


class ChannelStats(TypedDict):
    """The part of a channel's /stats that the checks look at."""

    channel_name: str
    depth: int
    in_flight_count: int
    message_count: int


class TopicStats(TypedDict):
    """The part of a topic's /stats that the checks look at."""

    topic_name: str
    depth: int
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

    def topic_stats(self, topic: str, channel: str) -> TopicStats | None:
        """What /stats says of one channel and its topic; None while either is missing."""
        query = urllib.parse.urlencode(
            {
                "format": "json",
                "topic": topic,
                "channel": channel,
                "include_clients": "false",
                "include_mem": "false",
            }
        )
        url = f"http://127.0.0.1:{self.http_port}/stats?{query}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            topics = cast(list[TopicStats] | None, json.load(answer)["topics"])
        return topics[0] if topics else None

    def cpu_s(self) -> float:
        """User and system time of the process so far, in seconds (in steps of 10 ms)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def resident_bytes(self) -> int:
        """Resident memory of the process in bytes."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(statm.split()[1]) * 4096


@dataclass(frozen=True)
class Kinds:
    """The commands that start each kind of server."""

    commands: dict[str, Sequence[str]]

    @contextmanager
    def start(self, kind: str, options: Sequence[str]) -> Iterator[Server]:
        """Run a server of this kind with these options until the block ends.

        Raises `ServerError` when it does not say within 30 s where it listens.
        """
        with tempfile.TemporaryDirectory(prefix="nsq-bench-") as folder:
            command = [*self.commands[kind], *options]
            if kind != FLOOR:
                command += [*NSQD_OPTIONS, f"--data-path={folder}"]
            with (Path(folder) / "stderr").open("w+b") as log:
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
                try:
                    ports = _wait_for_ports(process, log, http=kind != FLOOR)
                    yield Server(kind, process, *ports, log)
                finally:
                    process.kill()
                    process.wait()


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")


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


def kinds(floor: Path, original: Path | None) -> Kinds:
    """The commands for the compiled floor, this project's nsqd and, if given, the original's.

    `original` is the folder of its binaries. Raises `ServerError` when it holds no nsqd.
    """
    commands: dict[str, Sequence[str]] = {
        OURS: (sys.executable, "-m", "trionsq.cli.nsqd"),
        FLOOR: (str(floor),),
    }
    if original is not None:
        if not (original / "nsqd").is_file():
            raise ServerError(f"there is no nsqd in {original}")
        commands[ORIGINAL] = (str(original / "nsqd"),)
    return Kinds(commands)
