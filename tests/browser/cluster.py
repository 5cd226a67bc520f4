"""A small cluster of real processes for tests that are not async themselves.

A browser is driven by plain functions, so the daemons of `tests.processes` live in a trio thread.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from socket import SHUT_RDWR, create_connection
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2
import trio

from tests.processes import (
    DaemonProcess,
    NsqdProcess,
    running_nsqadmin,
    running_nsqd,
    running_nsqlookupd,
    split_address,
)

T = TypeVar("T")

LIMIT_S = 60.0


class Held(Generic[T]):
    """What an async context manager gave, open until `close`."""

    def __init__(self, value: T, leave: Callable[[], None]) -> None:
        self.value = value
        self._leave = leave
        self._open = True

    def close(self) -> None:
        """Leave the context; raises what leaving it raises."""
        if self._open:
            self._open = False
            self._leave()


class TrioThread:
    """A thread in which async context managers are entered and stay open."""

    def __init__(self) -> None:
        self._started: SimpleQueue[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = SimpleQueue()
        self._end = trio.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="daemons")
        self._held = ExitStack()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._started.put((trio.lowlevel.current_trio_token(), nursery))
            await self._end.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._token, self._nursery = self._started.get(timeout=LIMIT_S)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._held.close()
        finally:
            trio.from_thread.run_sync(self._end.set, trio_token=self._token)
            self._thread.join(LIMIT_S)

    def hold(self, context: AbstractAsyncContextManager[T]) -> Held[T]:
        """Enter ``context``; it is left at the latest with the thread."""
        end, ended = trio.Event(), trio.Event()
        failed: list[BaseException] = []

        async def stay(task_status: trio.TaskStatus[T]) -> None:
            started = False
            try:
                async with context as value:
                    task_status.started(value)
                    started = True
                    await end.wait()
            except Exception as error:
                if not started:
                    raise
                failed.append(error)
            finally:
                ended.set()

        def leave() -> None:
            trio.from_thread.run_sync(end.set, trio_token=self._token)
            trio.from_thread.run(ended.wait, trio_token=self._token)
            if failed:
                raise failed[0]

        value: T = trio.from_thread.run(self._nursery.start, stay, trio_token=self._token)
        held = Held(value, leave)
        self._held.callback(held.close)
        return held


class Consumer:
    """A subscribed client that takes messages, never finishes them, and answers heartbeats."""

    def __init__(
        self,
        nsqd: NsqdProcess,
        topic: str,
        channel: str,
        *,
        ready: int = 1,
        name: str = "worker",
        agent: str = "tests/1.0",
    ) -> None:
        self._socket = create_connection(split_address(nsqd.tcp_address), timeout=LIMIT_S)
        about = {"client_id": name, "hostname": f"{name}.example", "user_agent": agent,
                 "msg_timeout": 900_000}  # fmt: skip
        body = json.dumps(about).encode()
        try:
            self._send(b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body)
            assert self._frame() == (0, b"OK")
            self._send(f"SUB {topic} {channel}\n".encode())
            assert self._frame() == (0, b"OK")
            self._send(f"RDY {ready}\n".encode())
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._reading = threading.Thread(target=self._answer, name=f"consumer {name}")
        self._reading.start()

    def close(self) -> None:
        """Go without a word, as a client that dies."""
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)
        self._reading.join(LIMIT_S)
        self._socket.close()

    def _send(self, command: bytes) -> None:
        self._socket.sendall(command)

    def _answer(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                if self._frame() == (0, b"_heartbeat_"):
                    self._send(b"NOP\n")

    def _frame(self) -> tuple[int, bytes]:
        size, kind = struct.unpack(">II", self._read(8))
        return kind, self._read(size - 4)

    def _read(self, nbytes: int) -> bytes:
        taken = b""
        while len(taken) < nbytes:
            more = self._socket.recv(nbytes - len(taken))
            if not more:
                raise EOFError
            taken += more
        return taken


class Cluster:
    """nsqlookupd, two nsqd and nsqadmin, and what tests ask them beside the browser."""

    def __init__(self, thread: TrioThread, path: Path) -> None:
        self._thread = thread
        self.path = path
        self.http = httpx2.Client(timeout=LIMIT_S)
        self.lookupd = thread.hold(running_nsqlookupd()).value
        self.nsqds = [self.start_nsqd(name) for name in ("one", "two")]
        self.until(lambda: len(self.nodes()) == 2, "both nsqd are registered")

    def start_nsqd(self, name: str, *more: str) -> Held[NsqdProcess]:
        """One more nsqd, which registers with the nsqlookupd; or one of that name once more."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        flags = [f"--lookupd-tcp-address={self.lookupd.tcp_address}", "--mem-queue-size=50", *more]
        return self._thread.hold(running_nsqd(folder, flags))

    def start_lookupd(self, *flags: str) -> Held[DaemonProcess]:
        """One more nsqlookupd."""
        return self._thread.hold(running_nsqlookupd(flags))

    def start_nsqadmin(self, *flags: str) -> Held[DaemonProcess]:
        """An nsqadmin in front of the cluster that polls every second."""
        base = [f"--lookupd-http-address={self.lookupd.http_address}", "--poll-interval=1s"]
        return self._thread.hold(running_nsqadmin([*base, *flags]))

    def node(self, which: int) -> str:
        """The name of an nsqd: its broadcast address and HTTP port."""
        return self.nsqds[which].value.http_address

    def nodes(self) -> list[dict[str, Any]]:
        """What nsqlookupd says of its nodes."""
        return list(self._json(self.lookupd.http_address, "/nodes")["producers"])

    def create(self, topic: str, *channels: str) -> None:
        """A topic with channels, on both nodes, once nsqlookupd knows of them."""
        for which in range(len(self.nsqds)):
            self.post(which, "/topic/create", topic=topic)
            for channel in channels:
                self.post(which, "/channel/create", topic=topic, channel=channel)

        def known() -> bool:
            found = self.lookup(topic)
            return len(found["producers"]) == 2 and set(channels) <= set(found["channels"])

        self.until(known, f"nsqlookupd knows {topic} of both nodes")

    def lookup(self, topic: str) -> dict[str, Any]:
        """Producers and channels of a topic, none if nsqlookupd does not know it."""
        answer = self.http.get(
            f"http://{self.lookupd.http_address}/lookup", params={"topic": topic}
        )
        found = answer.json() if answer.status_code == 200 else {}
        return {name: found.get(name) or [] for name in ("producers", "channels")}

    def publish(self, which: int, topic: str, *bodies: bytes, **query: str) -> None:
        """Messages to one node."""
        for body in bodies:
            self.post(which, "/pub", body, topic=topic, **query)

    def post(self, which: int, path: str, body: bytes = b"", **query: str) -> None:
        """A request to an nsqd that has to be right."""
        url = f"http://{self.node(which)}{path}"
        answer = self.http.post(url, params=query, content=body)
        assert answer.status_code == 200, answer.text

    def topic(self, which: int, name: str) -> dict[str, Any] | None:
        """A node's statistics of a topic, None if it has none of that name."""
        document = self._json(self.node(which), "/stats", format="json", topic=name)
        return next((dict(each) for each in document["topics"] or ()), None)

    def channel(self, which: int, topic: str, name: str) -> dict[str, Any] | None:
        """A node's statistics of a channel, None if it has none of that name."""
        channels = (self.topic(which, topic) or {}).get("channels") or ()
        return next((dict(each) for each in channels if each["channel_name"] == name), None)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition that the daemons bring about by themselves."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.02)

    def _json(self, address: str, path: str, **query: str) -> dict[str, Any]:
        answer = self.http.get(f"http://{address}{path}", params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@contextmanager
def running_cluster(path: Path) -> Iterator[Cluster]:
    """nsqlookupd and two nsqd below ``path``; nsqadmins are started by the tests."""
    with TrioThread() as thread:
        cluster = Cluster(thread, path)
        try:
            yield cluster
        finally:
            cluster.http.close()
