"""moto's S3 server, with a way in front of it that can be cut."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipelines.wal.objects import open_store
from tests.processes import free_address

__all__ = ["S3Server", "s3_server"]

_LIMIT_S = 120.0
_PIECE = 1 << 16
_PROGRAM = Path(__file__).with_name("s3_process.py")


class S3Server:
    """moto's server, a process of its own, which keeps its objects over `kill` and `start`.

    Clients come by `address`. There nobody listens while the server is away, and the answers are
    lost while ``loses_answers``.
    """

    def __init__(self, folder: Path) -> None:
        self.address = free_address()
        self.loses_answers = False
        self._journal = folder / "journal"
        self._inner = free_address()
        self._process: subprocess.Popen[bytes] | None = None
        self._way: socket.socket | None = None
        self._connections: set[socket.socket] = set()

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "geheim",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start the server with what it had, and let clients in."""
        port = self._inner.split(":")[1]
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), port, str(self._journal)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + _LIMIT_S
        while not self._answers():
            assert self._process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        self._way = socket.create_server(("127.0.0.1", int(self.address.split(":")[1])))
        threading.Thread(target=self._accept, args=(self._way,), daemon=True).start()

    def kill(self) -> None:
        """Kill the server, and cut all connections."""
        if self._way is not None:
            # Without this the thread that accepts keeps the port.
            with suppress(OSError):
                self._way.shutdown(socket.SHUT_RDWR)
            self._way.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def stall(self, seconds: float) -> None:
        """Stop the process for so long: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        """Whether the server is there; then it has the bucket."""
        request = urllib.request.Request(f"http://{self._inner}/bucket", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=_LIMIT_S).close()
        except urllib.error.HTTPError:
            return True  # the bucket was there
        except OSError:
            return False
        return True

    # The way

    def _accept(self, way: socket.socket) -> None:
        while True:
            try:
                client, _ = way.accept()
                server = socket.create_connection(("127.0.0.1", int(self._inner.split(":")[1])))
            except OSError:
                return
            for source, target in ((client, server), (server, client)):
                self._connections.add(source)
                is_answer = source is server
                threading.Thread(
                    target=self._forward, args=(source, target, is_answer), daemon=True
                ).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                if is_answer and self.loses_answers:
                    break
                target.sendall(data)
        for connection in (source, target):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.discard(source)
        source.close()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A running server with a bucket, ``bucket``, and the environment that leads to it.

    The folder keeps the objects.
    """
    server = S3Server(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in server.environment.items():
            patch.setenv(name, value)
        open_store.cache_clear()
        try:
            server.start()
            yield server
        finally:
            server.kill()
            open_store.cache_clear()
