"""A node's link made bad while a cluster runs: delay, loss, stalls and resets.

By netem where the kernel has it, else by a wire of our own (`tests.deploy.link_wire`) that is put
between the node's port and the bridge. Either way both kernels' TCP sees what it sees on a bad
network: addresses stay, and connections live on or die as they would there. Stalls and resets need
the wire.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal, Protocol

import trio

from tests.deploy.netns import Network, NetworkError, entered, ip

__all__ = ["Kind", "Link", "NetemLink", "WireLink", "bad_link", "netem_why_not"]

Kind = Literal["netem", "wire"]

_ROOT: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 20.0
_SIOCETHTOOL: Final = 0x8946
_IFREQ: Final = struct.Struct("16sP16x")
_OFFLOADS: Final = (0x19, 0x17, 0x1F, 0x24)  # ETHTOOL_SSG, _STXCSUM, _STSO, _SGSO
_NETEM_FRAMES: Final = 20_000


class Link(Protocol):
    """A bad link, in both directions."""

    @property
    def kind(self) -> Kind:
        """What makes it bad."""

    async def counts(self) -> dict[str, int]:
        """Frames of both directions by now: ``passed``, ``lost`` and, of a wire, others."""


class NetemLink:
    """By the kernel."""

    kind: Final = "netem"

    def __init__(self, devices: list[tuple[str, str]]) -> None:
        """``devices``: pairs of namespace and device, which send into the link."""
        self._devices = devices

    def make_bad(self, delay_ms: float, loss: float) -> None:
        """Delay and lose what is sent from now on. Raises NetworkError."""
        for namespace, device in self._devices:
            words = ["delay", f"{delay_ms}ms", "loss", f"{loss * 100}%"]
            words += ["limit", str(_NETEM_FRAMES)]
            _tc("-n", namespace, "qdisc", "replace", "dev", device, "root", "netem", *words)

    def make_good(self) -> None:
        """As before; also what was made bad in part."""
        for namespace, device in self._devices:
            with suppress(NetworkError):
                _tc("-n", namespace, "qdisc", "del", "dev", device, "root")

    async def counts(self) -> dict[str, int]:
        """As `Link.counts`."""
        passed = lost = 0
        for namespace, device in self._devices:
            (told,) = json.loads(_tc("-n", namespace, "-s", "-j", "qdisc", "show", "dev", device))
            passed += int(told["packets"])
            lost += int(told["drops"])
        return {"passed": passed, "lost": lost}


class WireLink:
    """By a process of ours."""

    kind: Final = "wire"

    def __init__(self, process: trio.Process) -> None:
        """``process`` is a wire that runs."""
        self._process = process
        self._text = b""

    async def make_bad(self, delay_ms: float, loss: float) -> None:
        """Delay and lose what comes from now on."""
        await self._ask(f"bad {delay_ms} {loss}")

    async def stall(self) -> None:
        """Hold all that comes, up to `tests.deploy.link_wire.HELD_MAX` frames in one direction."""
        await self._ask("stall")

    async def reset(self) -> None:
        """End connections: each TCP segment that comes, or is held, is answered by a reset."""
        await self._ask("reset")

    async def go_on(self) -> None:
        """Let pass what is held, and what comes."""
        await self._ask("go")

    async def counts(self) -> dict[str, int]:
        """As `Link.counts`, and those of `tests.deploy.link_wire.Direction`."""
        told = await self._ask("count")
        return {name: told.get(name, 0) for name in {"passed", "lost", "reset", *told}}

    async def started(self) -> None:
        """Wait until the wire has both devices. Raises RuntimeError if it ended instead."""
        await self._line()

    async def _ask(self, words: str) -> dict[str, int]:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(words.encode() + b"\n")
        told = json.loads(await self._line())
        assert isinstance(told, dict)
        return told

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        with trio.fail_after(_PATIENCE_S):
            while b"\n" not in self._text:
                data = await self._process.stdout.receive_some()
                if not data:
                    raise RuntimeError("the wire ended; its error is on stderr")
                self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return line


@cache
def netem_why_not() -> str:
    """Why the kernel can't make links bad by itself, in one line; empty if it can. Needs root."""
    name = f"tq{os.getpid()}-netem"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
            NetemLink([(name, "veth0")]).make_bad(1, 0.01)
        finally:
            ip("netns", "del", name)
    except (NetworkError, OSError) as error:
        return f"no netem here: {error}"
    return ""


@asynccontextmanager
async def bad_link(
    net: Network,
    node: str,
    *,
    delay_ms: float = 200,
    loss: float = 0.05,
    seed: int = 0,
    kind: Kind | None = None,
) -> AsyncIterator[Link]:
    """While it is open, frames to and from a node wait ``delay_ms`` each, or are lost.

    Args:
        net: where it is.
        node: its name.
        delay_ms: in each direction, so a round trip takes twice as long.
        loss: the share of frames that never arrive, 0 to 1, in each direction.
        seed: of the wire's chance; netem has its own.
        kind: what is to make it bad; by default netem where it can be had.

    Raises:
        NetworkError: it can't be done.
    """
    kind = kind or ("wire" if netem_why_not() else "netem")
    if kind == "wire":
        async with wire(net, node, seed) as link:
            await link.make_bad(delay_ms, loss)
            yield link
    else:
        netem = NetemLink([(net.hub, net.port(node)), (net.namespace(node), "eth0")])
        with _segments_of_mtu(net, node):
            try:
                netem.make_bad(delay_ms, loss)
                yield netem
            finally:
                netem.make_good()


@asynccontextmanager
async def wire(net: Network, node: str, seed: int = 0) -> AsyncIterator[WireLink]:
    """Put a wire between a node's port and the bridge; nothing passes until `make_bad`.

    In the end what it holds is lost, and the port is the bridge's again.

    Raises:
        NetworkError: it can't be done.
    """
    port = net.port(node)
    ours, theirs = f"wire-{port}", f"plug-{port}"
    with _segments_of_mtu(net, node), _plug(net, ours, theirs):
        words = [sys.executable, "-m", "tests.deploy.link_wire", port, ours, str(seed)]
        process = await trio.lowlevel.open_process(
            # `ip netns exec` becomes the wire, so it ends when its input does.
            ["ip", "netns", "exec", net.hub, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
        )
        try:
            link = WireLink(process)
            await link.started()
            ip("-n", net.hub, "link", "set", port, "nomaster")
            yield link
        finally:
            # First the wire: with both ways open a frame would come twice.
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            ip("-n", net.hub, "link", "set", port, "master", "br0")


@contextmanager
def _plug(net: Network, ours: str, theirs: str) -> Iterator[None]:
    """A pair of devices in the hub, ``theirs`` in the bridge."""
    add = ["link", "add", ours, "type", "veth", "peer", "name", theirs]
    ip("-n", net.hub, *add)
    try:
        for device in (ours, theirs):
            # The kernel is not to speak on it.
            ip("-n", net.hub, "link", "set", device, "addrgenmode", "none")
        _set_offloads(net.hub, theirs, on=False)
        ip("-n", net.hub, "link", "set", theirs, "master", "br0", "up")
        ip("-n", net.hub, "link", "set", ours, "up")
        yield
    finally:
        ip("-n", net.hub, "link", "del", ours)


@contextmanager
def _segments_of_mtu(net: Network, node: str) -> Iterator[None]:
    """Let the node's kernel send real segments with real checksums.

    Between namespaces it does not trouble: what it sends is up to 64 KiB large.
    """
    namespace = net.namespace(node)
    _set_offloads(namespace, "eth0", on=False)
    try:
        yield
    finally:
        _set_offloads(namespace, "eth0", on=True)


def _set_offloads(namespace: str, device: str, *, on: bool) -> None:
    """Whether the device claims to cut up, and to sum up, what it sends. Raises OSError."""
    with entered(namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        for command in _OFFLOADS:
            value = array.array("I", (command, on))
            address, _ = value.buffer_info()
            fcntl.ioctl(sock, _SIOCETHTOOL, _IFREQ.pack(device.encode(), address))


def _tc(*words: str) -> str:
    try:
        done = subprocess.run(
            ["tc", *words], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError as error:
        raise NetworkError("no tc command") from error
    if done.returncode:
        raise NetworkError(f"tc {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
