"""The row that reads a range of a log over HTTP, beside a consumer that gets the same."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from benchmarks.generator import TOPIC, MeasureError
from benchmarks.servers import Server

__all__ = ["read_both_forms", "read_range"]

_LIMIT_S = 120.0
_TAIL_BYTES = 4_096


def read_range(
    port: int, form: str, messages: int, topic: str = TOPIC, pace: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Read so many messages from the beginning of a topic's log, and throw them away.

    ``pace`` is called behind each piece. Raises `MeasureError` unless all of them came.
    """
    path = f"/topic/log?topic={topic}&format={form}&count={messages}"
    buffer, nbytes, tail = bytearray(1 << 20), 0, b""
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as sock:
        # Without chunks: the answer ends with the connection.
        sock.sendall(b"GET %b HTTP/1.0\r\nHost: localhost\r\n\r\n" % path.encode())
        while size := sock.recv_into(buffer):
            nbytes += size
            tail = (tail + buffer[max(0, size - _TAIL_BYTES) : size])[-_TAIL_BYTES:]
            if pace is not None:
                pace()
    took_s = time.monotonic() - began_s
    note = tail[tail.rfind(b'{"note":"end"') :]
    try:
        end = json.loads(note)
    except ValueError:
        raise MeasureError(f"GET {path} has no end: {tail[-300:]!r}") from None
    if end["sequence"] != messages:
        raise MeasureError(f"GET {path} ended: {end}")
    return {
        "timed_messages": messages,
        "timed_seconds": took_s,
        "seconds": took_s,
        "generator_cpu_seconds": time.thread_time() - began_cpu_s,
        "nbytes": nbytes,
    }


def read_both_forms(server: Server, messages: int) -> dict[str, Any]:
    """Read all by both forms; what it returns is of the frames, with the lines beside."""
    port = server.http_port
    assert port is not None
    lines = read_range(port, "ndjson", messages)
    return {**read_range(port, "binary", messages), "lines": lines}
