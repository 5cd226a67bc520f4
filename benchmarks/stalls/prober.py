"""Asks /ping on and on over one connection, in a process of its own, and notes the longest wait.

Run as a program it takes a host and a port. To each line on stdin it answers with one of JSON:
what was measured since the line before.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TypedDict

PING_EACH_S = 0.004
ANSWER_S = 120.0
_REQUEST = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Pings(TypedDict):
    """The longest answer to /ping, how many there were, and how late the prober itself got up."""

    longest_ms: float
    count: int
    late_ms: float


class Prober:
    """The process, from `__enter__` to `__exit__`."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __enter__(self) -> Prober:
        command = [sys.executable, "-S", str(Path(__file__)), str(self._port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self) -> Pings:
        """What was seen since the last time; a ping that waits is in it, for it is awaited."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise OSError(
                "the prober has ended: the daemon closed its connection or did not answer"
            )
        pings: Pings = json.loads(answer)
        return pings


def _ping(sock: socket.socket) -> None:
    sock.sendall(_REQUEST)
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"OK"):
        more = sock.recv(4096)
        if not more:
            raise OSError("closed")
        data += more


def main() -> None:
    """Ping until stdin ends."""
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=ANSWER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pings: Pings = {"longest_ms": 0.0, "count": 0, "late_ms": 0.0}
    asked = False
    while True:
        if asked:
            if not sys.stdin.readline():
                return
            print(json.dumps(pings), flush=True)
            pings = {"longest_ms": 0.0, "count": 0, "late_ms": 0.0}
        began_s = time.perf_counter()
        asked = bool(select.select([sys.stdin], [], [], PING_EACH_S)[0])
        now_s = time.perf_counter()
        if not asked:
            pings["late_ms"] = max(pings["late_ms"], (now_s - began_s - PING_EACH_S) * 1e3)
        _ping(sock)
        pings["longest_ms"] = max(pings["longest_ms"], (time.perf_counter() - now_s) * 1e3)
        pings["count"] += 1


if __name__ == "__main__":
    main()
