"""Nodes as network namespaces: each with an address of its own, joined by a bridge.

For root on Linux with iproute2. The bridge is in a namespace too, so nothing of the machine's own
network is touched, and no address can collide with one of it: delete the namespaces, and all is
gone. Their names begin with ``tq``, the id of the process that made them and ``-``; what a killed
process left behind is removed when the next one starts, its daemons first.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from trionsq.transports.trio_sockets import SocketTransport

__all__ = [
    "HOST_NODE",
    "Network",
    "NetworkError",
    "clean_up",
    "entered",
    "ip",
    "network",
    "runs",
    "why_not",
]

HOST_NODE: Final = "host"
"""The node for whoever uses the cluster: producers, consumers, browsers."""

_HUB: Final = "hub"
_NETWORK: Final = "10.207.0"
_NAME: Final = re.compile(r"^tq([0-9]+)-", re.MULTILINE)
_FOLDER: Final = Path("/run/netns")  # where iproute2 keeps them
_COMMAND_LIMIT_S: Final = 20.0
_KILLED_LIMIT_S: Final = 10.0
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NetworkError(Exception):
    """A command of iproute2 failed; its words are in the text."""


def why_not() -> str:
    """Why there can be no namespaces here, in one line; empty if there can."""
    if os.uname().sysname != "Linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2 (apt install iproute2)"
    name = f"tq{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "br0", "type", "bridge")
            ip("-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        finally:
            ip("netns", "del", name)
    except (NetworkError, OSError) as error:
        return f"network namespaces are not allowed here: {error}"
    return ""


class Network:
    """The namespaces of one cluster."""

    def __init__(self, nodes: Sequence[str]) -> None:
        """Of ``nodes``, and one more for the host. Nothing is made yet."""
        names = [HOST_NODE, *nodes]
        self._prefix = f"tq{os.getpid()}-"
        self.addresses: Mapping[str, str] = {
            name: f"{_NETWORK}.{number}" for number, name in enumerate(names, start=10)
        }
        """IPv4 addresses by node."""

    def namespace(self, node: str) -> str:
        """The name that iproute2 has for the node."""
        return f"{self._prefix}{node}"

    @property
    def hub(self) -> str:
        """The namespace of the bridge, ``br0``."""
        return self.namespace(_HUB)

    def port(self, node: str) -> str:
        """The hub's end of the node's link."""
        return f"port{list(self.addresses).index(node)}"

    def open(self) -> None:
        """Make all of it. Raises NetworkError."""
        hub = self.hub
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for node, address in self.addresses.items():
            name = self.namespace(node)
            port = self.port(node)
            ip("netns", "add", name)
            ip(
                "-n",
                hub,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
            ip("-n", hub, "link", "set", port, "master", "br0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def close(self) -> None:
        """Kill what still runs in it and remove it; also what was made only in part."""
        _remove(name for name in _names() if name.startswith(self._prefix))

    def set_link(self, node: str, *, up: bool) -> None:
        """Cut the node off, or join it again. Its address stays. Raises NetworkError."""
        ip("-n", self.hub, "link", "set", self.port(node), "up" if up else "down")

    def command(self, node: str, words: Sequence[str]) -> list[str]:
        """The command line that runs ``words`` on the node, as the same process."""
        return ["ip", "netns", "exec", self.namespace(node), *words]

    async def connect(self, host: str, port: int) -> trio.SocketStream:
        """A connection from the host's node to an address; a ``dial`` of `trionsq.httpget`.

        Raises:
            OSError: nobody listens there, or there is no way.
        """
        with entered(self.namespace(HOST_NODE)):
            sock = trio.socket.socket()
        try:
            await sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(sock)

    async def dial(self, host: str, port: int, local_address: str) -> SocketTransport:
        """The same as a ``dial`` of the client library, which may not name a local address."""
        assert not local_address
        stream = await self.connect(host, port)
        return SocketTransport(socket.socket(fileno=stream.socket.detach()))


@contextmanager
def network(nodes: Sequence[str]) -> Iterator[Network]:
    """The namespaces of ``nodes``, removed in the end whatever happens. Raises NetworkError."""
    clean_up()
    made = Network(nodes)
    try:
        made.open()
        yield made
    finally:
        made.close()


def clean_up() -> list[str]:
    """Remove the namespaces of processes that are gone, and kill what runs there; their names."""
    orphans = [
        name for name in _names() if (found := _NAME.match(name)) and not runs(int(found[1]))
    ]
    _remove(orphans)
    return orphans


def runs(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits for its parent counts not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] not in ("Z", "X")


def _names() -> list[str]:
    """Of all namespaces that may be ours."""
    try:
        return [name for name in os.listdir(_FOLDER) if _NAME.match(name)]
    except FileNotFoundError:
        return []


def _remove(names: Iterator[str] | Sequence[str]) -> None:
    # The hub last: the veths go with the nodes' namespaces.
    for name in sorted(names, key=lambda name: (name.endswith(f"-{_HUB}"), name)):
        _kill_all(name)
        with suppress(NetworkError):  # another process was first
            ip("netns", "del", name)


def _kill_all(name: str) -> None:
    """SIGKILL what runs in a namespace of ours, and wait until it is gone."""
    deadline_s = time.monotonic() + _KILLED_LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            pids = [int(pid) for pid in ip("netns", "pids", name).split()]
        except NetworkError:
            return
        if not (running := [pid for pid in pids if pid != os.getpid()]):
            return
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def ip(*words: str) -> str:
    """What iproute2's ``ip`` says. Raises NetworkError."""
    done = subprocess.run(
        ["ip", *words], capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
    )
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Within it, sockets that this thread opens are the namespace's. Raises OSError.

    Only for a few calls that neither wait nor start threads: a thread keeps the namespace in which
    it was started, and trio's threads live on for the next test.
    """
    with (
        open(f"/proc/self/task/{threading.get_native_id()}/ns/net") as before,
        open(_FOLDER / name) as there,
    ):
        _set_namespace(there.fileno())
        try:
            yield
        finally:
            _set_namespace(before.fileno())


def _set_namespace(fd: int) -> None:
    if _LIBC.setns(fd, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
