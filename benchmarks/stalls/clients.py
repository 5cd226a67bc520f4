"""Connections that do what well-behaved clients don't: many at once, late, and with wrong ids."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from benchmarks.generator import MeasureError
from benchmarks.stalls.daemons import Daemon

ID_NBYTES = 16
_HEAD_NBYTES = 4 + 4 + 8 + 2  # size, type, timestamp, attempts
_MESSAGE = 2
WITHIN_S = 60.0


def command(line: str, body: bytes | None = None) -> bytes:
    """A command's bytes."""
    sized = b"" if body is None else len(body).to_bytes(4, "big") + body
    return line.encode() + b"\n" + sized


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    """MPUB of these messages."""
    parts = [len(body).to_bytes(4, "big") + body for body in bodies]
    return command(f"MPUB {topic}", len(parts).to_bytes(4, "big") + b"".join(parts))


class Client:
    """One connection, identified; it answers no heartbeat, so it lasts two minutes."""

    def __init__(self, daemon: Daemon, **identity: object) -> None:
        self.sock = socket.create_connection(("127.0.0.1", daemon.tcp_port), timeout=WITHIN_S)
        self._data = b""
        self._at = 0
        body = json.dumps({"heartbeat_interval": 60_000, **identity}).encode()
        self.sock.sendall(b"  V2" + command("IDENTIFY", body))

    def close(self) -> None:
        """End it."""
        self.sock.close()

    def send(self, *commands: bytes) -> None:
        """Send them together; answers are left for `frames`."""
        self.sock.sendall(b"".join(commands))

    def subscribe(self, topic: str, channel: str, rdy: int) -> None:
        """SUB and RDY; answers are left."""
        self.send(command(f"SUB {topic} {channel}"), command(f"RDY {rdy}"))

    def frames(self, count: int) -> list[bytes]:
        """The next so many answers, errors and messages, each with its type in front."""
        found: list[bytes] = []
        while len(found) < count:
            end = self._end()
            if end is None:
                self._more()
            else:
                found.append(self._data[self._at + 4 : end])
                self._at = end
        return found

    def ids(self, count: int) -> list[bytes]:
        """Of the next so many messages; what else comes is passed over."""
        found: list[bytes] = []
        while len(found) < count:
            frame = self.frames(1)[0]
            if frame[:4] == _MESSAGE.to_bytes(4, "big"):
                found.append(frame[14 : 14 + ID_NBYTES])
        return found

    def _end(self) -> int | None:
        begin = self._at + 4
        end = begin + int.from_bytes(self._data[self._at : begin], "big")
        return end if begin <= len(self._data) and end <= len(self._data) else None

    def _more(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise MeasureError("nsqd closed a connection")
        self._data = self._data[self._at :] + data
        self._at = 0


def subscribed(
    daemon: Daemon,
    stack: ExitStack,
    count: int,
    topic: str,
    channel: str,
    rdy: int,
    **identity: object,
) -> list[Client]:
    """So many consumers of a channel, closed with the stack."""
    clients = []
    for _ in range(count):
        client = Client(daemon, **identity)
        stack.callback(client.close)
        client.subscribe(topic, channel, rdy)
        clients.append(client)
    return clients


def swallow(clients: Iterable[Client], until: Callable[[], bool]) -> None:
    """Read and throw away what comes. Raises `MeasureError` unless that ends in a minute."""
    end_s = time.monotonic() + WITHIN_S
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.sock, selectors.EVENT_READ, client.sock)
        looked_s = 0.0
        while True:
            for key, _ in selector.select(0.05):
                key.data.recv(1 << 20)
            if time.monotonic() > looked_s + 0.2:
                looked_s = time.monotonic()
                if until():
                    return
            if time.monotonic() > end_s:
                raise MeasureError("what was to be delivered is not, after a minute")
