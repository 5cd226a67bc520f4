"""Daemons of a checkout whose event loops are watched."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.capacity.lab import await_url, get
from benchmarks.servers import ServerError

INSIDE = Path(__file__).with_name("inside.py")
START_S = 60.0
STOP_S = 120.0
NSQD, NSQLOOKUPD, NSQADMIN = "trionsq.local.nsqd", "lookupd.cli", "admin.cli"


@dataclass(frozen=True)
class Daemon:
    """A process that listens on 127.0.0.1; `tcp_port` is 0 for nsqadmin."""

    process: subprocess.Popen[bytes]
    tcp_port: int
    http_port: int
    control: Path
    log: IO[bytes]

    @property
    def url(self) -> str:
        """Where its HTTP is."""
        return f"http://127.0.0.1:{self.http_port}"

    def get(self, path: str) -> bytes:
        """The body of a page. Raises `ServerError`."""
        return get(self.url + path, 120)

    def reset(self) -> None:
        """The watcher forgets what it has seen."""
        self._ask(b"reset")

    def watched(self) -> dict[str, Any]:
        """What the watcher has seen since."""
        return self._ask(b"read")

    def _ask(self, what: bytes) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(str(self.control))
            sock.sendall(what)
            answer: dict[str, Any] = json.loads(b"".join(iter(lambda: sock.recv(65_536), b"")))
        return answer

    def cpu_s(self) -> float:
        """User and system time so far, in seconds (in steps of 10 ms)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def stop(self) -> None:
        """SIGTERM, and wait for the end. Raises `ServerError` unless that is with 0."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"no clean stop within {STOP_S:g} s") from error
        if code != 0:
            raise ServerError(f"a stop with exit code {code}; its last lines:\n{self.last_lines()}")

    def last_lines(self) -> str:
        """The end of its log."""
        return _text(self.log)[-1500:]


@contextmanager
def running(checkout: Path, data: Path, module: str, *options: str) -> Iterator[Daemon]:
    """A daemon of that checkout, on free ports; killed after the block.

    Raises:
        ServerError: it does not say within a minute where it listens.
    """
    with (
        tempfile.TemporaryDirectory(prefix="stalls-") as folder,
        tempfile.TemporaryFile(dir=data) as log,
    ):
        control = Path(folder) / "watch"
        command = [sys.executable, str(INSIDE), str(control), str(checkout), module, *options]
        command.append("--http-address=127.0.0.1:0")
        if module != NSQADMIN:
            command.append("--tcp-address=127.0.0.1:0")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            tcp_port, http_port = _await_ports(process, log, tcp=module != NSQADMIN)
            daemon = Daemon(process, tcp_port, http_port, control, log)
            await_url(f"{daemon.url}/ping")
            yield daemon
        finally:
            process.kill()
            process.wait()


def _text(log: IO[bytes]) -> str:
    # Not by seek and read: the daemon shares the position.
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


def _await_ports(process: subprocess.Popen[bytes], log: IO[bytes], *, tcp: bool) -> tuple[int, int]:
    end_s = time.monotonic() + START_S
    while True:
        text = _text(log)
        ports = dict(re.findall(r"\b(TCP|HTTP): listening on \S+:(\d+)", text))
        if "HTTP" in ports and ("TCP" in ports or not tcp):
            return int(ports.get("TCP", 0)), int(ports["HTTP"])
        if process.poll() is not None or time.monotonic() > end_s:
            raise ServerError(f"{process.args!r} does not listen; its last lines:\n{text[-1500:]}")
        time.sleep(0.02)
