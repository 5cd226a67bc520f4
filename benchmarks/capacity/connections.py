"""Connections: what an idle one holds, what its heartbeats and its coming cost."""

from __future__ import annotations

import json
import resource
import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path

import trustme

from benchmarks.capacity.lab import IN_MEMORY, Flow, Lab
from benchmarks.capacity.tables import Table
from benchmarks.generator import MeasureError
from benchmarks.servers import Server

# Twice in a run, and the default is 30 s: the cost of one is what counts.
HEARTBEAT_MS = 5_000
HOLD_S = 11
DEFAULT_HEARTBEAT_S = 30
# What nsqd and the generator open besides connections.
OTHER_FILES = 200
HANDSHAKES = 200
MAGIC = b"  V2"


def measure_connections(lab: Lab) -> Table:
    """Subscribed consumers that get nothing, up to what the limit of files allows."""
    table = Table(
        "connections",
        "idle consumers of one channel at RDY 1",
        "connections, all ready after s, CPU us each to come, kB each, MB resident,"
        " CPU us / heartbeat, % of a core at 30 s",
        f"Heartbeats each {HEARTBEAT_MS // 1000} s for {HOLD_S} s; the last column is what they"
        " cost at the default interval. Linux keeps some kB more for each socket.",
    )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES
    for wanted in (1_000, 5_000, 10_000):
        if (count := lab.some(wanted, 20)) <= most:
            with lab.nsqd() as server:
                table.add(f"{count:,}", *_held(lab, server, count))
    return table


def _held(lab: Lab, server: Server, count: int) -> tuple[float, ...]:
    cpu_s, began_s = server.cpu_s(), time.monotonic()
    run = lab.load(
        server,
        "idle",
        channel="bench0",
        consumers=count,
        rdy=1,
        heartbeat_ms=1_000 if lab.quick else HEARTBEAT_MS,
        hold=2 if lab.quick else HOLD_S,
    )
    ready_s = time.monotonic() - began_s - run["seconds"]
    # That they all leave at the end is in here too.
    coming_s = server.cpu_s() - cpu_s - run["cpu_seconds"]
    heartbeat_us = run["cpu_seconds"] / run["heartbeats"] * 1e6
    grown = run["resident_after"] - run["resident_before"]
    return (
        ready_s,
        coming_s / count * 1e6,
        grown / count / 1e3,
        run["resident_after"] / 1e6,
        heartbeat_us,
        heartbeat_us * count / DEFAULT_HEARTBEAT_S / 1e4,
    )


def measure_handshakes(lab: Lab) -> Table:
    """What a connection costs before its first command, with and without TLS."""
    table = Table(
        "handshakes",
        "connections one after the other, to the answer of IDENTIFY",
        "connection, CPU us, core does a second, kB each",
        "From one Python client that keeps them all open; TLS 1.3 without resumption.",
    )
    keys = {"plain": None, "TLS, ECDSA P-256": trustme.KeyType.ECDSA}
    keys["TLS, RSA 2048"] = trustme.KeyType.RSA
    count = lab.some(HANDSHAKES, 5)
    for name, key in keys.items():
        with (
            lab.bench.kinds.folder() as folder,
            lab.nsqd(IN_MEMORY, *_certificate(folder, key)) as server,
            ExitStack() as kept,
        ):
            kept.enter_context(dial(server, tls=key is not None))
            resident, cpu_s = server.resident_bytes(), server.cpu_s()
            for _ in range(count):
                kept.enter_context(dial(server, tls=key is not None))
            flow = Flow(count, 1, server.cpu_s() - cpu_s)
            grown = server.resident_bytes() - resident
        table.add(name, flow.cpu_us, 1e6 / flow.cpu_us, grown / count / 1e3)
    return table


def _certificate(folder: Path, key: trustme.KeyType | None) -> list[str]:
    if key is None:
        return []
    issued = trustme.CA().issue_cert("127.0.0.1", key_type=key)
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    both = folder / "both.pem"
    return [f"--tls-cert={both}", f"--tls-key={both}", "--https-address=127.0.0.1:0"]


def dial(server: Server, *, tls: bool = False) -> socket.socket:
    """A connection that is identified."""
    sock = socket.create_connection(("127.0.0.1", server.tcp_port), timeout=10)
    identify = json.dumps({"feature_negotiation": True, "tls_v1": tls}).encode()
    sock.sendall(MAGIC + b"IDENTIFY\n" + len(identify).to_bytes(4, "big") + identify)
    read_frame(sock)
    if not tls:
        return sock
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secured = context.wrap_socket(sock)
    read_frame(secured)
    return secured


def read_frame(sock: socket.socket) -> bytes:
    """Size and the frame itself, not a byte more: TLS may begin right behind."""
    return _exactly(sock, int.from_bytes(_exactly(sock, 4), "big"))


def _exactly(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = sock.recv(nbytes - len(data))
        if not more:
            raise MeasureError("nsqd closed a connection")
        data += more
    return data
