"""Loads of nsqlookupd and nsqadmin, and of an nsqd that registers."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import closing

from benchmarks.capacity.topics import write_metadata
from benchmarks.stalls.clients import command
from benchmarks.stalls.daemons import NSQADMIN, NSQLOOKUPD, Daemon
from benchmarks.stalls.stage import Stage, await_true

REGISTRATIONS = 50_000
NODES = 10
TOPICS = 2_000
WATCHED_S = 12.0
ADMIN_PAGES = ("/api/topics", "/api/nodes", "/api/counter", "/topics", "/nodes", "/counter", "/")


def lookupd(stage: Stage) -> None:
    """50,000 registrations by ten nodes; pages; one node's connection ends."""
    each = stage.some(REGISTRATIONS) // NODES
    with stage.daemon(NSQLOOKUPD) as daemon:
        socks = [_node(daemon, number) for number in range(NODES)]
        try:
            with stage.watch(daemon, f"nsqlookupd: {each * NODES:,} registrations"):
                for number, sock in enumerate(socks):
                    _register(sock, number, each)
                await_true(lambda: _known(daemon) >= each, "all topics are known")
            for page in ("/topics", "/nodes", "/lookup?topic=shared", "/channels?topic=shared"):
                with stage.watch(daemon, f"nsqlookupd: {page} of {each * NODES:,}"):
                    daemon.get(page)
            with stage.watch(daemon, f"nsqlookupd: /debug of {each * NODES:,}"):
                daemon.get("/debug")
            with stage.watch(daemon, f"nsqlookupd: a node with {each:,} registrations leaves"):
                socks[0].close()
            with stage.watch(daemon, "nsqlookupd: all nodes leave"):
                for sock in socks:
                    sock.close()
        finally:
            for sock in socks:
                sock.close()


def _node(daemon: Daemon, number: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", daemon.tcp_port), timeout=60)
    identity = {
        "broadcast_address": f"node{number}",
        "hostname": f"node{number}",
        "http_port": 4151,
        "tcp_port": 4150,
        "version": "1.3.0",
    }
    sock.sendall(b"  V1" + command("IDENTIFY", json.dumps(identity).encode()))
    sock.recv(65_536)
    return sock


def _register(sock: socket.socket, node: int, count: int) -> None:
    """Half are topics of its own, half channels of one that all nodes have."""
    half = count // 2
    lines = [command(f"REGISTER n{node}t{number}") for number in range(half)]
    lines += [command(f"REGISTER shared c{number}") for number in range(count - half)]
    for start in range(0, len(lines), 500):
        some = lines[start : start + 500]
        sock.sendall(b"".join(some))
        answers = b""
        while len(answers) < 6 * len(some):  # OK, with its size
            answers += sock.recv(65_536)


def _known(daemon: Daemon) -> int:
    return len(json.loads(daemon.get("/topics"))["topics"])


def admin(stage: Stage) -> None:
    """nsqadmin before an nsqd with 2,000 topics: its pages, and polling while somebody looks."""
    topics = stage.some(TOPICS)
    with stage.folder() as folder:
        write_metadata(folder, topics, 2)
        with stage.daemon(NSQLOOKUPD) as lookup:
            option = f"--lookupd-tcp-address=127.0.0.1:{lookup.tcp_port}"
            with (
                stage.nsqd(option, "--broadcast-address=127.0.0.1", folder=folder),
                stage.daemon(
                    NSQADMIN, f"--lookupd-http-address=127.0.0.1:{lookup.http_port}"
                ) as dashboard,
            ):
                await_true(lambda: _known(lookup) == topics, "all topics are registered")
                with stage.watch(dashboard, "nsqadmin: the first look at each page"):
                    for page in ADMIN_PAGES:
                        dashboard.get(page)
                for page in ADMIN_PAGES:
                    with stage.watch(dashboard, f"nsqadmin: {page} of {topics:,} topics"):
                        dashboard.get(page)
                with stage.watch(dashboard, f"nsqadmin: polls {topics:,} topics"):
                    _look(dashboard, 1.0 if stage.quick else WATCHED_S)


def _look(dashboard: Daemon, seconds: float) -> None:
    """As a browser with a page open does."""
    with closing(socket.create_connection(("127.0.0.1", dashboard.http_port), timeout=1)) as sock:
        sock.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            try:
                if not sock.recv(1 << 20):
                    return
            except TimeoutError:
                continue


def registering(stage: Stage) -> None:
    """An nsqd with 5,000 topics gets to know an nsqlookupd."""
    topics = stage.some(5_000)
    with stage.folder() as folder, stage.daemon(NSQLOOKUPD) as lookup:
        write_metadata(folder, topics, 1)
        with (
            stage.nsqd(folder=folder) as nsqd,
            stage.watch(nsqd, f"nsqd registers {topics:,} topics"),
        ):
            _put(nsqd, f"127.0.0.1:{lookup.tcp_port}")
            await_true(lambda: _known(lookup) == topics, "all topics are registered")


def _put(nsqd: Daemon, address: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=60)
    connection.request("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([address]))
    connection.getresponse().read()
    connection.close()
