"""A real cluster in a thread, nodes that lie, and the command in this process."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
import trio

from lookupd.daemon import running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from trionsq.local import main
from trionsq.testing import OpenBroker, open_broker

LIMIT_S = 60.0


@dataclass(frozen=True)
class RealCluster:
    """Three nsqds that are registered at an nsqlookupd."""

    lookupd: str
    nsqds: list[OpenBroker]

    @property
    def flag(self) -> str:
        """For the whole cluster."""
        return f"--lookupd-http-address={self.lookupd}"

    @property
    def nodes(self) -> list[str]:
        """host:port of HTTP, sorted."""
        return sorted(nsqd.http_address for nsqd in self.nsqds)


@contextmanager
def real_cluster() -> Iterator[RealCluster]:
    """Run it in a thread of its own: commands run their own event loop."""
    started = Future[tuple[RealCluster, trio.lowlevel.TrioToken, trio.Event]]()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            options = NsqlookupdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
            lookupd = await stack.enter_async_context(running_nsqlookupd(options))
            address = f"127.0.0.1:{lookupd.http_port}"
            nsqds = [
                await stack.enter_async_context(
                    open_broker(
                        broadcast_address="127.0.0.1",
                        lookupd_tcp_address=(f"127.0.0.1:{lookupd.tcp_port}",),
                        node_id=number,
                    )
                )
                for number in range(3)
            ]
            with trio.fail_after(LIMIT_S):
                registered = partial(lookupd.registry.active_producers, 0)
                while len(list(registered())) < len(nsqds):  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.01)
            stop = trio.Event()
            token = trio.lowlevel.current_trio_token()
            started.set_result((RealCluster(address, nsqds), token, stop))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    try:
        cluster, token, stop = started.result(LIMIT_S)
        try:
            yield cluster
        finally:
            token.run_sync_soon(stop.set)
    finally:
        thread.join()


def request(method: str, address: str, target: str, body: bytes | None = None) -> Any:
    """The JSON (or bytes) that a node answers."""
    with urlopen(
        Request(f"http://{address}{target}", body, method=method), timeout=LIMIT_S
    ) as answer:
        content = answer.read()
    with contextlib.suppress(ValueError):
        return json.loads(content)
    return content


def publish(nsqd: OpenBroker, topic: str, *bodies: bytes) -> None:
    """Publish messages, and return when they are accepted."""
    request("POST", nsqd.http_address, f"/mpub?topic={topic}", b"\n".join(bodies))


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread does; there is no event to wait for."""
    pause = threading.Event()
    for _ in range(round(LIMIT_S / 0.01)):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come about")


@dataclass(frozen=True)
class CommandEnd:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The output of --json."""
        return json.loads(self.out)


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> CommandEnd:
    """Run ``trionsq`` in this process."""
    capsys.readouterr()
    code = main.main(words)
    shown = capsys.readouterr()
    return CommandEnd(code, shown.out, shown.err)


Run = Callable[..., CommandEnd]


class Terminal(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


def places(cluster: RealCluster, topic: str, channel: str = "") -> list[dict[str, object]]:
    """The statistics of a topic or channel on each nsqd that has it."""
    found = []
    for nsqd in cluster.nsqds:
        stats = request("GET", nsqd.http_address, f"/stats?format=json&topic={topic}")
        for one in stats["topics"] or ():
            if not channel:
                found.append(one)
            found += [each for each in one["channels"] if each["channel_name"] == channel]
    return found


def spread(cluster: RealCluster, run: Run, topic: str, *channels: str) -> None:
    """A topic with channels on all nodes."""
    assert run("topic", "create", topic, cluster.flag).code == 0
    for channel in channels:
        assert run("channel", "create", topic, channel, cluster.flag).code == 0


# Nodes that lie


class Stub:
    """An HTTP server with an answer for each path; notes what it is asked.

    Attributes:
        address: host:port.
        answers: (status, body) by path; a body that is no bytes is sent as JSON.
        requests: ``POST /path`` and the parameters, in order.
    """

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, dict[str, str]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                stub.requests.append((f"{self.command} {parts.path}", query))
                status, body = stub.answers.get(parts.path, (404, {"message": "NOT_FOUND"}))
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _answer

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"

    @property
    def posts(self) -> list[tuple[str, dict[str, str]]]:
        """Those of `requests` that change something."""
        return [each for each in self.requests if each[0].startswith("POST")]

    def __enter__(self) -> Stub:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def nsqd_answers(topic: str, *channels: str, **more: Any) -> dict[str, tuple[int, Any]]:
    """What a small nsqd answers."""
    having = {
        "topic_name": topic,
        "depth": 3,
        "channels": [{"channel_name": name, "depth": 2, "deferred_count": 1} for name in channels],
    }
    return {"/stats": (200, {"version": "1.3.0", "health": "OK", "topics": [having]})} | more


def lookupd_answers(*nodes: str) -> dict[str, tuple[int, Any]]:
    """What an nsqlookupd answers that knows these nodes."""
    producers = []
    for node in nodes:
        host, _, port = node.rpartition(":")
        producers.append({"broadcast_address": host, "http_port": int(port), "tcp_port": 1})
    return {"/nodes": (200, {"producers": producers}), "/topics": (200, {"topics": []})}


@contextmanager
def stalled() -> Iterator[str]:
    """The address of a node that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
