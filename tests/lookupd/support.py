"""What the tests of nsqlookupd share."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

from lookupd.registry import Announced, Producer

IDENTITY = b'{"version":"test"}'


def announced(number: int = 1) -> Announced:
    """An nsqd; those of different numbers listen elsewhere."""
    return Announced(f"10.0.0.{number}", f"host{number}", 4150, 4151, "1.3.0")


def producer(number: int = 1, now_ns: int = 0) -> Producer:
    """A connection of that nsqd."""
    return Producer(f"127.0.0.1:{50_000 + number}", announced(number), now_ns)


def identify(**members: object) -> bytes:
    """The command, whole; ``members`` change those of nsqd 1, None takes one away."""
    said = {
        "broadcast_address": "10.0.0.1",
        "hostname": "host1",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        **members,
    }
    return identify_with(json.dumps({k: v for k, v in said.items() if v is not None}).encode())


def identify_with(body: bytes) -> bytes:
    """The command with any body."""
    return b"IDENTIFY\n" + struct.pack(">I", len(body)) + body


def found(looked_at: Iterable[Producer | None]) -> list[Producer]:
    """The producers that a question has found, of all that it looked at."""
    return [each for each in looked_at if each is not None]


def frames(data: bytes) -> list[bytes]:
    """The answers in ``data``, which holds whole ones only."""
    found = []
    while data:
        (size,) = struct.unpack_from(">I", data)
        assert len(data) >= 4 + size, data
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found
