"""A client in memory that upgrades its connection, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio

from tests.golden.layers import TlsConnection
from tests.golden.peer import Peer
from tests.golden.test_in_process import MemoryPeer
from tests.transports.ends import authority, client_context, write_ca, write_pair
from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.testing.streams import MemoryTransport, memory_connection
from trionsq.wire import commands
from trionsq.wire.states import MAGIC_V2

FRAME_HEAD_NBYTES = 8


def certificate(folder: Path) -> dict[str, Any]:
    """Options for a broker that has one."""
    cert, key = write_pair(folder)
    return {"tls_cert": cert, "tls_key": key, "tls_root_ca_file": write_ca(folder)}


class Upgrading:
    """One connection.

    Attributes:
        client, transport: what the broker has of it.
        peer: the connection of now, with its layers.
    """

    def __init__(self, broker: Broker, capacity_bytes: int = 2**16) -> None:
        self.stream, self.transport = memory_connection(capacity_bytes)
        self.client: Client = broker.connect(self.transport)
        self.stream.send_nowait(MAGIC_V2)
        self.peer = Peer(MemoryPeer(self.stream))

    async def identify(self, **wanted: Any) -> dict[str, Any]:
        """Ask for upgrades, and return the answer; none is begun."""
        await self.say(identify(**wanted))
        answer: dict[str, Any] = json.loads(await self.frame())
        return answer

    async def say(self, data: bytes) -> None:
        await self.peer.connection.send_all(data)

    async def frame(self) -> bytes:
        """The data of the next frame."""
        return (await self.peer.read_frame())[FRAME_HEAD_NBYTES:]

    async def tls(self) -> None:
        """Shake hands, as one who trusts the authority and has a certificate of it."""
        await self.shake_hands()
        assert await self.frame() == b"OK"

    async def shake_hands(self) -> None:
        context = client_context(authority().issue_cert(common_name="worker"))
        connection = TlsConnection(self.peer.connection, context, "127.0.0.1")
        await connection.start()
        self.peer = Peer(connection)

    async def compress(self, layer: str) -> None:
        """Begin snappy or deflate."""
        await self.peer.upgrade(layer)
        assert await self.frame() == b"OK"

    async def upgrade(self, *layers: str, **more: Any) -> None:
        """Ask for layers, and begin them."""
        wanted = {"tls_v1" if layer == "tls" else layer: True for layer in layers}
        await self.identify(**wanted, **more)
        for layer in layers:
            await (self.tls() if layer == "tls" else self.compress(layer))

    async def ended(self) -> bytes:
        """What comes until the end of the connection."""
        while await self.peer.read_more():
            pass
        return bytes(self.peer.received)


def identify(**wanted: Any) -> bytes:
    """The command, with feature negotiation."""
    return commands.identify({"feature_negotiation": True, **wanted})


async def until_gone(client: Client) -> None:
    """Wait until the broker has let go of a client."""
    with trio.fail_after(60):
        while client in client.context.clients:  # noqa: ASYNC110
            await trio.sleep(0.01)


__all__ = ["MemoryTransport", "Upgrading", "certificate", "identify", "until_gone"]
